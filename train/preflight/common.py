"""Shared by the head and the clients: a host's own checks, and the lines for people who wait at the terminal."""

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

SILENT_S = 4.0  # three missing heartbeats
REPLY_S = 1.0  # from the connection to the first message of the program that answers
EXAMINED_S = 12.0
_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 10.0
_UNSAID = 32  # lines that may wait to be printed
_FLUSH_S = 1.0


def slack_s(nodes: int) -> float:
    """Seconds to add to a wait, because a host needs longer to answer if this many hosts come at once."""
    return nodes / 1000


class Printer:
    """Prints lines in a thread of its own, so that a paused terminal or a full pipe does not hold up the exchange.
    Lines that do not fit into its queue are dropped."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._lines: queue.Queue[str] = queue.Queue(_UNSAID)
        self._thread = threading.Thread(target=self._print, args=[print_line], daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Print the line as soon as the terminal takes it."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(text)

    def end(self) -> None:
        """Wait until all lines are printed, at most a second."""
        self.say("")
        self._thread.join(_FLUSH_S)

    def _print(self, print_line: Callable[[str], None]) -> None:
        while text := self._lines.get():
            print_line(text)


@dataclass
class Waiting:
    """Says for whom this host waits: after 5 s, then every 10 s."""

    print_line: Callable[[str], None]
    next_s: float = field(default_factory=lambda: time.monotonic() + _FIRST_LINE_S)

    def print_if_due(self, text: str) -> None:
        """Print the line if it is time for one."""
        if text and time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + _NEXT_LINE_S
            self.print_line(text)


async def examined(settings: Settings, examine: Callable[[], Report]) -> Report:
    """The report of this host. If its checks do not end within EXAMINED_S, the report says only that they hang."""
    try:
        return await within(background(examine), EXAMINED_S)
    except asyncio.TimeoutError:
        hangs = messages.hangs(NamedHost(settings.host_name), "its own checks", EXAMINED_S)
        return Report.from_settings(settings, [hangs])


def is_bad(settings: Settings, findings: Sequence[Finding]) -> bool:
    """True if a host with these findings must not take part."""
    return any(f.is_error and f.code not in settings.ignore for f in findings)
