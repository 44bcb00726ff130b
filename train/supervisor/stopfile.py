"""The stop file: the one way in which a supervisor asks the training to stop.

Owns its making, so that whoever reads it finds all of its words, and so that nobody's request replaces
another's. What the words mean is train/stop.py's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path

# What link(2) says on a file system that has no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


def create(path: Path, words: str) -> bool:
    """Make the stop file, unless there is one; whether it was made. Raises OSError when it cannot be made."""
    writer = f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    draft = path.with_name(f".{path.name}.{writer}")
    try:
        draft.write_text(f"{words}\n" if words else "", encoding="utf-8")
        try:
            os.link(draft, path)  # a rename would replace what is there
        except FileExistsError:
            os.stat(path)  # a link to nowhere is none
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            draft.rename(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
