"""Processes of this machine: what tells them, and the machine itself, from others.

Owns the looks into /proc; where there is none (macOS) it says what a signal 0 says. Knows nothing of
what the processes are for.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_EXITING = 0x4  # PF_EXITING of include/linux/sched.h, in the ninth field


def machine() -> str:
    """Names what this process sees of its machine: this boot, these processes, this network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:
        return socket.gethostname()


def process_state(pid: int, started: int) -> str:
    """The state of a process of this machine (proc_pid_stat(5)); "" when it is gone.

    "X" also of one that has begun to exit: its peers see their connections closed before it is a zombie.
    """
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except (OSError, OverflowError):
            return "?"
        return "?"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return state_in(file.read(), started)
    except OSError:
        return ""


def state_in(stat: bytes, started: int) -> str:
    """The same, from the content of /proc/PID/stat."""
    fields = stat.rpartition(b")")[2].split()
    if started and int(fields[19]) != started:
        return ""  # another process has this number by now
    state = fields[0].decode("ascii", "replace")
    return "X" if int(fields[6]) & _EXITING and state != "Z" else state


def start_time(pid: int) -> int:
    """What tells a process from another with its number; 0 where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
