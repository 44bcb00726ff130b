"""The toy workload: the same data everywhere, and something to learn in it."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tests.train.workloads.training import train
from train.base.errors import TrainError
from train.workloads import toy


def sha256(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_data_of_seed_7_is_the_same_on_every_machine(context_of) -> None:
    built = toy.build(context_of(seed=7), features=3, classes=3, samples=100, eval_samples=10)
    assert sha256(built.dataset.values, built.dataset.labels) == (
        "daefdf9372df622794de64d57bc71888bbbe5ca32c426769bd750a5ecbcf9f20"
    )
    assert sha256(built.eval_dataset.values, built.eval_dataset.labels) == (
        "82d9bd9136af117b91cd0b417c9e0e0e83d33c8cf7a586270d35122d728d2d0a"
    )
    assert built.dataset.values[0].tolist() == [1.55078125, 0.20703125, -0.46484375]


def test_batch_is_what_the_single_samples_are(context) -> None:
    dataset = toy.build(context, samples=50).dataset
    values, labels = dataset.batch([3, 3, 49])
    assert torch.equal(values, torch.stack([dataset[i][0] for i in (3, 3, 49)]))
    assert torch.equal(labels, torch.stack([dataset[i][1] for i in (3, 3, 49)]))
    assert labels.dtype == torch.int64
    assert len(dataset) == 50


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"dropout": 0.1, "batch_norm": True}])
def test_it_learns_what_is_held_out(context, arguments) -> None:
    built = toy.build(context, **arguments)
    assert train(built, steps=150, lr=0.01)["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "train.args.classes: is 1, but must be a whole number of at least 2"),
        ({"hidden": 0}, "train.args.hidden: is 0, but must be a whole number "),
        ({"samples": 1e3}, "train.args.samples: is 1000.0, but must be a whole number"),
        ({"features": True}, "train.args.features: is True, but must be a whole number"),
        ({"dropout": 1}, "train.args.dropout: is 1, but must be at least 0 and below 1"),
        ({"dropout": "0.1"}, "train.args.dropout: is '0.1', but must be at least 0"),
        ({"batch_norm": "yes"}, "train.args.batch_norm: is 'yes', but must be true or false"),
    ],
)
def test_argument_out_of_range(context, arguments, message) -> None:
    with pytest.raises(TrainError) as error:
        toy.build(context, **arguments)
    assert str(error.value).startswith(message)
