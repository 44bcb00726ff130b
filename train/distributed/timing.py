"""Time spent in a rank's steps, and the rank that the others wait for. Imports no torch.

Owns the clock of a rank and the judgement of all ranks' times. In a step, a rank computes, waits for a batch, or
waits for other ranks. The waits for other ranks are the time from the rank's last gradient to the end of the reduction,
and the time in the step's exchange.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

# A rank is named if it computes longer than the others by this part of a step, in so many reports in a row.
SLOW = 0.10
REPORTS = 3
# The length of a report: see StepClock.report.
REPORTED = 4


class StepTimes(NamedTuple):
    """The seconds of `steps` steps.

    `total`, `waiting`, `batches`: the seconds in total, of waits for ranks, and of waits for batches. `computing`: the
    seconds from the beginning of each step to its last gradient, without waits for ranks. These parts of the steps
    computed `micro_batches` micro-batches.
    """

    steps: int
    total: float
    waiting: float
    batches: float
    micro_batches: int
    computing: float

    def mean_since(self, before: StepTimes) -> list[float]:
        """Return the mean seconds of a step since `before`: total, waiting, batches; zeros if there was no step."""
        steps = max(1, self.steps - before.steps)
        return [(now - was) / steps for now, was in zip(self[1:4], before[1:4], strict=True)]

    def of_micro_batch_since(self, before: StepTimes) -> float:
        """Return the mean seconds of a micro-batch since `before`; 0 if there was none."""
        return (self.computing - before.computing) / max(
            1, self.micro_batches - before.micro_batches
        )


class StepClock:
    """This rank's times in its steps."""

    def __init__(self) -> None:
        self._step_started_at = self._ready_at = self._waited_in_step = 0.0
        self._steps = self._micro_batches = self._in_step = 0
        self._total = self._waiting = self._batches = self._computing = 0.0
        self._reported = self.totals()

    def begin(self) -> None:
        """Note that a step begins."""
        self._in_step, self._waited_in_step = 0, 0.0
        self._step_started_at = time.perf_counter()

    def end(self) -> None:
        """Note that the step is over."""
        self._total += time.perf_counter() - self._step_started_at
        self._steps += 1

    def ready(self) -> None:
        """Note that the last gradient of this rank is computed. The rest of the backward pass is waiting."""
        self._ready_at = time.perf_counter()

    def reduced(self) -> None:
        """Note that the backward pass is over."""
        if self._ready_at:
            self._waiting += time.perf_counter() - self._ready_at
            self._computing += self._ready_at - self._step_started_at - self._waited_in_step
            self._micro_batches += self._in_step
            self._ready_at = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this context the rank waits for other ranks."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._waiting += seconds
        self._waited_in_step += seconds

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within this context the rank waits for a batch."""
        began = time.perf_counter()
        yield
        self._batches += time.perf_counter() - began
        self._in_step += 1

    def report(self) -> list[float]:
        """Return the mean seconds of a step since the last report: in total, of waits for ranks, of waits for batches.
        The fourth number is the mean seconds of a micro-batch.

        All are zero before the first step.
        """
        before, self._reported = self._reported, self.totals()
        return [*self._reported.mean_since(before), self._reported.of_micro_batch_since(before)]

    def totals(self) -> StepTimes:
        """Return the times of all steps so far."""
        spent = self._total, self._waiting, self._batches
        return StepTimes(self._steps, *spent, self._micro_batches, self._computing)


@dataclass(frozen=True)
class Slow:
    """A rank that the others wait for. `cost`: how much longer it computes than they do, as a part of a step."""

    rank: int
    cost: float


def slowest(step_s: float, waiting: Sequence[float]) -> Slow | None:
    """Return the rank that waits least if it costs the others more than SLOW of a step, else None."""
    if len(waiting) < 2 or step_s <= 0:
        return None
    rank = min(range(len(waiting)), key=lambda r: waiting[r])
    others = statistics.median(w for r, w in enumerate(waiting) if r != rank)
    cost = (others - waiting[rank]) / step_s
    return Slow(rank, cost) if cost > SLOW else None


def remedy(rank: int, shares: Sequence[int], balances: bool = False) -> str:
    """Return the remedy for a slow rank, in words.

    `shares`: the number of micro-batches of each rank. `balances`: true if `share: auto` has moved micro-batches as far
    as that helps.
    """
    if balances:
        return (
            f"share: auto has {sum(shares)} micro-batches a step to move, and {shares[rank]} of them are there: fewer "
            "samples in micro_batch_size give it more of them (in a new run), or see what else runs there"
        )
    if shares[rank] > min(shares):
        return (
            f"it has {shares[rank]} micro-batches of a step and others {min(shares)}: choose a global_batch_size that is "
            "shared out evenly"
        )
    return "see what else runs there; on the tier hosts, share: auto gives a slower host fewer micro-batches"


class SlowRanks:
    """Decides from successive reports which rank to name, because one slow report may be chance."""

    slow_rank: Slow | None = None
    """The rank that is slow now, with its mean cost in the newest reports, or None."""

    def __init__(self) -> None:
        self._reports_in_row: list[Slow] = []

    def observe(self, step_s: float, waiting: Sequence[float]) -> Slow | None:
        """Take a report. Returns `slow_rank` if it is now another rank than before, else None."""
        slow, before = slowest(step_s, waiting), self.slow_rank
        if slow is None or (self._reports_in_row and self._reports_in_row[-1].rank != slow.rank):
            self._reports_in_row.clear()
        self._reports_in_row = [*self._reports_in_row, slow][-REPORTS:] if slow is not None else []
        self.slow_rank = None
        if len(self._reports_in_row) == REPORTS:
            cost = statistics.fmean(report.cost for report in self._reports_in_row)
            self.slow_rank = Slow(self._reports_in_row[-1].rank, cost)
        is_new = self.slow_rank is not None and (
            before is None or before.rank != self.slow_rank.rank
        )
        return self.slow_rank if is_new else None
