"""The values of a job's secrets on this machine, and output without them.

Owns the rules for a file that holds a secret; train/launch/secrets.py has the same rules. A value goes into the
environment of a process or into ssh's standard input, and nowhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

_SHORTEST = 6  # bytes; a shorter value also occurs within other words


def read(
    secrets: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the values, and a complaint for each missing value.

    `secrets`: by each secret's name, the file that holds its value; "" if the environment has the value.
    """
    values, missing = dict[str, str](), list[str]()
    for name, file in secrets.items():
        value = environment.get(name, "")
        if file:
            value, problem = _content(file)
        else:
            problem = "is not in your environment, or is empty there; export it, or take it out of secrets"
        if value:
            values[name] = value
        else:
            missing.append(f"the secret {name} {problem}")
    return values, missing


def _content(file: str) -> tuple[str, str]:
    """Return the content of a file without the newlines at its end; or "" and the problem."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for ever.
        descriptor = os.open(os.path.expanduser(file), os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="surrogateescape", newline="") as opened:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                return "", f"cannot be read from {file}: it is no regular file"
            if mode & 0o077:
                return "", f"is in a file that others may read; chmod 600 {file}"
            return opened.read().rstrip("\r\n").replace("\0", ""), f"is missing: {file} is empty"
    except OSError as error:
        return "", f"cannot be read from {file}: {error.strerror}"


class Mask:
    """Replaces each of `values` in a stream of bytes by ***, however the stream is cut."""

    def __init__(self, values: Iterable[str]) -> None:
        # The longest come first, because one value may begin with another.
        encoded = {value.encode("utf-8", "surrogateescape") for value in values}
        self._values = sorted((v for v in encoded if len(v) >= _SHORTEST), key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown now. An end that may be the beginning of a value is held until more comes."""
        data = self._held + data
        # A value at the end may be the beginning of a longer one, so hold before replacing.
        held = max(
            (n for v in self._values for n in range(1, len(v)) if data.endswith(v[:n])), default=0
        )
        self._held = data[len(data) - held :]
        return self._replaced(data[: len(data) - held])

    def _replaced(self, data: bytes) -> bytes:
        for value in self._values:
            data = data.replace(value, b"***")
        return data

    def end(self) -> bytes:
        """Return the rest."""
        held, self._held = self._held, b""
        return self._replaced(held)
