"""Small files from untrusted writers, read without blocking; and files replaced as a whole.

Owns the bounds of a read and the atomic replacement. Knows nothing of the content of a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

# The size limit of a small file. A larger one was not written by this program.
MAX_BYTES = 1 << 20
_PART_BYTES = 1 << 22


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return all of an ordinary file of at most `max_bytes` bytes. Never waits at a pipe.

    Raises OSError, also if the file is not an ordinary one or is larger.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # One byte more than allowed, because the file may grow meanwhile.
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if max(size, len(content)) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file for reading. Never waits at a pipe. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def open_text(path: Path) -> TextIO:
    """Open an ordinary file for reading as text; bytes that are not UTF-8 are replaced. Raises OSError."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace")


def sha256_of(file: BinaryIO) -> str:
    """Return the hash of the rest of an open file, however large it is. Raises OSError."""
    digest = hashlib.sha256()
    while part := file.read(_PART_BYTES):
        digest.update(part)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(guard: Path) -> Iterator[bool]:
    """Hold the file `guard`, which only one process can hold at a time. Raises OSError.

    Yields False, without holding it, if the file system has no locks.
    """
    with open(guard, "a") as file:
        holds = False
        with contextlib.suppress(OSError):  # object-store mounts have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
            holds = True
        yield holds


def replace_file(path: Path, content: bytes, sync: bool = True) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it.

    `sync`: guarantee that even after a crash of the whole machine.
    """
    # Add the thread to the name, because two threads of a process may write the file. One is the main thread, the other
    # receives the reason of another process' failure.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
