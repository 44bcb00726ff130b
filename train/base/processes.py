"""Processes of this machine: the identity of the machine and of a process, the state of a process, and its end.

Reads /proc. Without /proc (macOS), a signal 0 shows if a process lives. Knows nothing of the purpose of the
processes, and nothing of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import socket
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
ENDED = ("", "Z", "X")  # the states of a process that has ended
_GRACE_S = 2.0
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h, in the ninth field


def machine() -> str:
    """Return a name of this machine as this process sees it: its boot, its pid namespace, its network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:
        return socket.gethostname()


def process_state(pid: int, started: int) -> str:
    """Return the state of a process of this machine (proc_pid_stat(5)); "" when it is gone.

    A process that has begun to exit is "X" as well, because its peers see their connections closed before it becomes a
    zombie.
    """
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            return "?"
        return "?"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return state_in(file.read(), started)
    except OSError:
        return ""


def state_in(stat: bytes, started: int) -> str:
    """Like process_state(), but from `stat`, the content of /proc/PID/stat."""
    fields = stat.rpartition(b")")[2].split()
    if started and int(fields[19]) != started:
        return ""  # the process is gone, and another one has its pid
    state = fields[0].decode("ascii", "replace")
    return "X" if int(fields[6]) & _EXITING and state != "Z" else state


def start_time(pid: int) -> int:
    """Return the start time of a process, which distinguishes it from a later one with its pid; 0 without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def age(pid: int) -> float | None:
    """Return the seconds since the start of a process; None if it is gone, or without /proc."""
    if not (started := start_time(pid)):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def die_with_parent(signum: signal.Signals) -> None:
    """Let the kernel send `signum` to this process when its parent dies (prctl(2), Linux only).

    Does nothing on another system (macOS). If a launcher is killed there, only the collective timeout ends its workers.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call; then nobody would ever send the signal.
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def end_group(group: int) -> None:
    """Ask the processes of a group to end, and kill the rest after 2 s, except processes of another user (sudo)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, signum)
            deadline = time.monotonic() + _GRACE_S
            while time.monotonic() < deadline:
                time.sleep(0.05)  # poll, because they are not children of this process
                os.killpg(group, 0)


def adopt_orphans() -> None:
    """Let orphaned descendants of this process become its children (prctl(2), Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(parent: int | None = None) -> list[int]:
    """Return the children of `parent`, by default of this process, including zombies; [] without /proc."""
    wanted, found = str(parent or os.getpid()).encode(), []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError), open(path, "rb") as file:
            if file.read().rpartition(b")")[2].split()[1] == wanted:
                found.append(int(path.split("/")[2]))
    return found
