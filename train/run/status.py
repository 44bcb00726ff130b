"""The `status` file: the status of an attempt, in one line that a shell can read.

Owns the line's form, and writing it on a full disk. Knows nothing of the reasons for a status.
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
    """The status of an attempt. `step`: the newest step that the attempt knows to be complete."""

    word: str
    attempt: str
    step: int
    reason: str = ""

    @property
    def line(self) -> str:
        """The line of the file: `WORD ATTEMPT STEP [reason]`."""
        reason = one_line(self.reason)
        return f"{self.word} {self.attempt} {self.step} {reason}".rstrip() + "\n"


def one_line(text: str, max_characters: int = _MOST_REASON) -> str:
    """`text` as one line without characters on which a terminal acts, such as a colour."""
    return plain(" ".join(text.split()), max_characters)


def write_status(directory: Path, status: Status) -> None:
    """Replace the status line: `WORD ATTEMPT STEP [reason]`. Raises OSError."""
    path, line = directory / "status", status.line.encode()
    try:
        replace_file(path, line)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(path, line):
            raise


def record_status(directory: Path, status: Status) -> None:
    """Like write_status(), but raises TrainError, because the run cannot go on without its status."""
    try:
        write_status(directory, status)
    except OSError as error:
        raise TrainError(
            f"the status file in {directory} cannot be written: {error.strerror}; make "
            "room or restore the permission, and start the job again"
        ) from None


def _overwrite(path: Path, line: bytes) -> bool:
    """Overwrite the file in place. Return True on success.

    A full disk still takes data that fits into the block that the file already has. A reader of the file needs the last
    status, not the one before.
    """
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
    """The status on file, or None if the file is missing or invalid."""
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
