"""The checkpoint directory as this host sees it, before an attempt takes it.

Owns the test write, the look at the lock's holder, and the token by which hosts find out if they share the directory.
Leaves only the directory itself and that token; takes no lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from train.preflight.finding import NOTE, Finding
from train.preflight.settings import Settings
from train.run import lock
from train.run.layout import node_directory

TOKEN = ".preflight-token"
_TRIAL = 1 << 20  # bytes written
_LEAST = 16 << 20  # bytes that have to be free
# A live holder on another host renews its lock within HEARTBEAT_S. The test write before that look may take 0.5 s.
WATCH_S = lock.HEARTBEAT_S + 0.5
_TOKEN_S = 1.0  # how long another host may take from making the token's file to writing the token

_FULL = (errno.ENOSPC, errno.EDQUOT)
# The errors if a file server is gone, or the program behind a mount has died.
_SILENT = (
    errno.ENOTCONN, errno.ESTALE, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.EIO,
)  # fmt: skip


@dataclass(frozen=True)
class Directory:
    """The result of look().

    `making`, `writing`: the error if the directory could not be made, or could not be written to; else None.
    `free`: bytes, or None if the file system does not count them.
    `held`: the locks that keep this launch out.
    `token`: the content of the file TOKEN; "" if it is not needed, or could not be read.
    """

    making: OSError | None = None
    writing: OSError | None = None
    free: int | None = None
    held: tuple[lock.HeldByLiveJobError, ...] = ()
    token: str = ""


def look(settings: Settings) -> Directory:
    """Make the directory, try to write there, find its holders. Hangs if a file server hangs."""
    where, deadline = settings.checkpoint_dir.absolute(), time.monotonic() + WATCH_S
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Directory(making=error)
    try:
        _try(where / f".preflight-{socket.gethostname()}-{os.urandom(8).hex()}", _TRIAL)
        node = node_directory(where, settings.host_name)
        if node.is_dir():  # an earlier launch has made it, perhaps as another user
            _try(node / f".preflight-{os.urandom(8).hex()}", 0)
        free = _free(where)
        held = tuple(_held(where, settings, deadline))
        token = _token(where) if settings.shared and not settings.alone else ""
    except OSError as error:
        return Directory(writing=error)
    return Directory(free=free, held=held, token=token)


def _try(trial: Path, size: int) -> None:
    """Write a file of `size` bytes, and remove it."""
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            left = memoryview(os.urandom(4096) * (size // 4096))  # zeros may take no space
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


def _free(where: Path) -> int | None:
    """Bytes that this user may still write; None on a mount that does not count them."""
    try:
        found = os.statvfs(where)
    except OSError:
        return None
    if found.f_files and not found.f_favail:
        return 0  # no inode is left, so no file can be made
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _held(where: Path, settings: Settings, deadline: float) -> Iterator[lock.HeldByLiveJobError]:
    node = node_directory(where, settings.host_name)
    for directory in (where, node):
        if directory == where and settings.head and _is_our_launch(where, node, settings):
            continue
        try:
            left = max(0.0, deadline - time.monotonic())
            lock.check_may_take(directory, settings.scheduler, left)
        except lock.HeldByLiveJobError as held:
            yield held
            if held.is_certain:
                return  # that job holds this host's part as well: one finding is enough


def _is_our_launch(where: Path, node: Path, settings: Settings) -> bool:
    """True if the launch that holds the whole directory may be the one to which this host returns."""
    holder = lock.read_lock(where)
    if holder is None or holder.job != settings.job or settings.scheduled is not None:
        return False  # check_may_take() lets a start of the scheduler's own job in
    if settings.min_nodes < settings.nodes:
        return True  # a host of an elastic job may return
    try:
        return holder.attempt in (node / "launch").read_text("utf-8", "replace").split()
    except OSError:
        return not holder.is_here


def _token(where: Path) -> str:
    """The token of this directory, the same for all hosts that see it. The first host makes it."""
    path = where / TOKEN
    with contextlib.suppress(FileExistsError), open(path, "x", encoding="ascii") as file:
        file.write(os.urandom(16).hex())
    deadline = time.monotonic() + _TOKEN_S
    while True:
        with contextlib.suppress(FileNotFoundError):
            if token := path.read_text("ascii", "replace"):
                return token
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.02)  # another host has made the file and is about to write the token


# --- findings -------------------------------------------------------------------------------------


def judge(settings: Settings, seen: Directory | None) -> Iterator[Finding]:
    """DIR001 to DIR004, and DIR006. `seen` is None if the directory did not answer."""
    me, where = settings.host_name, settings.checkpoint_dir
    if seen is None:
        yield Finding(
            "DIR006",
            me,
            f"the checkpoint directory {where} of {me} does not answer",
            "look after its file server and the network to it (`mount` shows which), or set "
            "checkpoint.dir to another place",
        )
        return
    if seen.making is not None:
        yield _failed(settings, seen.making, "DIR001", "cannot be made")
    elif seen.writing is not None:
        yield _failed(settings, seen.writing, "DIR002", "cannot be written to")
    elif seen.free is not None and seen.free < _LEAST:
        yield Finding(
            "DIR003",
            me,
            f"the checkpoint directory {where} of {me} has room for only "
            f"{seen.free / (1 << 20):.1f} MiB",
            "free some space there, or set checkpoint.dir to another place",
        )
    yield from (_in_use(settings, held) for held in seen.held)


def _failed(settings: Settings, error: OSError, code: str, what: str) -> Finding:
    where = settings.checkpoint_dir
    node = node_directory(where, settings.host_name).absolute()
    if error.filename and Path(os.fsdecode(error.filename)).parent == node:
        where = node
    why = error.strerror or str(error)
    remedy = f"make it writable for this user on {settings.host_name}"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        why, remedy = f"{_in_the_way(where)} is no directory", "move that away"
    elif error.errno == errno.EROFS:
        remedy = f"mount it for writing on {settings.host_name}"
    elif error.errno in _FULL:
        code, remedy = "DIR003", "free some space there"
    elif error.errno in _SILENT:
        code = "DIR006"
        remedy = f"mount it anew on {settings.host_name} and look after its file server"
    cause = f"the checkpoint directory {where} of {settings.host_name} {what}: {why}"
    return Finding(
        code, settings.host_name, cause, f"{remedy}, or set checkpoint.dir to another place"
    )


def _in_the_way(where: Path) -> Path:
    """The part of the path that exists and is not a directory."""
    parts = (where, *where.parents)
    return next((p for p in parts if os.path.lexists(p) and not os.path.isdir(p)), where)


def _in_use(settings: Settings, held: lock.HeldByLiveJobError) -> Finding:
    """DIR004. It is only a note if it is too early to tell that the holder lives, because the launch will look again.
    It is also a note if this is only a check and the holder is the job itself."""
    is_note = not held.is_certain or (settings.check_only and held.job == settings.job)
    return Finding("DIR004", settings.host_name, held.cause, held.remedy, NOTE if is_note else "")
