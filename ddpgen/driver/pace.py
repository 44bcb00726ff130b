"""The driver's time limits in seconds, in one value, so that a test can be faster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The time limits. Each bounds a silence, and delays nothing if all is well."""

    # Two signals of a kind within this time count as one: the terminal sends a Ctrl-C, and `timeout` passes it on too.
    same: float = 0.5
    # Interval of the beats: a host that hears nothing for 45 s takes the driver for dead.
    beat: float = 5.0
    # To connect (10 s, more through jump hosts), log in and look at the host.
    check: float = 45.0
    # rsync ends if no byte moves for this long; a slow transfer may take any time.
    stall: float = 60.0
    # Interval at which the driver names hosts that have not answered yet.
    remind: float = 10.0
    # After a host has failed: the others often know why, and end by themselves in this time.
    alone: float = 10.0
    # After a host could not start: the others report their own faults in this time.
    refused: float = 3.0
    # After `kill`. A connection that died silently is noticed in this time, too.
    kill: float = 40.0
    # After one host is done: the others leave torchrun's exit barrier after 300 s at the latest.
    exit_barrier: float = 360.0
    # Interval at which an elastic job tries to start its lost hosts.
    retry: float = 10.0
    # Before a new start, hosts may have to reboot, or end processes that still run.
    again: float = 120.0
    # For the rest of the screen's lines at the end, if the terminal takes none of them.
    flush: float = 5.0


# A step is overdue after three times the last step's time, and not before 10 s, because a checkpoint or an evaluation
# takes some seconds. A first step may take 60 s.
_STILL_S, _STILL_TIMES, _FIRST_S = 10.0, 3, 60.0


def overdue(age: float, usual: float) -> bool:
    """True if the next step is overdue, `age` seconds after the last one, which took `usual` (0 if unknown)."""
    return age > (max(_STILL_S, _STILL_TIMES * usual) if usual else _FIRST_S)
