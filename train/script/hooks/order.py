"""Which batches of its DataLoader a script has trained on: enough to tell whether a start goes on at the right one."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, NamedTuple


class DataPosition(NamedTuple):
    """Where a save lies in an iteration over the data: after `batches` of it were given; hashes of its `first` batch,
    of the `last` of those, and of the one that came `next`. 0 and "" where that is not known, or it was at its end."""

    batches: int = 0
    first: str = ""
    last: str = ""
    next: str = ""


class Iteration:
    """One iteration over a DataLoader."""

    def __init__(self, total: int, sampler: Any = None) -> None:
        """`total`: its batches; 0 where that is not known. `sampler`: the DataLoader's."""
        self._total, self._count = total, 0
        self.sampler = sampler
        self._drawn: deque[str] = deque()
        self._last = ""
        # Those before the first step of this start, the first one among them.
        self.given: list[str] = []

    def drew(self, indices: Any) -> None:
        """The sampler has named a batch, which workers may prepare ahead."""
        if 0 < self._count == self._total:  # workers that persist begin again
            self._count, self.given = 0, []
        self._drawn.append(hashlib.sha256(repr(indices).encode()).hexdigest()[:16])

    def gave(self, before_first_step: bool) -> str:
        """The script has got the next batch: its hash."""
        self._count += 1
        self._last = self._drawn.popleft()
        if before_first_step or not self.given:
            self.given.append(self._last)
        return self._last

    @property
    def at_first(self) -> str:
        """The batch that was given last, if it is the first one; else ""."""
        return self._last if self._count == 1 else ""

    @property
    def is_over(self) -> bool:
        return self._count == self._total

    def place(self) -> DataPosition:
        """After the batch that was given last."""
        if self._count in (0, self._total):
            return DataPosition()
        coming = self._drawn[0] if self._drawn else ""
        return DataPosition(self._count, self.given[0], self._last, coming)


class _Epoch(NamedTuple):
    first: str
    steps: int
    is_over: bool


class Epochs:
    """The last epoch of each sampler that shuffles by the epoch's number, as torch's DistributedSampler does."""

    def __init__(self) -> None:
        self._last: dict[int, _Epoch] = {}

    def repeats(self, iteration: Iteration, steps: int) -> bool:
        """Return True if an epoch begins like the whole one before it, on which the script has trained. `steps`: the
        script's steps so far. The caller asks after each batch."""
        sampler = iteration.sampler
        if not (hasattr(sampler, "set_epoch") and getattr(sampler, "shuffle", False)):
            return False
        before = self._last.get(id(sampler))
        if iteration.at_first:
            self._last[id(sampler)] = _Epoch(iteration.at_first, steps, iteration.is_over)
            again = before is not None and before.is_over and before.first == iteration.at_first
            return again and before is not None and steps > before.steps
        if iteration.is_over and before is not None:
            self._last[id(sampler)] = before._replace(is_over=True)
        return False


def fault(saved: DataPosition, given: list[str]) -> str:
    """What is wrong with going on from `saved` with these batches, up to the end of the first step; "" if nothing
    is, or it is not known. A loop may skip batches by taking them, or have the sampler skip them; and it may have
    taken one batch ahead of the step."""
    if not saved.batches or not given:
        return ""
    skipped = given[saved.batches :] if given[0] == saved.first else given
    if not skipped:
        return f"the epoch begins again: its first {saved.batches} batches are trained on twice"
    if saved.next and skipped[0] not in (saved.last, saved.next):
        return "the samples come in another order than before"
    return ""
