"""`share: auto`: who computes how many micro-batches, when that changes, and that no bit depends on it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real import jobs
from tests.train.workers import Run, run
from train.distributed.agreement import Assembly, Member
from train.distributed.balance import KEEP, LEAVE, WINDOW_S, WINDOW_STEPS, Balancer, decide, fastest
from train.training.data import BatchPlan, MicroBatchFetcher, SampleOrder, ranges
from train.training.shares import Shares
from train.training.startup import keep_if_hosts_differ

EVERY = WINDOW_STEPS
MOVING = Path(__file__).with_name("moving.py")
GPT = (
    "--arg=depth=1", "--arg=width=32", "--arg=heads=2", "--arg=seq_len=16", "--arg=dropout=0.2",
    "--arg=max_bytes=20000",
)  # fmt: skip


def cases(count: int = 300) -> Iterator[tuple[list[float], int]]:
    """Seconds of a micro-batch on each rank, and a number of micro-batches."""
    draw = random.Random(11)
    for _ in range(count):
        ranks = draw.randint(1, 6)
        yield [draw.uniform(0.1, 4.0) for _ in range(ranks)], ranks + draw.randint(0, 12)


def step_s(counts: Sequence[int], seconds: Sequence[float]) -> float:
    return max(count * each for count, each in zip(counts, seconds, strict=True))


def evenly(micro_batches: int, ranks: int) -> tuple[int, ...]:
    return tuple(micro_batches // ranks + (rank < micro_batches % ranks) for rank in range(ranks))


def test_the_split_has_all_micro_batches_and_each_rank_has_one() -> None:
    for seconds, micro_batches in cases():
        counts = fastest(seconds, micro_batches)
        assert (sum(counts), min(counts) >= 1) == (micro_batches, True)
        assert fastest(list(seconds), micro_batches) == counts


def test_no_split_makes_a_shorter_step() -> None:
    for seconds, micro_batches in cases(60):
        if len(seconds) > 4 or micro_batches > 12:
            continue
        options = itertools.product(range(1, micro_batches + 1), repeat=len(seconds))
        shortest = min(step_s(o, seconds) for o in options if sum(o) == micro_batches)
        assert step_s(fastest(seconds, micro_batches), seconds) == shortest


@pytest.mark.parametrize(
    ("seconds", "counts", "expected"),
    [
        ([2.0, 1.0], (6, 6), (4, 8)),
        ([2.0, 1.0], (4, 8), (4, 8)),
        ([1.0, 1.0], (4, 8), (6, 6)),  # the slow one has recovered
        ([1.08, 1.0], (6, 6), (6, 6)),  # too little
        ([2.2, 1.0], (4, 8), (4, 8)),
        ([9.0, 1.0], (4, 8), (1, 11)),
        ([99.0, 1.0], (6, 6), (1, 11)),
        ([1.0, 1.0, 2.0, 1.0], (3, 3, 3, 3), (4, 4, 1, 3)),
    ],
)
def test_decisions(
    seconds: list[float], counts: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert decide(seconds, counts, evenly(sum(counts), len(counts))) == expected


def test_a_change_gains_something_and_is_the_last_one_at_these_speeds() -> None:
    for seconds, micro_batches in cases():
        even = evenly(micro_batches, len(seconds))
        counts = decide(seconds, even, even)
        assert decide(seconds, counts, even) == counts
        if counts != even:
            assert step_s(even, seconds) > (1 + LEAVE) * step_s(counts, seconds)
        else:
            best = fastest(seconds, micro_batches)
            assert step_s(even, seconds) <= (1 + LEAVE) * step_s(best, seconds)


def test_a_small_change_of_speed_does_not_swing_between_two_splits() -> None:
    """The gain at which the even split is left is larger than the gain at which it comes back."""
    even, uneven = (50, 50), decide([1.12, 1.0], (50, 50), (50, 50))
    assert KEEP < LEAVE
    assert uneven == even
    uneven = decide([1.3, 1.0], even, even)
    assert uneven != even
    assert decide([1.2, 1.0], uneven, even) == uneven
    assert decide([1.05, 1.0], uneven, even) == even


class Ranks:
    """Steps of ranks at given speeds, balanced as their reports ask for."""

    def __init__(self, counts: Sequence[int], every: int = EVERY) -> None:
        self.counts, self.every, self.step = tuple(counts), every, 0
        self.balancer = Balancer(counts, 0)
        self.changes: list[int] = []

    def take(self, steps: int, seconds: Sequence[float]) -> None:
        for _ in range(steps):
            self.step += 1
            if self.step % self.every:
                continue
            new = self.balancer.observe(self.step, step_s(self.counts, seconds), seconds)
            if new is not None:
                self.changes.append(self.step)
                self.counts = new
                self.balancer.change(new, self.step)


@pytest.mark.parametrize("every", [1, EVERY])
def test_a_slow_rank_gets_less_and_all_back_within_20_steps(every: int) -> None:
    ranks = Ranks((6, 6), every)
    ranks.take(20, [1.0, 1.0])
    assert ranks.counts == (6, 6)
    for begins in range(7):
        ranks.take(20, [2.0, 1.0])
        assert ranks.counts == (4, 8)
        ranks.take(begins, [2.0, 1.0])
        ranks.take(20, [1.0, 1.0])
        assert ranks.counts == (6, 6)


def test_one_slow_window_is_chance() -> None:
    ranks = Ranks((6, 6))
    for _ in range(20):
        ranks.take(EVERY, [1.0, 1.0])
        ranks.take(EVERY, [3.0, 1.0])
    assert ranks.changes == []


def test_however_the_speeds_change_there_are_steps_between_two_changes() -> None:
    draw = random.Random(5)
    ranks = Ranks((4, 4, 4), every=1)
    for _ in range(3000):
        ranks.take(1, [draw.choice((1.0, 5.0)) for _ in range(3)])
    assert len(ranks.changes) > 3, "otherwise nothing was tried"
    gaps = [b - a for a, b in itertools.pairwise(ranks.changes)]
    assert min(gaps) >= 2 * WINDOW_STEPS


def test_short_steps_are_watched_for_longer() -> None:
    ranks = Ranks((6, 6))
    ranks.take(int(2 * WINDOW_S / 0.012) - EVERY, [0.002, 0.001])
    assert ranks.changes == []
    ranks.take(4 * EVERY, [0.002, 0.001])
    assert ranks.counts == (4, 8)


def test_without_the_times_of_all_ranks_nothing_changes() -> None:
    ranks = Ranks((6, 6))
    ranks.take(100, [0.0, 1.0])
    assert ranks.changes == []


def shares(counts: Sequence[int], rank: int, **settings: Any) -> Shares:
    config: Any = SimpleNamespace(
        **{"balance": True, "data_workers": 0, "log_every": 10} | settings
    )
    return Shares(ranges(counts), rank, config)


def report(*micro_batch_s: float) -> list[list[float]]:
    return [[1.0, 0.0, 0.0, each] for each in micro_batch_s]


def test_every_rank_decides_the_same_at_the_same_step() -> None:
    all_ranks = [shares([6, 6], rank, data_workers=1) for rank in range(2)]
    for step in range(1, 41):
        seconds = (2.0, 1.0) if step < 20 else (1.0, 1.0)
        times = report(*seconds) if all_ranks[0].times_due(step) else []
        assert len({each.stepped(step, times) for each in all_ranks}) == 1
        assert len({str(each.ranges) for each in all_ranks}) == 1
        if step == 20:
            assert all_ranks[1].own == range(4, 12)
    assert all_ranks[1].own == range(6, 12)


def test_times_are_due_at_log_steps_and_with_share_auto_for_its_windows() -> None:
    with_auto, without = shares([1, 1], 0), shares([1, 1], 0, balance=False)
    alone = shares([2], 0)
    due = [[s for s in range(1, 21) if each.times_due(s)] for each in (with_auto, without, alone)]
    assert due == [[5, 10, 15, 20], [10, 20], [10, 20]]


def test_without_share_auto_nothing_moves() -> None:
    fixed = shares([6, 6], 0, balance=False)
    assert not any(fixed.stepped(step, report(5.0, 1.0)) for step in range(1, 60))
    assert fixed.settled


@pytest.mark.parametrize("prefetched", [0, 2, 6])
def test_changes_at_any_step_leave_out_no_micro_batch(prefetched: int) -> None:
    """`prefetched` batches are drawn ahead, as data workers do."""
    micro_batches, steps, draw = 11, 60, random.Random(prefetched)
    dataset: Any = range(64)
    fetcher = MicroBatchFetcher(dataset, BatchPlan(SampleOrder(64, 0), 0, 11, 1), None)
    expected = list(fetcher.keys(range(micro_batches), range(steps)))
    all_ranks = [shares([4, 4, 3], rank, data_workers=prefetched // 2) for rank in range(3)]
    keys = [each.keys(fetcher, range(steps)) for each in all_ranks]
    drawn = [list(itertools.islice(k, prefetched)) for k in keys]
    computed, changes = [], 0
    for step in range(steps):
        for each, ahead, more in zip(all_ranks, drawn, keys, strict=True):
            for v in each.own:
                ahead += itertools.islice(more, 1)
                key = ahead.pop(0)
                assert (key.step, key.v) == (step, v)
                computed.append(key)
        cuts = sorted(draw.sample(range(1, micro_batches), 2))
        counts = [cuts[0], cuts[1] - cuts[0], micro_batches - cuts[1]]
        for each in all_ranks:
            if each._next is None:
                each.change(step + 1, counts)
        changes += len({each.stepped(step + 1, []) for each in all_ranks} & {True})
    assert computed == expected
    assert changes > steps / (2 * prefetched + 2)


def trained(place: Path, workload: str, processes: int, *arguments: str) -> Run:
    done = run(place / str(processes), workload, processes, "--log-every=1", *arguments)
    assert done.codes == [0] * processes, done.output
    return done


def losses(of: Run) -> list[float]:
    return [row["loss"] for row in jobs.rows(of.directory, "step")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [pytest.param("gpt", GPT, marks=pytest.mark.nightly), ("batch_norm_and_dropout", ())],
)
def test_a_change_at_every_step_changes_no_bit(
    name: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    flags = ("--steps=12", "--micro-batch-size=2", "--global-batch-size=22", *arguments)
    alone = trained(tmp_path, f"{MOVING}:{name}", 1, *flags)
    for processes in (2, 3, 4):
        workers = f"--data-workers={int(processes == 3)}"
        moved = trained(tmp_path, f"{MOVING}:{name}", processes, "--balance", workers, *flags)
        changes = {tuple(row["shares"]) for row in jobs.rows(moved.directory, "shares")}
        assert len(changes) > (2 if processes == 3 else 5), changes
        assert losses(moved) == losses(alone)
        jobs.assert_same_bits(moved.tensors(), alone.tensors())


@pytest.mark.slow
def test_a_throttled_rank_gets_less_until_the_throttle_is_lifted(tmp_path: Path) -> None:
    throttle, lifted = tmp_path / "throttle", 25
    flags = (f"--arg=file={json.dumps(str(throttle))}", f"--arg=until={lifted}", "--steps=45")
    even = trained(tmp_path / "even", f"{MOVING}:slow", 2, *flags, "--arg=micro_batch_s=0.001")
    throttle.touch()
    moved = trained(tmp_path / "moved", f"{MOVING}:slow", 2, "--balance", *flags)
    changes = [(row["step"], row["shares"]) for row in jobs.rows(moved.directory, "shares")]
    away, counts = changes[0]
    assert (away < lifted, counts[0] < counts[1], sum(counts)) == (True, True, 12)
    assert any(lifted < step <= lifted + 20 and back == [6, 6] for step, back in changes)
    said = f"share: auto, micro-batches from step {away + 1} on: rank 0: {counts[0]}, rank 1: {counts[1]}"
    assert said in moved.output
    by_step = {row["step"]: row["shares"] for row in jobs.rows(moved.directory, "ranks")}
    assert (by_step[away], by_step[away + 1]) == ([6, 6], counts)
    assert losses(moved) == losses(even)
    jobs.assert_same_bits(moved.tensors(), even.tensors())


def test_nothing_moves_if_a_micro_batch_gives_two_results(tmp_path: Path) -> None:
    done = trained(tmp_path, f"{MOVING}:impure", 2, "--balance", "--steps=3")
    assert "one micro-batch gave two results" in done.output
    assert jobs.rows(done.directory, "shares") == []


@pytest.mark.parametrize(
    ("facts", "balances"),
    [
        ({"torch": "2.13.0", "bits": {}}, True),
        ({"torch": "2.12.0", "bits": {}}, False),
        ({"torch": "2.13.0", "bits": {"gemm": "1"}}, False),
    ],
)
def test_nothing_moves_between_hosts_that_may_compute_other_bits(
    facts: dict[str, Any], balances: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Member(
        Fraction(1),
        "cpu",
        {"torch": "2.13.0", "bits": {"gemm": "0"} if facts["bits"] else {}},
        host="a",
    )
    assembly = Assembly([first, Member(Fraction(1), "cpu", facts, host="b")], [[0], [1]])
    split = shares([6, 6], 0)
    keep_if_hosts_differ(split, assembly, 0)
    assert split.balances is balances
    assert ("share: auto leaves the micro-batches" in capsys.readouterr().err) is not balances
