"""The built-in workloads end in the same weights on 1, 2, 3 and 4 processes, stopped halfway or not.

Batch norm and convolutions: test_odd_models.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real import jobs
from tests.train.workers import Run, run

PROCESSES = (1, 2, 3, 4)
GPT = (
    "--global-batch-size=9", "--optimizer=adamw", "--lr=0.001", "--grad-clip=1.0", "--seed=5",
    "--arg=depth=2", "--arg=width=32", "--arg=heads=2", "--arg=seq_len=16", "--arg=dropout=0.2",
    "--arg=max_bytes=20000", "--eval-every=5",
)  # fmt: skip


def trained(place: Path, workload: str, processes: int, *arguments: str) -> Run:
    done = run(place, workload, processes, "--log-every=1", *arguments)
    assert done.codes == [0] * processes, done.output
    return done


def assert_all_equal(runs: list[Run]) -> None:
    expected, *others = [(each.tensors(), history(each)) for each in runs]
    assert expected[1]
    for tensors, told in others:
        jobs.assert_same_bits(tensors, expected[0])
        assert told == expected[1]


def history(of: Run) -> list[dict[str, Any]]:
    """Losses, learning rates and evaluations: what is said of a run, but for when and by whom."""
    said = [row for kind in ("step", "eval") for row in jobs.rows(of.directory, kind)]
    assert {row["kind"] for row in said} == {"step", "eval"}
    own = ("attempt", "time", "generation")
    return [{key: row[key] for key in row if key not in own} for row in said]


@pytest.mark.slow
def test_gpt_with_dropout(tmp_path: Path) -> None:
    flags = (*GPT, "--steps=12", "--schedule=cosine")
    assert_all_equal([trained(tmp_path / str(n), "gpt", n, *flags) for n in PROCESSES])


def test_uneven_shares_and_worker_processes_for_the_data_change_nothing(tmp_path: Path) -> None:
    flags = (*GPT, "--steps=6")
    even = trained(tmp_path / "even", "gpt", 1, *flags)
    uneven = trained(tmp_path / "uneven", "gpt", 2, *flags, "--shares=8,1", "--data-workers=2")
    assert_all_equal([even, uneven])


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["tree", "allreduce"])
def test_a_run_that_goes_on_equals_the_undisturbed_one(tmp_path: Path, reduction: str) -> None:
    flags = (*GPT, f"--reduction={reduction}")
    whole = trained(tmp_path / "whole", "gpt", 3, *flags, "--steps=12")
    trained(tmp_path / "halves", "gpt", 3, *flags, "--steps=7")
    halves = trained(tmp_path / "halves", "gpt", 3, *flags, "--steps=12")
    assert "resuming at step 7 of 12" in halves.output
    jobs.assert_same_bits(halves.tensors(), whole.tensors())
