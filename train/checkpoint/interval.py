"""How long to train between two checkpoints, where it follows from what interrupts the training.

Owns Young's formula and the words for what comes out. Measures nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Before anything is measured.
FIRST_S = 60.0
_WORTH_SAYING = 1.5


def best_interval(cost_s: float, mean_s: float) -> float:
    """Seconds between checkpoints that cost `cost_s` each, where an interruption comes every `mean_s`
    on average.

    sqrt(2 C M): J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
    17(9), 1974. J. T. Daly's higher order estimate (FGCS 22(3), 2006) differs by less than C, which
    is less than what M is known by. Bounded by M, and from below by 2 C, so that a checkpoint takes
    half of the time at most: there the formula is far from where it holds.
    """
    return max(2 * cost_s, min(mean_s, math.sqrt(2 * cost_s * mean_s)))


class Interval:
    """The interval in force, which follows what the last checkpoint took."""

    def __init__(self, mean_s: float, say: Callable[[str], None]) -> None:
        """`mean_s`: between two interruptions, on average."""
        self._mean_s, self._say = mean_s, say
        self._said = 0.0
        self.seconds = min(FIRST_S, mean_s)

    def measured(self, cost_s: float) -> None:
        """A checkpoint took so long, from the copy until it was committed."""
        self.seconds = best_interval(cost_s, self._mean_s)
        low, high = sorted((self.seconds, self._said))
        if high > _WORTH_SAYING * low:
            self._said = self.seconds
            self._say(
                f"a checkpoint takes {cost_s:.1f} s and an interruption is expected every "
                f"{self._mean_s:.0f} s: the next ones are {self.seconds:.0f} s apart"
            )
