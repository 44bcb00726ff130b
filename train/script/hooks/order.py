"""The batches of a DataLoader on which a script has trained, to check that a start goes on at the right batch."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, NamedTuple


class DataPosition(NamedTuple):
    """The position of a save in an iteration over the data.

    `batches`: the number of batches that the script had received. `first`, `last`, `next`: hashes of the iteration's
    first batch, of the last batch received, and of the batch after that. All are 0 or "" if the position is not known,
    or if the iteration was at its end.
    """

    batches: int = 0
    first: str = ""
    last: str = ""
    next: str = ""


class Iteration:
    """One iteration over a DataLoader."""

    def __init__(self, total: int, sampler: Any = None) -> None:
        """`total`: the number of the iteration's batches, 0 if not known. `sampler`: the DataLoader's sampler."""
        self._total, self._count = total, 0
        self.sampler = sampler
        self._drawn_batches: deque[str] = deque()
        self._last = ""
        # Hashes of the batches before the first step of this start, and always of the iteration's first batch.
        self.given_batches: list[str] = []

    def note_drawn(self, indices: Any) -> None:
        """Note that the sampler has named a batch, which workers may prepare ahead."""
        if 0 < self._count == self._total:  # a new epoch: persistent workers reuse this iterator
            self._count, self.given_batches = 0, []
        self._drawn_batches.append(hashlib.sha256(repr(indices).encode()).hexdigest()[:16])

    def note_given(self, before_first_step: bool) -> str:
        """Note that the script has received the next batch, and return its hash."""
        self._count += 1
        self._last = self._drawn_batches.popleft()
        if before_first_step or not self.given_batches:
            self.given_batches.append(self._last)
        return self._last

    @property
    def at_first(self) -> str:
        """The hash of the batch that was given last, if it is the first one; else ""."""
        return self._last if self._count == 1 else ""

    @property
    def is_over(self) -> bool:
        return self._count == self._total

    def position(self) -> DataPosition:
        """Return the position after the batch that was given last."""
        if self._count in (0, self._total):
            return DataPosition()
        coming = self._drawn_batches[0] if self._drawn_batches else ""
        return DataPosition(self._count, self.given_batches[0], self._last, coming)


class _Epoch(NamedTuple):
    first: str
    steps: int
    is_over: bool


class Epochs:
    """The last epoch of each sampler that shuffles by the number of the epoch, as torch's DistributedSampler does."""

    def __init__(self) -> None:
        self._last: dict[int, _Epoch] = {}

    def repeats(self, iteration: Iteration, steps: int) -> bool:
        """Return True if an epoch begins with the same batch as the epoch before it, and the script has trained on the
        whole earlier epoch. `steps`: the script's steps so far. The caller asks after each batch."""
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


def order_fault(saved: DataPosition, batches: list[str]) -> str:
    """Return the fault of going on from `saved` with these `batches`; "" if there is no fault, or none is known.

    `batches`: the hashes of the batches up to the end of the first step. A loop may skip batches by taking them, or let
    the sampler skip them, and it may have taken one batch ahead of the step.
    """
    if not saved.batches or not batches:
        return ""
    skipped = batches[saved.batches :] if batches[0] == saved.first else batches
    if not skipped:
        return f"the epoch begins again: its first {saved.batches} batches are trained on twice"
    if saved.next and skipped[0] not in (saved.last, saved.next):
        return "the samples come in another order than before"
    return ""
