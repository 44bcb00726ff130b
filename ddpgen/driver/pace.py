"""How long the driver waits for what, in seconds: one value, so that a test can be faster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Each is a bound on a silence, never a delay when all is well."""

    # Two signals of a kind in this time are one: `timeout` passes a Ctrl-C on that the terminal has sent as well.
    same: float = 0.5
    # Hosts take 45 s without a word as the driver's death.
    beat: float = 5.0
    # Connect (10 s, more through jump hosts), log in, look around.
    check: float = 45.0
    # rsync ends when nothing moved for this long; a slow wire may take its time.
    stall: float = 60.0
    # Who has not answered yet is named this often.
    remind: float = 10.0
    # A host has failed: the others often know why, and end by themselves.
    alone: float = 10.0
    # A host cannot start at all: the others report what else is wrong in this time.
    refused: float = 3.0
    # After `kill`; a connection that is silently dead is noticed within this, too.
    kill: float = 40.0
    # One host is done: the others leave torchrun's exit barrier (300 s) at the latest.
    exit_barrier: float = 360.0
    # An elastic job looks for its lost hosts.
    retry: float = 10.0
    # Hosts that are to start anew may have to reboot, or get rid of what still runs there.
    again: float = 120.0
    # What the screen still has to show at the end, with nothing moving.
    flush: float = 5.0


# After three times as long as it took before, and some seconds for a checkpoint or an evaluation. A first step
# may take long.
_STILL_S, _STILL_TIMES, _FIRST_S = 10.0, 3, 60.0


def overdue(age: float, usual: float) -> bool:
    """Whether the next step is, `age` seconds after the last one, which took `usual` (0: not known)."""
    return age > (max(_STILL_S, _STILL_TIMES * usual) if usual else _FIRST_S)
