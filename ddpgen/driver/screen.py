"""What the user sees: every host's lines with its name before them, and our own.

Owns prefixes, colours and tables. A thread of its own writes: a terminal that is slow, paused or gone
costs lines on the screen (they are in the logs), never the job a moment.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from .lines import shown

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_HELD = 4 << 20
_WIDEST = 24


class Screen:
    """Two outputs, one order. Nothing here blocks the caller, but close(), which is bounded."""

    def __init__(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        out: int = 1,
        err: int = 2,
        logs: str = "",
    ) -> None:
        self._out, self._err, self._logs = out, err, logs
        colours = _is_terminal(out) and not environment.get("NO_COLOR")
        colours = colours and environment.get("TERM") != "dumb"
        width = min(_WIDEST, max(map(len, names), default=0))
        self._prefixes = {
            name: _prefix(name, width, _COLOURS[number % len(_COLOURS)] if colours else None)
            for number, name in enumerate(names)
        }
        self._queue: deque[tuple[int, bytes]] = deque()
        self._held = self._dropped = self._written = 0
        self._changed = threading.Condition()
        self._closing = False
        self._dead: set[int] = set()
        self._thread = threading.Thread(target=self._write_on, name="screen", daemon=True)
        self._thread.start()

    def lines(self, host: str, lines: Sequence[str]) -> None:
        """Show lines of `host`; those that a slow reader would wait for are counted instead."""
        self._show(self._out, host, lines)

    def quote(self, host: str, lines: Sequence[str]) -> None:
        """Show lines of `host` as part of a message of ours, where that one goes."""
        self._show(self._err, host, lines)

    def _show(self, fd: int, host: str, lines: Sequence[str]) -> None:
        prefix = self._prefixes[host]
        data = "".join(f"{prefix}{line}\n" for line in lines).encode()
        with self._changed:
            if self._held + len(data) > _HELD:
                self._dropped += len(lines)
                return
            self._tell_dropped()
            self._put(fd, data)

    def say(self, message: str) -> None:
        """One message of ours, on the error output."""
        with self._changed:
            self._tell_dropped()
            lines = [
                f"ddpgen: {shown(line.encode('utf-8', 'replace'))}\n"
                for line in message.split("\n")
            ]
            self._put(self._err, "".join(lines).encode())

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Rows with aligned columns, the first one the heading."""
        for line in table(rows):
            self.say(line)

    def close(self, timeout_s: float) -> None:
        """Show what is left, as long as somebody reads."""
        with self._changed:
            self._tell_dropped()
            self._closing = True
            self._changed.notify_all()
        progress, since = -1, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < timeout_s:
            self._thread.join(0.05)
            if progress != self._written:
                progress, since = self._written, time.monotonic()

    def _put(self, fd: int, data: bytes) -> None:
        self._queue.append((fd, data))
        self._held += len(data)
        self._changed.notify_all()

    def _tell_dropped(self) -> None:
        if self._dropped:
            where = f"; they are in {self._logs}" if self._logs else ""
            text = f"ddpgen: {self._dropped} lines were not shown, this terminal is slow{where}\n"
            self._dropped = 0
            self._put(self._err, text.encode())

    def _write_on(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closing:
                        return
                    self._changed.wait()
                fd, data = self._queue.popleft()
            self._write(fd, data)
            with self._changed:
                self._held -= len(data)

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest and fd not in self._dead:
            try:
                written = os.write(fd, rest[:4096])
                self._written += written
                rest = rest[written:]
            except BlockingIOError:  # somebody who shares the terminal made it so
                select.select([], [fd], [], 1.0)
            except OSError:
                self._dead.add(fd)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with aligned columns; the last column is as wide as it likes."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def folded(said: Mapping[str, str]) -> list[str]:
    """Host → message as lines for the user: what several hosts say alike is one line, with their names."""
    hosts: dict[str, list[str]] = {}
    for host, message in said.items():
        hosts.setdefault(message, []).append(host)
    return [f"{', '.join(names)}: {message}" for message, names in hosts.items()]


def _prefix(name: str, width: int, colour: int | None) -> str:
    text = f"{name:<{width}} |"
    return f"\x1b[{colour}m{text}\x1b[0m " if colour else f"{text} "


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False
