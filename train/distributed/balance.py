"""`share: auto`: how many micro-batches of a step each rank computes, by its measured seconds. Imports no torch.

Owns the decision. The decision follows from the times that all ranks receive in the step's exchange, so every rank
decides the same without a further message. The bits of the training do not depend on the decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# A window of reports has at least this many steps and seconds, because single steps differ by chance.
WINDOW_STEPS = 5
WINDOW_S = 0.5
# The split of the start is given up if another split makes a step shorter by LEAVE. It comes back if that gain falls
# below KEEP.
LEAVE, KEEP = 0.10, 0.05


def fastest(seconds: Sequence[float], micro_batches: int) -> tuple[int, ...]:
    """Return the numbers of micro-batches with the shortest step: at least one for each rank.

    `seconds`: the seconds of a micro-batch on each rank. Each micro-batch goes to the rank that would then be done
    first; ties go to the lower rank. This is the optimum for equal tasks.
    """
    counts = [1] * len(seconds)
    queue = [(2 * each, rank) for rank, each in enumerate(seconds)]
    heapq.heapify(queue)
    for _ in range(micro_batches - len(seconds)):
        _, rank = queue[0]
        counts[rank] += 1
        heapq.heapreplace(queue, ((counts[rank] + 1) * seconds[rank], rank))
    return tuple(counts)


def decide(
    seconds: Sequence[float], counts: tuple[int, ...], even: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the numbers of micro-batches to go on with. `counts`: the present numbers. `even`: those at the start.

    The result is stable: with the same `seconds` and the result as `counts`, the next result is the same.
    """

    def step_s(of: Sequence[int]) -> float:
        return max(count * each for count, each in zip(of, seconds, strict=True))

    best = fastest(seconds, sum(counts))
    if step_s(even) <= step_s(best) * (1 + (LEAVE if counts == even else KEEP)):
        return even
    return counts if step_s(counts) <= step_s(best) * (1 + LEAVE) else best


class Balancer:
    """Makes the same decisions on every rank, from successive reports.

    A rank's seconds are the lower ones of the last two windows, because one slow window may be chance. After a change
    both windows begin again, so there are at least 2 * WINDOW_STEPS steps between two changes.
    """

    settled = False
    """True if the newest two windows ask for no change."""

    def __init__(self, counts: Sequence[int], step: int) -> None:
        """`counts`: the micro-batches of each rank at the start. `step`: the number of complete steps."""
        self._even = tuple(counts)
        self._seen = step
        self.change(counts, step)

    def change(self, counts: Sequence[int], step: int) -> None:
        """Note that the ranks have `counts` micro-batches after `step`."""
        self._counts = tuple(counts)
        self._windows: list[list[float]] = []
        self.settled = False
        self._begin_window(step)

    def _begin_window(self, step: int) -> None:
        self._first, self._length_s, self._sums = step, 0.0, [0.0] * len(self._counts)

    def observe(self, step: int, step_s: float, seconds: Sequence[float]) -> tuple[int, ...] | None:
        """Take a report at the end of `step`. Returns the new numbers of micro-batches at a change, else None.

        `step_s`: mean seconds of a step. `seconds`: mean seconds of a micro-batch, for each rank; 0 if not known.
        """
        steps, self._seen = step - self._seen, step
        if not all(seconds):
            return None
        self._length_s += steps * step_s
        self._sums = [s + steps * each for s, each in zip(self._sums, seconds, strict=True)]
        if step - self._first < WINDOW_STEPS or self._length_s < WINDOW_S:
            return None
        self._windows = [*self._windows, [each / (step - self._first) for each in self._sums]][-2:]
        self._begin_window(step)
        if len(self._windows) < 2:
            return None
        counts = decide(list(map(min, *self._windows)), self._counts, self._even)
        self.settled = counts == self._counts
        return None if self.settled else counts
