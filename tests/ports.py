"""Ports for tests that run side by side, in as many processes as there are."""

from __future__ import annotations

import fcntl
import socket
import tempfile
from pathlib import Path
from typing import IO

_HELD: list[IO[str]] = []


def free_port() -> int:
    """A port with three more after it that nobody uses, outside the range of outgoing connections.

    They are this process' until it ends. Raises OSError when there are none left.
    """
    for port in range(23000, 32000, 7):
        claim = Path(tempfile.gettempdir(), f"ddpgen-test-port-{port}").open("w")  # noqa: SIM115
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for k in range(4):
                # Without SO_REUSEADDR: what an earlier test's connections still keep is not free.
                with socket.socket() as probe:
                    probe.bind(("", port + k))
        except OSError:
            claim.close()
            continue
        _HELD.append(claim)
        return port
    raise OSError("no free port")
