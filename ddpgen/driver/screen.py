"""The driver's output: every host's lines behind its name, and the driver's own messages.

Turns bytes into lines that are safe for a terminal, with prefixes and colours. A thread of its own writes. So a slow,
paused or closed terminal never delays the job; it only loses lines, which the logs have.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from .trace import VARIABLE

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_MAX_QUEUED = 4 << 20
_MAX_PREFIX = 24
# A longer line is shown in pieces, because it must not fill the memory.
MAX_LINE = 64 * 1024
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# Control characters, and marks that reverse the reading direction or break lines.
_INVISIBLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Lines:
    """Cuts a stream of bytes at newlines, whatever the pieces in which it arrives."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their newlines."""
        self._rest += data
        if b"\n" not in data and len(self._rest) < MAX_LINE:
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        while len(rest) >= MAX_LINE:
            lines.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._rest = bytearray(rest)
        return lines

    def end(self) -> list[bytes]:
        """Return the last line if it had no newline; else []."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest else []


def shown(line: bytes) -> str:
    """Return `line` as a terminal shows it in the end, without codes that move its cursor."""
    drawn = [part for part in line.split(b"\r") if part]
    text = drawn[-1].decode("utf-8", "replace") if drawn else ""
    return _INVISIBLE.sub("?", _ESCAPE.sub("", text))


class Screen:
    """Writes to stdout and stderr in one order. Only close() blocks its caller, and that has a time limit.

    `logs`: the directory that keeps all lines of the hosts. A message names it if lines were not shown.
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
        self._quiet = environment.get(VARIABLE) == "ERROR"
        plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
        coloured = not plain and os.isatty(out)
        width = min(_MAX_PREFIX, max(map(len, names), default=0))
        self._prefixes = {
            name: _prefix(name, width, _COLOURS[number % len(_COLOURS)] if coloured else None)
            for number, name in enumerate(names)
        }
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = self._dropped = self._written = 0
        self._changed = threading.Condition()
        self._closing = False
        self._dead: set[int] = set()
        self._thread = threading.Thread(target=self._write_loop, name="screen", daemon=True)
        self._thread.start()

    def lines(self, host: str, lines: Sequence[str]) -> None:
        """Show lines of `host`. If the terminal is too slow for them, count them instead."""
        data = self._prefixed(host, lines)
        with self._changed:
            if self._queued_bytes + len(data) > _MAX_QUEUED:
                self._dropped += len(lines)
            else:
                self._enqueue(self._out, data)

    def quote(self, host: str, lines: Sequence[str]) -> None:
        """Show lines of `host` as part of a message of the driver, on stderr."""
        with self._changed:
            self._enqueue(self._err, self._prefixed(host, lines))

    def say(self, message: str) -> None:
        """Show a message of the driver on stderr."""
        lines = (shown(line.encode("utf-8", "replace")) for line in message.split("\n"))
        with self._changed:
            self._enqueue(self._err, "".join(f"ddpgen: {line}\n" for line in lines).encode())

    def progress(self, message: str) -> None:
        """Show a message that a user with `ddpgen --quiet` does not want."""
        if not self._quiet:
            self.say(message)

    def close(self, timeout_s: float) -> None:
        """Show the remaining lines. Give up after `timeout_s` in which the terminal took none."""
        with self._changed:
            self._enqueue(self._err, b"")
            self._closing = True
        progress, since = -1, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < timeout_s:
            self._thread.join(0.05)
            if progress != self._written:
                progress, since = self._written, time.monotonic()

    def _prefixed(self, host: str, lines: Sequence[str]) -> bytes:
        return "".join(f"{self._prefixes[host]}{line}\n" for line in lines).encode()

    def _enqueue(self, fd: int, data: bytes) -> None:
        if dropped := self._dropped:
            self._dropped = 0
            note = (
                f"{dropped} lines were not shown, this terminal is slow; they are in {self._logs}"
            )
            self._enqueue(self._err, f"ddpgen: {note}\n".encode())
        self._queue.append((fd, data))
        self._queued_bytes += len(data)
        self._changed.notify_all()

    def _write_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                fd, data = self._queue.popleft()
            self._write(fd, data)
            with self._changed:
                self._queued_bytes -= len(data)

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest and fd not in self._dead:
            try:
                written = os.write(fd, rest[:4096])
                self._written += written
                rest = rest[written:]
            except BlockingIOError:  # another program has made the shared terminal non-blocking
                select.select([], [fd], [], 1.0)
            except OSError:
                self._dead.add(fd)


def folded(messages: Mapping[str, str]) -> list[str]:
    """Return messages by host as lines. Hosts with the same message share one line."""
    hosts: dict[str, list[str]] = {}
    for host, message in messages.items():
        hosts.setdefault(message, []).append(host)
    return [f"{', '.join(names)}: {message}" for message, names in hosts.items()]


def _prefix(name: str, width: int, colour: int | None) -> str:
    text = f"{name:<{width}} |"
    return f"\x1b[{colour}m{text}\x1b[0m " if colour else f"{text} "
