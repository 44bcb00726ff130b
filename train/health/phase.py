"""What this process does at present: set by the thread that trains, read by the one that sends heartbeats.

Owns the names of the phases. To set one costs a step some nanoseconds: no lock, no file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

FORWARD, BACKWARD, DATA, UPDATE = "forward", "backward", "data", "optimizer step"
EXCHANGE = "the exchange at the end of the step"
SCRIPT = "the script"  # in a step of a user's own loop: of what it does, only its backward passes are known
BUFFERS, SNAPSHOT = "exchange of buffers", "snapshot"
TRAINING = frozenset({FORWARD, BACKWARD, DATA, UPDATE, EXCHANGE, BUFFERS, SNAPSHOT, SCRIPT})
EVALUATION, RECORDS = "evaluation", "records"


class Phase:
    """`name`: one of the above, or of what comes before and after the steps; "" before the first.
    `waits`: in how many waits for other processes it is, one inside of the other."""

    __slots__ = ("name", "waits")

    def __init__(self) -> None:
        self.name = ""
        self.waits = 0


NOW = Phase()


@contextmanager
def doing(name: str) -> Iterator[None]:
    """In here the phase is this; after a good end what it was before. After an error it stays."""
    before, NOW.name = NOW.name, name
    yield
    NOW.name = before


class _Waiting:
    __slots__ = ()

    def __enter__(self) -> None:
        NOW.waits += 1

    def __exit__(self, *error: object) -> None:
        NOW.waits -= 1


WAITING = _Waiting()
"""`with WAITING:` it waits for other processes."""
