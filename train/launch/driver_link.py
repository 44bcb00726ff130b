"""The line from the driver of several hosts to the supervisor of one: words on standard input.

Owns the meaning of each word, and the meaning of silence: the driver or the network is gone, so this host has to end by
itself. Knows nothing of ssh.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from train.base.console import say
from train.launch.events import Due, Event, Events, Readable, Signal

# The driver sends a beat every 5 s.
SILENCE_S = 45.0
# If the driver itself is gone, its loss reaches all hosts within a beat. The head's clean stop then ends the others.
HEAD_FIRST_S = 10.0
_SILENT, _TIMEOUT = "the driver is silent", "a clean stop takes too long"
_HEAD_FIRST = "the head has not stopped the job"


def take_standard_input() -> int:
    """Return a descriptor of the driver's words. From now on standard input itself is empty, also for every child."""
    line = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return line


class DriverLink:
    """Turn the driver's words into signals.

    `stop` becomes TERM and `kill` KILL. Silence and end of file become HUP, and KILL after another `timeout_s` seconds,
    because no healthy step takes longer. `leaves`: return True if the others go on without this host; then HUP comes
    HEAD_FIRST_S later.
    """

    def __init__(
        self, events: Events, line: int, timeout_s: float, leaves: Callable[[], bool]
    ) -> None:
        self._events, self._timeout_s, self._leaves = events, timeout_s, leaves
        self._unfinished, self._lost = b"", False
        events.watch_descriptor(line)
        events.set_alarm(_SILENT, SILENCE_S)

    def on_event(self, event: Event) -> None:
        """Handle data from the driver, or an alarm."""
        if isinstance(event, Due) and event.name == _TIMEOUT:
            self._events.inject(Signal("KILL"))
        elif isinstance(event, Due) and event.name == _HEAD_FIRST:
            self._events.inject(Signal("HUP"))
        elif self._lost:
            return  # data that still comes was sent earlier
        elif isinstance(event, Due) and event.name == _SILENT:
            self._on_lost(f"nothing heard from the driver for {SILENCE_S:.0f} s")
        elif isinstance(event, Readable) and not event.data:
            self._on_lost("the driver has gone away")
        elif isinstance(event, Readable):
            self._hear(event.data)

    def _hear(self, data: bytes) -> None:
        self._events.set_alarm(_SILENT, SILENCE_S)
        *words, self._unfinished = (self._unfinished + data).split(b"\n")
        meaning = {b"stop": "TERM", b"kill": "KILL"}
        for word in words:
            if name := meaning.get(word.strip()):
                self._events.inject(Signal(name))

    def _on_lost(self, reason: str) -> None:
        self._lost = True
        leaves = self._leaves()
        # If the connection is gone, nobody reads this line.
        say(f"{reason}; {'leaving the other hosts' if leaves else 'asking for a clean stop'}")
        self._events.set_alarm(_TIMEOUT, self._timeout_s)
        if leaves:
            self._events.set_alarm(_HEAD_FIRST, HEAD_FIRST_S)
        else:
            self._events.inject(Signal("HUP"))
