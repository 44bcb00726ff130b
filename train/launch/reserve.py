"""Reserve a free port of this host for a launch, until the launch's own program listens there.

Owns the search and the reservation. The reservation is a socket that is bound to the port as long as the supervisor
lives, and never listens. Every search first binds a port without SO_REUSEADDR. The kernel refuses that while another
socket, of any user, is bound to the port. Then the socket sets SO_REUSEADDR. PyTorch and the preflight set it as well,
so they may listen on the same port. A lock file could not reserve a port, because many clusters give each job its own
/tmp and because other users want the port as well. Knows no scheduler.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from train.base import nic
from train.base.nic import NetworkError


def reserve(address: str, ports: Sequence[int], start: int) -> socket.socket:
    """Return a socket that is bound to the first free port. The search begins at index `start` (modulo the number of
    ports) and goes around once. Raises NetworkError."""
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
    """Return a socket that keeps `port` from every program without SO_REUSEADDR; None if the port is taken."""
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
