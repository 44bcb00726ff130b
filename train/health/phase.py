"""The present phase of this process. The thread that trains sets it; the thread that sends heartbeats reads it.

Owns the names of the phases. Setting one costs some nanoseconds: it takes no lock, no file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

FORWARD, BACKWARD, DATA, UPDATE = "forward", "backward", "data", "optimizer step"
EXCHANGE = "the exchange at the end of the step"
SCRIPT = "the script"  # in a step of a user's own loop; only its backward passes are known
BUFFERS, SNAPSHOT = "exchange of buffers", "snapshot"
TRAINING = frozenset({FORWARD, BACKWARD, DATA, UPDATE, EXCHANGE, BUFFERS, SNAPSHOT, SCRIPT})
EVALUATION, RECORDS = "evaluation", "records"


class Phase:
    """`name`: one of the phases above, or a phase before or after the steps; "" before the first phase. `waits`: the
    number of nested waits for other processes."""

    __slots__ = ("name", "waits")

    def __init__(self) -> None:
        self.name = ""
        self.waits = 0


NOW = Phase()


@contextmanager
def doing(name: str) -> Iterator[None]:
    """Set the phase within the block, and restore the one before after it. After an error the phase stays."""
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
"""Within `with WAITING:` this process waits for other processes."""
