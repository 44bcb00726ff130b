"""The example of a user's own model: what docs/workloads.md tells people to copy works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.workloads.training import batch_of, train
from train.training.builder import load_workload
from train.workload import Context, Workload

EXAMPLE = Path(__file__).parents[3] / "examples" / "code" / "own_model"


@pytest.fixture
def built(context: Context, monkeypatch: pytest.MonkeyPatch) -> Workload:
    monkeypatch.chdir(EXAMPLE)  # a job's working directory is its code folder
    return load_workload("my_model.py:build", context, {"width": 32})


def test_it_learns_languages_from_words_it_has_not_seen(built: Workload) -> None:
    found = train(built, steps=120, lr=0.005)
    assert found["accuracy"] > 0.5, "a guess is right once in five times"
    assert 0.2 < found["worst_f1"] < found["accuracy"]


def test_words_of_many_lengths_become_one_batch(built: Workload) -> None:
    letters, lengths, languages = batch_of(built, built.dataset, [0, 60, 300])
    assert letters.shape == (3, int(lengths.max()))
    assert built.model(letters, lengths).shape == (3, 5)
    assert languages.tolist() == [built.dataset[i][1] for i in (0, 60, 300)]


def test_filling_up_changes_no_answer(built: Workload) -> None:
    built.model.eval()
    letters, lengths, _ = batch_of(built, built.dataset, [7])
    filled = torch.nn.functional.pad(letters, (0, 5))
    torch.testing.assert_close(built.model(letters, lengths), built.model(filled, lengths))
