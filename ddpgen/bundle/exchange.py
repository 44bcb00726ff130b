"""Put a finished directory in the place of another in one step, and clean up after killed attempts.

Owns the names of the temporary neighbours and the locks that tell a live one from a leftover. Knows
nothing of what the directories hold. Raises OSError.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":  # there bundles are made without locks
    import fcntl

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Wait until no other ddpgen renders beside `directory`, and keep the others waiting.

    The lock is on the parent directory itself, so nothing is left behind. Where there are no locks
    (some network file systems), it does without.
    """
    with _locked(directory.parent):
        yield


@contextlib.contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A locked empty directory beside `directory`; what still has that name at the end is removed."""
    stage = directory.with_name(f".{directory.name}.new-{os.getpid()}")
    os.mkdir(stage, 0o755)
    try:
        with _locked(stage):
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, where there are any."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def put(stage: Path, directory: Path) -> None:
    """Make `stage` be `directory`; what was there is left under the stage's name, if anything."""
    if not directory.exists():
        os.rename(stage, directory)
    elif not _swap(stage, directory):
        old = stage.with_name(stage.name.replace(".new-", ".old-"))
        os.rename(directory, old)
        try:
            os.rename(stage, directory)
        except OSError:
            os.rename(old, directory)
            raise
        shutil.rmtree(old, ignore_errors=True)


def clean_up(directory: Path) -> None:
    """Remove what killed attempts left beside `directory`; bring back what one had moved aside."""
    for prefix in (f".{directory.name}.old-", f".{directory.name}.new-"):
        for name in os.listdir(directory.parent):
            path = directory.parent / name
            if not name.startswith(prefix) or not name[len(prefix) :].isdigit() or in_use(path):
                continue
            if ".old-" in prefix and not os.path.lexists(directory):
                os.rename(path, directory)
            else:
                shutil.rmtree(path, ignore_errors=True)


def in_use(path: Path) -> bool:
    """Whether a running ddpgen, or a job started from it, holds this directory."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _swap(one: Path, other: Path) -> bool:
    """Exchange two directories atomically; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # here, because it costs milliseconds that a first render need not pay

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    ends = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, ends[0], _AT_FDCWD, ends[1], _RENAME_EXCHANGE) == 0)
