"""Bytes as they come from a host → lines, and lines fit for a terminal. Pure."""

from __future__ import annotations

import re

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
        *whole, rest = bytes(self._rest).split(b"\n") if b"\n" in data else (bytes(self._rest),)
        while len(rest) >= LONGEST:
            whole.append(rest[:LONGEST])
            rest = rest[LONGEST:]
        if whole:
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
