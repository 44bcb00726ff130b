"""The system's limits for a process of this host: open files, locked memory, shared memory.

Owns how each limit is read, and the least that a job needs. Changes no limit.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from train.preflight.finding import ERROR, WARNING, Finding
from train.preflight.settings import Settings

# Open files of each process: libraries, files, pipes and data workers; then, for each other process, the sockets of
# gloo's full mesh and of the stores.
_FILES, _FILES_EACH = 192, 4
_BARELY = 48  # files that a process has open before its sockets
_SHARED = 64 << 20  # bytes of /dev/shm: a container's default
_INFINIBAND = "/sys/class/infiniband"
_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """`files`: soft and hard limit. `locked`: bytes. None means no limit. `shared`: bytes of /dev/shm, 0 if it is
    missing; None if this system is not Linux."""

    files: tuple[int | None, int | None] = (None, None)
    locked: int | None = None
    shared: int | None = None
    infiniband: bool = False


def read_limits() -> Limits:
    """The limits of this process, which its children inherit."""
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    locked = _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    return Limits((soft, hard), locked, _shared(), _has_entries(_INFINIBAND))


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _shared() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _has_entries(directory: str) -> bool:
    try:
        return bool(os.listdir(directory))
    except OSError:
        return False


def judge(settings: Settings, limits: Limits) -> Iterator[Finding]:
    """LIM001, LIM002 and LIM003."""
    yield from _judge_files(settings, *limits.files)
    if settings.backend == "nccl" and limits.infiniband and limits.locked is not None:
        yield Finding(
            "LIM002",
            settings.host_name,
            f"a process on {settings.host_name} may lock only {limits.locked // 1024} KiB of memory, and nccl "
            "over InfiniBand locks its buffers",
            "set `memlock` to unlimited there (/etc/security/limits.conf, LimitMEMLOCK=infinity of the "
            "service that starts the job, or --ulimit memlock=-1 of the container)",
        )
    if limits.shared is not None and limits.shared <= _SHARED:
        has = f"has {limits.shared // _MIB} MiB" if limits.shared else "is missing"
        yield Finding(
            "LIM003",
            settings.host_name,
            f"/dev/shm of {settings.host_name} {has}; data workers and nccl pass their data through it",
            "give the container more (--shm-size=1g, or --ipc=host), or mount a larger tmpfs there",
        )


def _judge_files(settings: Settings, soft: int | None, hard: int | None) -> Iterator[Finding]:
    """LIM001. The soft limit counts: torch does not raise it."""
    need = _FILES + _FILES_EACH * settings.world_size
    if soft is None or soft >= need:
        return
    remedy = f"put `ulimit -n {need}` into the shell that starts the job there"
    if hard is not None and hard < need:
        remedy = (
            f"raise the limit there to {need} or more (`nofile` in /etc/security/limits.conf, or "
            "LimitNOFILE= of the service that starts the job), and log in anew"
        )
    yield Finding(
        "LIM001",
        settings.host_name,
        f"a process on {settings.host_name} may open {soft} files, and each of {settings.world_size} processes "
        f"needs about {need}",
        remedy,
        ERROR if soft < _BARELY + _FILES_EACH * settings.world_size else WARNING,
    )
