"""A free port of this host, kept for a launch until its own program listens there.

Owns the search and the reservation: a socket that is bound to the port and never listens, for as long as
the supervisor lives. To bind a port without SO_REUSEADDR, as every search does first, the kernel refuses beside
any other socket there, whoever's it is; torch and the preflight ask for SO_REUSEADDR and so may listen
beside one that has it and does not. No lock file could do that: many clusters give each job a /tmp of
its own, and the port is wanted by other users as well. Knows no scheduler.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from train.base import nic
from train.base.nic import NetworkError


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
