"""The present phase of this process. The thread that trains sets it; the thread that sends heartbeats reads it.

Owns the names of the phases, and the stages of a start. A new phase within a step is one assignment to NOW.name, which
takes no lock, no file and no clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from train.base import processes

FORWARD, BACKWARD, DATA, UPDATE = "forward", "backward", "data", "optimizer step"
EXCHANGE = "the exchange at the end of the step"
SCRIPT = "the script"  # in a step of a user's own loop; only its backward passes are known
BUFFERS, SNAPSHOT = "exchange of buffers", "snapshot"
TRAINING = frozenset({FORWARD, BACKWARD, DATA, UPDATE, EXCHANGE, BUFFERS, SNAPSHOT, SCRIPT})
EVALUATION, RECORDS = "evaluation", "records"

IMPORTING, JOINING, BUILDING = "importing torch", "joining", "building model and data"
LOADING, CONNECTING = "loading the checkpoint", "connecting the ranks"
LAUNCHER, PROCESS, FIRST_STEP = "launcher", "process", "first step"
# The stages of a start between the beginning of its process and its first step. Each stage ends when its phase ends.
STAGES = {
    "torch import": IMPORTING,
    "rendezvous": JOINING,
    "model": BUILDING,
    "restore": LOADING,
    "checks": CONNECTING,
}


class Phase:
    """`name`: one of the phases above, or a phase before or after the steps; "" before the first phase. `waits`: the
    number of nested waits for other processes. `ended`: the monotonic time at which each block of `doing` ended last."""

    __slots__ = ("ended", "name", "waits")

    def __init__(self) -> None:
        self.name = ""
        self.waits = 0
        self.ended: dict[str, float] = {}


NOW = Phase()


@contextmanager
def doing(name: str) -> Iterator[None]:
    """Set the phase for the block, and restore the earlier phase after it. After an error the new phase stays."""
    before, NOW.name = NOW.name, name
    yield
    NOW.name, NOW.ended[name] = before, time.monotonic()


def stages() -> dict[str, float]:
    """Return the stages of this start, now that its first step is done, in seconds since 1970.

    LAUNCHER and PROCESS have the times at which the parent process and this process began, the stages after them the
    times at which they ended.
    """
    now = time.time()
    since_1970 = now - time.monotonic()
    begun = {LAUNCHER: processes.age(os.getppid()), PROCESS: processes.age(os.getpid())}
    times = {name: now - age for name, age in begun.items() if age is not None}
    times |= {name: NOW.ended[end] + since_1970 for name, end in STAGES.items() if end in NOW.ended}
    return {name: round(at, 3) for name, at in {**times, FIRST_STEP: now}.items()}


class _Waiting:
    __slots__ = ()

    def __enter__(self) -> None:
        NOW.waits += 1

    def __exit__(self, *error: object) -> None:
        NOW.waits -= 1


WAITING = _Waiting()
"""Within `with WAITING:` this process waits for other processes."""
