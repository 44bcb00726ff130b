"""Processes of a host, seen from outside through /proc. Owns finding them and waiting for their end.

A process belongs to a host when it lives in the PID namespace of the host's PID 1: no name, group or
session can hide it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
# OpenSSH 9.8 split what was one program.
SSHD = {"sshd", "sshd-session", "sshd-auth"}
# The daemons of a Slurm cluster, under Debian's names too. Not slurmstepd: that one is a job's.
SLURM = {"munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd"}


class Process(NamedTuple):
    """A process on a host, by the number this machine knows it by."""

    pid: int
    host: str
    command: str


def of_host(host: str, init: int) -> list[Process]:
    """Everything that runs there and is not the rig's own: neither PID 1 nor an sshd nor Slurm's."""
    return [
        Process(pid, host, command)
        for pid in members(init)
        if pid != init and program(pid) not in SSHD | SLURM and (command := command_line(pid))
    ]


def entrances(init: int) -> list[int]:
    """Processes outside with a child in there: nsenter, waiting for the command it brought in.

    It stops when that is stopped, and goes on only when it is told to itself; until then it does not
    bury a dead one, which keeps the whole host from ending.
    """
    inside = set(members(init))
    return [pid for pid in {parent(each) for each in inside - {init}} - inside if pid]


def outlasting(found: Iterable[Process], within: float) -> list[Process]:
    """Those of the processes that still run after so many seconds."""
    deadline = time.monotonic() + within
    return [each for each in found if not ends(each.pid, deadline)]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ends(pid: int, deadline: float) -> bool:
    """Wait until a process is dead or the deadline has come."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(handle)


def members(init: int) -> Iterator[int]:
    namespace = os.readlink(f"/proc/{init}/ns/pid")
    for entry in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns/pid") == namespace:
                yield int(entry.name)


def running(init: int, name: str) -> list[int]:
    """The processes of a host that run the program of this name."""
    return [pid for pid in members(init) if program(pid) == name]


def program(pid: int) -> str:
    """The name of the program's file; empty when the process is gone."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix("-wlm")
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """Empty for a process that is dead and only waits for its parent to look."""
    try:
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
