"""Every host's output in a file on this machine, byte for byte.

Owns logs/<name>/<launch>/<host>.log beside the bundle, and finding the newest. A disk that is full, or
a place that cannot be written, is reported once and costs lines, never the run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

_LAUNCH = re.compile(r"\d{8}-\d{6}-[0-9a-f]+")
_TAIL = 64 * 1024


class Logs:
    """The files of one launch; the directory is made with the first of them."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory, self._say = directory, say
        self._files: dict[str, int] = {}
        self._reported = False

    def write(self, host: str, data: bytes) -> None:
        self._append(f"{host}.log", data)

    def note(self, text: str) -> None:
        """Keep a message of the driver's own: the terminal may be gone when it comes to the end."""
        self._append("driver.txt", text.encode("utf-8", "replace") + b"\n")

    def _append(self, name: str, data: bytes) -> None:
        try:
            if name not in self._files:
                self.directory.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._files[name] = os.open(self.directory / name, flags, 0o644)
            if os.write(self._files[name], data) != len(data):
                raise OSError(0, "no space left")
        except OSError as error:
            if not self._reported:
                self._reported = True
                self._say(
                    f"{self.directory}: {error.strerror}; the output is shown here but not all of "
                    "it is kept"
                )


def launches(directory: Path) -> list[Path]:
    """The launches below `directory`, the newest first."""
    try:
        names = sorted(name for name in os.listdir(directory) if _LAUNCH.fullmatch(name))
    except OSError:
        return []
    return [directory / name for name in reversed(names)]


def newest(directory: Path) -> Path | None:
    """The newest launch in which a host said something: one that never started hides no other."""
    return next((launch for launch in launches(directory) if _heard(launch)), None)


def _heard(launch: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(path.stat().st_size > 0 for path in launch.glob("*.log"))
    return False


def tail(path: Path, count: int) -> list[bytes]:
    """The last lines of a file, none when there is no such file."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        return file.read().splitlines()[-count:]
    return []
