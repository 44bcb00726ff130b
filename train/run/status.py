"""The `status` file: how an attempt stands, in one line that a shell can read.

Owns the line's form, and what a full disk leaves of it. Knows nothing of how the status came about.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from train.base.console import plain
from train.base.errors import TrainError
from train.base.files import read_file, replace_file

WORDS = ("running", "done", "stopped", "failed")
_MOST_REASON = 10_000


@dataclass(frozen=True)
class Status:
    """How an attempt stands; `step` is the newest it knows to be complete."""

    word: str
    attempt: str
    step: int
    reason: str = ""

    @property
    def line(self) -> str:
        """`WORD ATTEMPT STEP [reason]`, as it is on file."""
        reason = one_line(self.reason)
        return f"{self.word} {self.attempt} {self.step} {reason}".rstrip() + "\n"


def one_line(text: str, most: int = _MOST_REASON) -> str:
    """`text` as a status holds it: one line, in which a terminal finds nothing to act on, such as a colour."""
    return plain(" ".join(text.split()), most)


def write_status(directory: Path, status: Status) -> None:
    """Replace the status line: `WORD ATTEMPT STEP [reason]`. Raises OSError."""
    path, line = directory / "status", status.line.encode()
    try:
        replace_file(path, line)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(path, line):
            raise


def record_status(directory: Path, status: Status) -> None:
    """As write_status, for a run that cannot go on without. Raises TrainError when it cannot be written."""
    try:
        write_status(directory, status)
    except OSError as error:
        raise TrainError(
            f"the status file in {directory} cannot be written: {error.strerror}; make "
            "room or restore the permission, and start the job again"
        ) from None


def _overwrite(path: Path, line: bytes) -> bool:
    """A full disk still takes what fits into the block that a file has; whoever reads it wants the last
    word rather than the one before."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if os.pwrite(descriptor, line, 0) != len(line):
            return False
        os.ftruncate(descriptor, len(line))
        os.fsync(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_status(directory: Path) -> Status | None:
    """The last status written, or None when there is none that can be read."""
    try:
        text = read_file(directory / "status").decode("utf-8", "replace")
    except OSError:
        return None
    words = text.split(maxsplit=3)
    if len(words) < 3 or words[0] not in WORDS or not _is_step(words[2]):
        return None
    return Status(words[0], words[1], int(words[2]), words[3].strip() if len(words) > 3 else "")


def _is_step(text: str) -> bool:
    return text.isascii() and text.isdecimal()
