"""What the user sees: every host's lines with its name before them, and our own.

Owns how bytes become lines fit for a terminal, prefixes, colours and tables. A thread of its own writes: a
terminal that is slow, paused or gone costs lines on the screen (they are in the logs), never the job a moment.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_HELD = 4 << 20
_WIDEST = 24
# A line longer than this is given out in pieces; nobody reads it, and memory is not for it.
LONGEST = 64 * 1024
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# Control characters, and marks that reverse the reading direction or break lines where we do not.
_UNSEEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Lines:
    """Cuts a stream at newlines, whatever it is made of."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        self._rest += data
        if b"\n" not in data and len(self._rest) < LONGEST:
            return []
        *whole, rest = bytes(self._rest).split(b"\n")
        while len(rest) >= LONGEST:
            whole.append(rest[:LONGEST])
            rest = rest[LONGEST:]
        self._rest = bytearray(rest)
        return whole

    def end(self) -> list[bytes]:
        """What came last without a newline, if anything."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest else []


def shown(line: bytes) -> str:
    """`line` as a terminal would end up showing it, with nothing that would move its cursor."""
    drawn = [part for part in line.split(b"\r") if part]
    text = drawn[-1].decode("utf-8", "replace") if drawn else ""
    return _UNSEEN.sub("?", _ESCAPE.sub("", text))


class Screen:
    """Two outputs, one order. Nothing here blocks the caller, but close(), which is bounded.

    `logs`: where all lines of the hosts are kept, for who missed some here.
    """

    def __init__(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        logs: str,
        out: int = 1,
        err: int = 2,
    ) -> None:
        self._out, self._err, self._logs = out, err, logs
        plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
        coloured = not plain and os.isatty(out)
        width = min(_WIDEST, max(map(len, names), default=0))
        self._prefixes = {
            name: _prefix(name, width, _COLOURS[number % len(_COLOURS)] if coloured else None)
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
        data = self._of_host(host, lines)
        with self._changed:
            if self._held + len(data) > _HELD:
                self._dropped += len(lines)
            else:
                self._put(self._out, data)

    def quote(self, host: str, lines: Sequence[str]) -> None:
        """Show lines of `host` as part of a message of ours, where that one goes."""
        with self._changed:
            self._put(self._err, self._of_host(host, lines))

    def say(self, message: str) -> None:
        """One message of ours, on the error output."""
        lines = (shown(line.encode("utf-8", "replace")) for line in message.split("\n"))
        with self._changed:
            self._put(self._err, "".join(f"ddpgen: {line}\n" for line in lines).encode())

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        self.say("\n".join(table(rows)))

    def close(self, timeout_s: float) -> None:
        """Show what is left, as long as somebody reads."""
        with self._changed:
            self._put(self._err, b"")
            self._closing = True
        progress, since = -1, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < timeout_s:
            self._thread.join(0.05)
            if progress != self._written:
                progress, since = self._written, time.monotonic()

    def _of_host(self, host: str, lines: Sequence[str]) -> bytes:
        return "".join(f"{self._prefixes[host]}{line}\n" for line in lines).encode()

    def _put(self, fd: int, data: bytes) -> None:
        if dropped := self._dropped:
            self._dropped = 0
            note = (
                f"{dropped} lines were not shown, this terminal is slow; they are in {self._logs}"
            )
            self._put(self._err, f"ddpgen: {note}\n".encode())
        self._queue.append((fd, data))
        self._held += len(data)
        self._changed.notify_all()

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
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
