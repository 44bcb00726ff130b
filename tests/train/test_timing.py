"""Where a rank's step goes, and which rank is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train import workers
from train.distributed import timing
from train.distributed.timing import HostTime, Slow, SlowRanks, StepClock, remedy, slowest

PARTS = Path(__file__).with_name("own_parts.py")


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_a_clock_tells_waiting_from_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(timing, "time", time)
    clock = StepClock()
    assert clock.report() == [0, 0, 0, 0]
    for _ in range(2):
        clock.begin()
        for _ in range(2):
            with clock.batch():
                time.now += 0.5
            time.now += 1.5  # forward and backward
        clock.ready()
        time.now += 0.5  # the rest of the reduction
        clock.reduced()
        with clock.waiting():
            time.now += 0.25  # the exchange
        clock.end()
        time.now += 60  # an evaluation: no part of a step
    assert clock.report() == [4.75, 0.75, 1, 2]
    assert clock.report() == [0, 0, 0, 0]


def test_without_a_gradient_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(timing, "time", time)
    clock = StepClock()
    clock.begin()
    time.now += 1
    clock.reduced()
    clock.end()
    assert clock.report() == [1, 0, 0, 0]


class Queue(HostTime):
    """A GPU: a mark has a time only after the GPU has reached it."""

    def __init__(self) -> None:
        self.marks: list[list[float]] = []

    def mark(self) -> list[float]:
        self.marks.append([])
        return self.marks[-1]

    def compute(self, *seconds: float) -> None:
        """Reach the next marks, each this long after the one before."""
        for each in seconds:
            at = next(n for n, mark in enumerate(self.marks) if not mark)
            self.marks[at].append((self.marks[at - 1][0] if at else 100.0) + each)

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end[0] - begin[0])

    def is_past(self, mark: Any) -> bool:
        return bool(mark)


def test_a_step_counts_after_the_gpu_has_done_its_work() -> None:
    gpu = Queue()
    clock = StepClock(gpu)
    for _ in range(2):
        clock.begin()
        with clock.waiting():  # for the parameters of other ranks
            pass
        with clock.batch():
            pass
        clock.ready()
        clock.reduced()
        with clock.waiting():  # the exchange
            pass
        clock.end()
    assert clock.report() == [0, 0, 0, 0]
    step = (0, 0, 0.25, 0, 0.5, 2, 0.75, 0, 0.125, 1)
    gpu.compute(*step)
    assert clock.report() == [4.625, 1.125, 0.5, 2.5]
    gpu.compute(*step[:-1])
    assert clock.report() == [0, 0, 0, 0]
    gpu.compute(1)
    assert clock.report() == [4.625, 1.125, 0.5, 2.5]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([0.1], None),  # one rank waits for nobody
        ([0.1, 0.15], None),  # 5 % of a step may be chance
        ([0.1, 0.4], Slow(0, pytest.approx(0.3))),
        ([0.4, 0.05, 0.5, 0.4], Slow(1, pytest.approx(0.35))),
        ([0.8, 0.8, 0.8], None),  # all wait for the network
    ],
)
def test_the_rank_that_waits_least_is_slow(waiting: list[float], expected: Slow | None) -> None:
    assert slowest(1.0, waiting) == expected


def test_a_rank_is_named_after_three_reports_and_once() -> None:
    ranks, slow, well = SlowRanks(), [0.5, 0.1], [0.3, 0.3]
    assert [ranks.observe(1.0, row) for row in (slow, slow, well, slow, slow)] == [None] * 5
    assert ranks.observe(1.0, slow) == Slow(1, pytest.approx(0.4))
    assert ranks.observe(1.0, slow) is None
    assert ranks.slow_rank == Slow(1, pytest.approx(0.4))
    ranks.observe(1.0, well)
    assert ranks.slow_rank is None
    assert [ranks.observe(1.0, slow) for _ in range(3)][:2] == [None, None]
    assert [ranks.observe(1.0, [0.1, 0.5]) for _ in range(3)][2] == Slow(0, pytest.approx(0.4))


@pytest.mark.parametrize("reduction", ["tree", "allreduce"])
def test_a_slow_rank_is_in_the_log_and_the_metrics(tmp_path: Path, reduction: str) -> None:
    run = workers.run(
        tmp_path,
        f"{PARTS}:slow_on_rank_1",
        2,
        "--steps=5",
        "--log-every=1",
        "--micro-batch-size=2",
        f"--reduction={reduction}",
    )
    assert run.codes == [0, 0], run.output
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    reports = [row for row in rows if row["kind"] == "ranks"]
    assert [row["step"] for row in reports] == [2, 3, 4, 5]
    for row in reports[1:]:
        assert len(row["waiting"]) == len(row["batches"]) == 2
        assert row["waiting"][0] - row["waiting"][1] > 0.1 * row["seconds"]
    assert reports[-1]["slow"]["name"] == "rank 1"
    assert "rank 1 computes longer " in run.output
    assert f"% of each step for it; {remedy(1, [2, 2])}" in run.output


def test_a_rank_with_a_larger_share_is_told_of_that() -> None:
    assert remedy(0, [3, 3, 2]) == (
        "it has 3 micro-batches of a step and others 2: choose a global_batch_size that is "
        "shared out evenly"
    )
    alone = "see what else runs there; on the tier hosts, share: auto gives a slower host fewer micro-batches"
    assert remedy(2, [3, 3, 2]) == remedy(1, [3, 3]) == alone
