"""A free port of this host, kept for a launch until its own program listens there.

Owns the search and the reservation: a socket that is bound to the port and never listens, in a process
of its own. To bind a port without SO_REUSEADDR, as every search does first, the kernel refuses beside
any other socket there, whoever's it is; torch and the preflight ask for SO_REUSEADDR and so may listen
beside one that has it and does not. No lock file could do that: many clusters give each job a /tmp of
its own, and the port is wanted by other users as well. Knows no scheduler.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from train import nic, processes
from train.nic import NetworkError

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_S = 1.0


def reserve(address: str, ports: Sequence[int], start: int) -> socket.socket:
    """A socket bound to the first port that is free, from the one at `start` (modulo their number)
    on and around. Raises NetworkError."""
    for turn in range(len(ports)):
        port = ports[(start + turn) % len(ports)]
        found = _bound(port)
        if found is None:
            continue
        try:
            nic.check_port_free(address, port)
        except NetworkError:
            found.close()
            continue
        return found
    raise NetworkError(
        f"none of the ports {ports[0]}-{ports[-1]} of {socket.gethostname()} ({address}) is free "
        "(ss -ltn shows who listens)",
        "set rendezvous.port in the spec to another port, or another range of them",
    )


def _bound(port: int) -> socket.socket | None:
    """A socket that keeps everybody off `port` who does not ask for SO_REUSEADDR; None if taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.bind(("", port))
    except OSError as error:
        made.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise NetworkError(
                f"{socket.gethostname()} cannot bind port {port}: {error.strerror}"
            ) from None
        return None
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def hold(reserved: socket.socket, pid: int) -> None:
    """Have a process of its own keep the reservation as long as `pid` lives.

    Raises ProcessLookupError where there is no such process. Holds no pipe or directory of this one.
    """
    started = processes.start_time(pid)
    with contextlib.suppress(PermissionError):  # there is one, of another user
        os.kill(pid, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        _become_a_keeper(reserved.fileno())
        _await_end(pid, started)
    finally:
        os._exit(0)


def _become_a_keeper(kept: int) -> None:
    os.setsid()  # Ctrl-C and a closing terminal are the script's business
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    # Whoever reads the output of this command waits for its end: `$(…)` in a script, for one.
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    for descriptor in _open_descriptors():
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _open_descriptors() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/dev/fd")]
    return list(range(256))


def _await_end(pid: int, started: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # an old kernel, or none of Linux
        # Of a process that is gone by now it raises ProcessLookupError.
        watched = os.pidfd_open(pid)
        if processes.start_time(pid) == started:
            select.select([watched], [], [])
        return
    while processes.process_state(pid, started) not in ("", "Z"):
        time.sleep(_LOOK_S)  # without pidfd_open(2) there is nothing to wait on
