"""The `status` file: how an attempt stands, in one line that a shell can read.

Owns the line's form and its atomic replacement. Knows nothing of how the status came about.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WORDS = ("running", "done", "stopped", "failed")


@dataclass(frozen=True)
class Status:
    """How an attempt stands; `step` is the newest it knows to be complete."""

    word: str
    attempt: str
    step: int
    reason: str = ""


def write_status(directory: Path, status: Status) -> None:
    """Replace the status line: `WORD ATTEMPT STEP [reason]`. Raises OSError."""
    reason = " ".join(status.reason.split())
    line = f"{status.word} {status.attempt} {status.step} {reason}".rstrip() + "\n"
    replace_file(directory / "status", line.encode())


def read_status(directory: Path) -> Status | None:
    """The last status written, or None when there is none that can be read."""
    try:
        words = (directory / "status").read_text("utf-8", "replace").split(maxsplit=3)
    except OSError:
        return None
    if len(words) < 3 or words[0] not in WORDS or not words[2].isdigit():
        return None
    return Status(words[0], words[1], int(words[2]), words[3].strip() if len(words) > 3 else "")


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
