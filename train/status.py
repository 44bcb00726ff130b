"""The `status` file: how an attempt stands, in one line that a shell can read.

Owns the line's form, its atomic replacement, and the reading of a file that a stranger may have put
there. Knows nothing of how the status came about.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WORDS = ("running", "done", "stopped", "failed")
_MOST_REASON = 10_000
_MOST_DIGITS = 18
# Of a small file; what is larger is none of ours.
MOST_BYTES = 1 << 20


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
        reason = " ".join(self.reason.split())[:_MOST_REASON]
        return f"{self.word} {self.attempt} {self.step} {reason}".rstrip() + "\n"


def write_status(directory: Path, status: Status) -> None:
    """Replace the status line: `WORD ATTEMPT STEP [reason]`. Raises OSError."""
    path, line = directory / "status", status.line.encode()
    try:
        replace_file(path, line)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(path, line):
            raise


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
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of an ordinary file of at most `most` bytes. Waits for nobody at the other end of a pipe.

    Raises OSError, also for what is no ordinary file or is larger.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""  # it may grow meanwhile
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return content


def open_file(path: Path) -> BinaryIO:
    """An ordinary file, to be read. Waits for nobody at the other end of a pipe. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    # Two threads of a process may write it: who hears a verdict, and who meets a fault itself.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
