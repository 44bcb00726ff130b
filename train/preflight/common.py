"""What head and clients do alike: their own checks, and the lines for whoever waits at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from train.preflight import messages
from train.preflight.finding import Finding
from train.preflight.phrases import NamedHost
from train.preflight.report import Report
from train.preflight.settings import Settings
from train.preflight.wire import background, within

SILENT_S = 4.0  # three heartbeats that did not come
REPLY_S = 1.0  # for the first message of whoever answers
EXAMINED_S = 12.0
_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 10.0
_UNSAID = 32  # lines
_FLUSH_S = 1.0


def slack_s(nodes: int) -> float:
    """How much longer everything may take because so many come at once."""
    return nodes / 1000


class Printer:
    """Prints lines in a thread of its own: neither a paused terminal nor a full pipe holds up the
    exchange. What does not fit into its queue is dropped."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._lines: queue.Queue[str] = queue.Queue(_UNSAID)
        self._thread = threading.Thread(target=self._print, args=[say], daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Print it as soon as the terminal takes it."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(text)

    def end(self) -> None:
        """Wait, but not for long, until all is printed."""
        self.say("")
        self._thread.join(_FLUSH_S)

    def _print(self, say: Callable[[str], None]) -> None:
        while text := self._lines.get():
            say(text)


@dataclass
class Waiting:
    """Says whom this host waits for: after 5 s, then every 10 s."""

    say: Callable[[str], None]
    next_s: float = field(default_factory=lambda: time.monotonic() + _FIRST_LINE_S)

    def tell(self, text: str) -> None:
        """Say it if it is time."""
        if text and time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + _NEXT_LINE_S
            self.say(text)


async def examined(settings: Settings, examine: Callable[[], Report]) -> Report:
    """The report of this host; one that says so, if its own checks do not end."""
    try:
        return await within(background(examine), EXAMINED_S)
    except asyncio.TimeoutError:
        hangs = messages.hangs(NamedHost(settings.me), "its own checks", EXAMINED_S)
        return Report.of(settings, [hangs])


def is_bad(settings: Settings, findings: Sequence[Finding]) -> bool:
    """Whether a host of which these are true must not take part."""
    return any(f.is_error and f.code not in settings.ignore for f in findings)
