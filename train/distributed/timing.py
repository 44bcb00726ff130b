"""Time spent in a rank's steps, and the rank that the others wait for. Imports no torch.

Owns the clock of a rank and the judgement of all ranks' times. In a step, a rank computes, waits for a batch, or
waits for other ranks. The waits for other ranks are the time from the rank's last gradient to the end of the reduction,
and the time in the step's exchange.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

# A rank is named if it computes longer than the others by this part of a step, in so many reports in a row.
SLOW = 0.10
REPORTS = 3


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


class HostTime:
    """The source of a clock's times on a processor: seconds since some time."""

    def mark(self) -> Any:
        """Return the present."""
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        return float(end - begin)

    def is_past(self, mark: Any) -> bool:
        """Return whether the work before this mark is done."""
        return True


class _Step:
    """The marks of a step. `waits`, `batches`: beginnings and ends. `waits_before`: the number of waits in `computing`."""

    ready: Any = None
    reduced: Any = None
    end: Any = None

    def __init__(self, begin: Any) -> None:
        self.begin = begin
        self.waits: list[tuple[Any, Any]] = []
        self.batches: list[tuple[Any, Any]] = []
        self.waits_before = 0


class StepClock:
    """This rank's times in its steps. A step counts as soon as its work is done."""

    def __init__(self, source: HostTime | None = None) -> None:
        self._source = source or HostTime()
        self._mark = self._source.mark
        self._step = _Step(None)
        self._ended: deque[_Step] = deque()
        self._steps = self._micro_batches = 0
        self._total = self._waiting = self._batches = self._computing = 0.0
        self._reported = self.totals()

    def begin(self) -> None:
        """Note that a step begins."""
        self._step = _Step(self._mark())

    def end(self) -> None:
        """Note that the step is over."""
        self._step.end = self._mark()
        self._ended.append(self._step)
        self._count_done()

    def ready(self) -> None:
        """Note that the last gradient of this rank is computed. The rest of the backward pass is waiting."""
        self._step.ready = self._mark()

    def reduced(self) -> None:
        """Note that the backward pass is over."""
        self._step.reduced = self._mark()
        self._step.waits_before = len(self._step.waits)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this context the rank waits for other ranks."""
        began = self._mark()
        yield
        self._step.waits.append((began, self._mark()))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within this context the rank waits for a batch."""
        began = self._mark()
        yield
        self._step.batches.append((began, self._mark()))

    def _count_done(self) -> None:
        while self._ended and self._source.is_past(self._ended[0].end):
            self._count(self._ended.popleft())

    def _count(self, step: _Step) -> None:
        seconds = self._source.seconds
        waits = [seconds(*wait) for wait in step.waits]
        self._steps += 1
        self._total += seconds(step.begin, step.end)
        self._waiting += sum(waits)
        self._batches += sum(seconds(*batch) for batch in step.batches)
        if step.ready is not None:
            self._waiting += seconds(step.ready, step.reduced)
            before = sum(waits[: step.waits_before])
            self._computing += seconds(step.begin, step.ready) - before
            self._micro_batches += len(step.batches)

    def report(self) -> list[float]:
        """Return the mean seconds of a step since the last report: in total, of waits for ranks, of waits for batches.
        The fourth number is the mean seconds of a micro-batch.

        All are zero before the first step.
        """
        before, self._reported = self._reported, self.totals()
        return [*self._reported.mean_since(before), self._reported.of_micro_batch_since(before)]

    def totals(self) -> StepTimes:
        """Return the times of all steps so far whose work is done."""
        self._count_done()
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
