"""The sample order is a permutation of every epoch, and a function of the position alone."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.base.errors import TrainError
from train.training import data
from train.training.data import (
    BatchPlan,
    MicroBatchFetcher,
    SampleOrder,
    fetch_batches,
    ranges,
    shares_by_weight,
    to_device,
)


def at(order: SampleOrder, start: int, count: int) -> list[int]:
    return order.indices(torch.arange(start, start + count))


@given(n=st.integers(1, 300), seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 2**40))
def test_every_epoch_visits_every_sample_once(n: int, seed: int, epoch: int) -> None:
    order = SampleOrder(n, seed)
    assert sorted(at(order, epoch * n, n)) == list(range(n))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def first_epochs(seed: int) -> list[list[int]]:
        order = SampleOrder(64, seed)
        return [at(order, epoch * 64, 64) for epoch in range(3)]

    orders = first_epochs(0) + first_epochs(1)
    assert len({tuple(order) for order in orders}) == 6


def test_the_order_is_the_same_tomorrow() -> None:
    # A changed permutation would make every checkpoint resume on other samples.
    assert at(SampleOrder(10, 0), 5, 10) == [4, 5, 8, 7, 6, 7, 8, 6, 1, 5]


def test_any_position_of_a_huge_dataset_is_found_without_visiting_the_others() -> None:
    order = SampleOrder(10**12, 0)
    assert all(0 <= i < 10**12 for i in at(order, 10**15, 100))
    assert len(set(at(order, 0, 1000))) == 1000


def test_a_step_across_the_end_of_an_epoch_is_filled_from_the_next() -> None:
    plan = BatchPlan(SampleOrder(10, 0), 0, global_batch_size=8, micro_batch_size=4)
    consumed = [i for batch in plan.indices(range(2), range(5)) for i in batch]
    assert plan.span(4) == (32, 40)
    for epoch in range(4):
        assert sorted(consumed[epoch * 10 : (epoch + 1) * 10]) == list(range(10))


weights = st.lists(st.fractions(Fraction(1, 50), 50), min_size=1, max_size=12)


@pytest.mark.slow
@given(weights=weights, more=st.integers(0, 200))
def test_shares_by_weight_add_up_and_leave_nobody_idle(weights: list[Fraction], more: int) -> None:
    count = len(weights) + more
    shares = shares_by_weight(count, weights)
    assert sum(shares) == count
    assert min(shares) >= 1
    quotas = [weight * count / sum(weights) for weight in weights]
    if min(quotas) >= 1:  # else some had to give to the idle ones
        assert all(abs(s - q) < 1 for s, q in zip(shares, quotas, strict=True))
        for (light, few), (heavy, many) in itertools.combinations(
            sorted(zip(weights, shares, strict=True)), 2
        ):
            assert few <= many or light == heavy


@pytest.mark.parametrize(
    ("micro_batches", "weights", "shares"),
    [
        (8, ["1", "1", "1"], (3, 3, 2)),
        (8, ["3", "1"], (6, 2)),
        (8, ["3/2", "3/2", "1"], (3, 3, 2)),
        (8, ["1000", "1"], (7, 1)),
        (5, ["100", "1", "1", "1"], (2, 1, 1, 1)),
        (7, ["1", "1"], (4, 3)),
    ],
)
def test_shares_by_weight(micro_batches: int, weights: list[str], shares: tuple[int, ...]) -> None:
    assert shares_by_weight(micro_batches, [Fraction(w) for w in weights]) == shares
    assert list(itertools.chain(*ranges(shares))) == list(range(micro_batches))


def test_more_processes_than_micro_batches_is_an_error_with_a_remedy() -> None:
    with pytest.raises(TrainError, match="1 would have nothing to do"):
        shares_by_weight(2, [Fraction(1)] * 3)


class Augmented:
    """Samples with noise on them, as an augmentation draws it."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "noise": torch.rand(3)}


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_deliver_the_same_augmented_batches_in_the_same_order(
    workers: int,
) -> None:
    plan = BatchPlan(SampleOrder(20, 5), 5, global_batch_size=8, micro_batch_size=2)
    fetcher = MicroBatchFetcher(Augmented(), plan, None)
    alone, fetched = (
        list(fetch_batches(fetcher, fetcher.keys(range(1, 3), range(2, 5)), n, 1, 30, False))
        for n in (0, workers)
    )
    assert len(alone) == len(fetched) == 6
    for a, b in zip(alone, fetched, strict=True):
        assert torch.equal(a["index"], b["index"])
        assert torch.equal(a["noise"], b["noise"])


def test_a_dataset_with_a_batch_method_is_asked_once_for_a_whole_micro_batch() -> None:
    class Table:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            raise AssertionError("asked for single samples")

        def batch(self, indices: list[int]) -> torch.Tensor:
            return torch.tensor(indices)

    plan = BatchPlan(SampleOrder(10, 0), 0, 4, 4)
    fetcher = MicroBatchFetcher(Table(), plan, None)
    (key,) = fetcher.keys(range(1), range(1))
    assert fetcher[key].tolist() == next(plan.indices(range(1), range(1)))


@pytest.mark.parametrize(("mine", "n"), [(range(2, 5), 7), (range(1), 1000), (range(3, 8), 10**9)])
def test_a_rank_finds_its_samples_by_blocks_as_it_would_one_by_one(
    mine: range, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "_BLOCK", 256)  # 12 to 64 steps
    order = SampleOrder(n, 9)
    plan = BatchPlan(order, 9, global_batch_size=32, micro_batch_size=4)
    found = list(plan.indices(mine, range(5, 100)))
    expected = [
        [at(order, step * 32 + v * 4 + j, 1)[0] for j in range(4)]
        for step in range(5, 100)
        for v in mine
    ]
    assert found == expected


def test_nested_batches_keep_their_form_on_the_way_to_a_device() -> None:
    batch = {"a": torch.zeros(1), "b": [torch.ones(1), "text"], "c": (torch.ones(1), 3)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"].device.type == "meta"
    assert moved["b"][1] == "text"
    assert isinstance(moved["c"], tuple)
    assert moved["c"][1] == 3
