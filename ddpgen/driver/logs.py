"""Every host's output in a file on this machine, byte for byte.

Owns logs/<name>/<launch>/<host>.log in the directory that holds the bundle, and finding the newest. A full disk or
an unwritable directory is reported once. It costs lines of the log, and never ends the run.
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
    """The files of one launch. The first write creates the directory."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory, self._say = directory, say
        self._files: dict[str, int] = {}
        self._reported = False

    def write(self, host: str, data: bytes) -> None:
        self._append(f"{host}.log", data)

    def note(self, text: str) -> None:
        """Keep a message of the driver's own, because the terminal may be gone at the end."""
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
    """Return the directories of the launches in `directory`, the newest first."""
    try:
        names = sorted(name for name in os.listdir(directory) if _LAUNCH.fullmatch(name))
    except OSError:
        return []
    return [directory / name for name in reversed(names)]


def newest(directory: Path) -> Path | None:
    """Return the newest launch with a line from a host. A launch that never started does not hide an earlier launch."""
    return next((launch for launch in launches(directory) if _has_output(launch)), None)


def _has_output(launch: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(path.stat().st_size > 0 for path in launch.glob("*.log"))
    return False


def tail(path: Path, count: int) -> list[bytes]:
    """Return the last lines of a file; [] if there is no such file."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        return file.read().splitlines()[-count:]
    return []
