"""The process that holds a TCP port of this host, and the finding that the head cannot listen on it.

Owns the search for that process in /proc. Decides whether the process is an earlier run of the job. Ends no
process: the remedy says how to end one. Without /proc (macOS) no process is named.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from train.preflight.finding import Finding
from train.preflight.settings import Settings

_PROC = Path("/proc")
_MAX_COMMAND = 100  # characters of a command line
_OWN_COMMAND = re.compile(r"(^| )-m ?(train|torch\.distributed\.run)( |$)|(^|[ /])torchrun( |$)")


@dataclass(frozen=True)
class Holder:
    """A process. `command`: its command line. `job`: the job that its environment names, or "". `is_own`: one of our
    launch scripts started it, or this user runs torchrun or train in it."""

    pid: int
    command: str
    job: str = ""
    is_own: bool = False

    def __str__(self) -> str:
        short = (
            self.command
            if len(self.command) <= _MAX_COMMAND
            else self.command[: _MAX_COMMAND - 1] + "…"
        )
        return f"process {self.pid} ({short})" if short else f"process {self.pid}"

    def is_earlier_run_of(self, job: str) -> bool:
        """True if the process is ours and its environment names no other job. Another job has a right to the port."""
        return self.is_own and self.job in ("", job)


def holder(port: int, proc: Path = _PROC) -> Holder | None:
    """The process that listens on `port` here or has a connection from it; None if no such process is visible."""
    sockets = set(_sockets(port, proc))
    if not sockets:
        return None
    for pid in _pids(proc):
        if sockets & set(_open_sockets(proc / str(pid))):
            return process(pid, proc)
    return None


def process(pid: int, proc: Path = _PROC) -> Holder | None:
    """The process as /proc shows it; None if it is gone."""
    entry = proc / str(pid)
    try:
        words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        same_user = entry.stat().st_uid == os.getuid()
    except OSError:
        return None
    command = " ".join(os.fsdecode(word) for word in words)
    command = "".join(c if c.isprintable() else "?" for c in command)
    environment = _environment(entry)
    started = "DDPGEN_JOB" in environment or "DDPGEN_ATTEMPT" in environment
    is_own = started or (same_user and _OWN_COMMAND.search(command) is not None)
    return Holder(pid, command, environment.get("DDPGEN_JOB", ""), is_own)


def listen_finding(
    settings: Settings, error: OSError | OverflowError, port_holder: Holder | None
) -> Finding:
    """The finding that the head could not listen on its port: PORT001, PORT002 or PORT007."""
    port, here = settings.port, settings.host_name
    another = "set another rendezvous.port in the spec"
    if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
        below = " (a port below 1024 needs special rights)" if port < 1024 else ""
        why = getattr(error, "strerror", "") or error
        cause = f"{here} may not listen on port {port}{below}: {why}"
        return Finding("PORT007", here, cause, another)
    if port_holder is None:
        cause = f"port {port} of {here} is taken by a program that this user cannot see"
        tool = f"ss -ltnp 'sport = :{port}'" if _PROC.exists() else f"lsof -nP -iTCP:{port}"
        show = f"`sudo {tool}` there shows which"
        return Finding("PORT001", here, cause, f"end it ({show}), or {another}")
    if port_holder.is_earlier_run_of(settings.job):
        cause = f"port {port} of {here} is still held by an earlier run: {port_holder}"
        remedy = f"end it with `kill {port_holder.pid}` there, or {another}"
        return Finding("PORT002", here, cause, remedy)
    by = f"job {port_holder.job} of ddpgen, {port_holder}" if port_holder.job else str(port_holder)
    cause = f"port {port} of {here} is taken by {by}"
    return Finding("PORT001", here, cause, f"end it (`kill {port_holder.pid}` there), or {another}")


def _sockets(port: int, proc: Path) -> Iterator[str]:
    """The inode of every TCP socket bound to `port` here (proc_pid_net(5))."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(proc / "net" / table, encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if int(words[1].rpartition(":")[2], 16) == port and words[9] != "0":
                    yield words[9]


def _pids(proc: Path) -> list[int]:
    """All process ids in order, so that a parent usually comes before its children."""
    with contextlib.suppress(OSError):
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    return []


def _open_sockets(entry: Path) -> Iterator[str]:
    # The process may end meanwhile, or belong to another user.
    with contextlib.suppress(OSError):
        for fd in os.listdir(entry / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry / "fd" / fd)
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def _environment(entry: Path) -> Mapping[str, str]:
    try:
        pairs = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
