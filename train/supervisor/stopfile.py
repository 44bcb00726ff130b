"""The stop file: the one way in which a supervisor asks the training to stop.

Owns its making, so that whoever reads it finds all of its words, and so that nobody's request replaces
another's. What the words mean is train/stop.py's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

# What link(2) says on a file system that has no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


def create(path: Path, words: str) -> None:
    """Make the stop file, unless there is one. Raises OSError when it cannot be made."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(f"{words}\n" if words else "", encoding="utf-8")
        try:
            os.link(draft, path)  # a rename would replace what is there
        except FileExistsError:
            os.stat(path)  # a link to nowhere is none
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not path.exists():
                draft.rename(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
