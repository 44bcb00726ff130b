"""The driver's time limits in seconds, in one value, so that a test can be faster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The time limits. Each bounds a silence, and delays nothing if all is well."""

    # Two signals of a kind within this time count as one: the terminal sends a Ctrl-C, and `timeout` passes it on too.
    signal_repeat: float = 0.5
    # Interval of the beats: a host that hears nothing for 45 s takes the driver for dead.
    beat: float = 5.0
    # To connect (10 s, more through jump hosts), log in and look at the host.
    check: float = 45.0
    # rsync ends if no byte moves for this long; a slow transfer may take any time.
    stall: float = 60.0
    # Interval at which the driver names hosts that have not answered yet.
    reminder: float = 10.0
    # After a host has failed: the others often know why, and end by themselves in this time.
    after_failure: float = 10.0
    # After a host could not start: the others report their own faults in this time.
    after_refusal: float = 3.0
    # After `kill`. A connection that died silently is noticed in this time, too.
    after_kill: float = 40.0
    # After one host is done: the others leave torchrun's exit barrier after 300 s at the latest.
    after_success: float = 360.0
    # Interval at which an elastic job tries to start its lost hosts.
    retry: float = 10.0
    # Before a new start, hosts may have to reboot, or end processes that still run.
    hosts_return: float = 120.0
    # For the rest of the screen's lines at the end, if the terminal takes none of them.
    flush: float = 5.0


# A step is overdue after three times the last step's time, and not before 10 s, because a checkpoint or an evaluation
# takes some seconds. A first step may take 60 s.
_OVERDUE_S, _OVERDUE_STEPS, _FIRST_STEP_S = 10.0, 3, 60.0


def overdue(age_s: float, step_s: float) -> bool:
    """True if the next step is overdue, `age_s` after the last one, which took `step_s` (0 if unknown)."""
    return age_s > (max(_OVERDUE_S, _OVERDUE_STEPS * step_s) if step_s else _FIRST_STEP_S)
