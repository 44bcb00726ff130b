"""What head and clients do alike in the exchange: their own checks, saying whom they wait for, the
message they introduce themselves with."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from train.preflight import messages
from train.preflight.report import COUNT, PORT, Report, number
from train.preflight.settings import Settings
from train.preflight.table import visible
from train.preflight.wire import Message, background, within

VERSION = 2  # of the exchange
SILENT_S = 4.0  # three beats that did not come
REPLY_S = 1.0  # for the first message of whoever answers
EXAMINED_S = 12.0
_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 10.0
_UNSAID = 32  # lines
_FLUSH_S = 1.0
_MOST = 200  # characters of others, on this host's terminal


def beat_s(nodes: int) -> float:
    """How often the head tells everybody that it is there: so that it never does only that."""
    return max(1.0, nodes / 2500)


def slack_s(nodes: int) -> float:
    """How much longer everything may take because so many come at once."""
    return nodes / 1000


def printable(text: str, most: int = _MOST) -> str:
    """What came over the network, for the terminal."""
    shown = visible(text)
    return shown if len(shown) <= most else shown[:most] + "..."


class Printer:
    """Prints lines in a thread of its own: neither a paused terminal nor a full pipe holds up the
    exchange. Of too many lines that wait to be said the oldest is dropped."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lines: deque[str] = deque(maxlen=_UNSAID)
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """At once, as far as it goes."""
        with self._changed:
            self._lines.append(text)
            self._changed.notify()

    def end(self) -> None:
        """Wait, but not for long, until all is said."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(_FLUSH_S)
        self._lines.clear()

    def _speak(self) -> None:
        while (text := self._next()) is not None:
            self._say(text)

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._over)
            return self._lines.popleft() if self._lines else None


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


@dataclass(frozen=True)
class Hello:
    """What a host says of its part in the launch, before it knows more. `way`: "", or what its own
    attempts at the head met ("timeout"), when the head had to call; `to`: the address they went to."""

    job: str
    host: str
    rank: int
    nodes: int
    world_size: int
    head: str
    instance: str
    role: str
    port: int
    way: str = ""
    to: str = ""
    preflight: int = VERSION

    @classmethod
    def of(cls, settings: Settings, instance: str, port: int) -> Hello:
        """This host's; `port`: where it listens for probes."""
        role = "head" if settings.is_head else "client"
        counts = (settings.node_rank, settings.nodes, settings.world_size)
        return cls(settings.job, settings.me, *counts, settings.head, instance, role, port)

    def as_json(self) -> dict[str, Any]:
        """For the wire."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, message: Message) -> Hello:
        """From the wire, of any version. Raises ValueError."""
        known = {name: message.get(name) for name in cls.__dataclass_fields__}
        numbers = ("rank", "nodes", "world_size", "port", "preflight")
        for name, value in known.items():
            if type(value) is not (int if name in numbers else str):
                raise ValueError(f"no hello: {name}")
            if isinstance(value, str) and len(value) > 255:
                raise ValueError(f"no hello: {name}")
            if isinstance(value, int):
                number(value, *((0, PORT) if name == "port" else (-COUNT, COUNT)))
        return cls(**known)  # type: ignore[arg-type]


def new_instance() -> str:
    """What tells this process from one that was started in its place."""
    return secrets.token_hex(8)


async def examined(settings: Settings, examine: Callable[[], Report]) -> Report:
    """The report of this host; one that says so, if its own checks do not end."""
    try:
        return await within(background(examine), EXAMINED_S)
    except asyncio.TimeoutError:
        finding = messages.hangs(settings.me, "its own checks", EXAMINED_S)
        counts = (settings.node_rank, settings.nodes, settings.world_size, settings.procs)
        return Report(settings.me, *counts, settings.head, findings=(finding,))


def is_bad(settings: Settings, report: Report) -> bool:
    """Whether the host must not take part."""
    return any(f.is_error and f.code not in settings.ignore for f in report.findings)
