"""The driver's place: on the network of the hosts, and otherwise this machine as it is.

Owns starting commands there. They are ordinary children of the caller: same files, same user.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.real.rig.faults import Wired
from tests.real.rig.tools import TIMEOUT_S, program, where

Words = Sequence[Any]  # of str and Path


class Control(Wired):
    """A network namespace with a cable, for processes of this machine."""

    def came_up(self, pid: int) -> None:
        self._pid = pid

    @property
    def enter(self) -> list[str]:
        """Words to put before a command line, so that it runs here."""
        return [where("nsenter"), f"--net=/proc/{self.pid}/ns/net", "--"]

    def run(self, argv: Words, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.enter, *argv], timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True,
            text=True,
        )  # fmt: skip

    def connect(self, address: str, port: int, timeout_s: float = 10.0) -> socket.socket:
        """A TCP connection from here, for who is not here; ConnectionError tells why there is none."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                words = [*program("connect"), address, str(port), str(timeout_s)]
                done = subprocess.run(
                    [*self.enter, *words], stdout=theirs.fileno(), stderr=subprocess.PIPE, text=True,
                    timeout=timeout_s + TIMEOUT_S,
                )  # fmt: skip
            if done.returncode:
                raise ConnectionError(done.stderr.strip())
            return socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])

    def popen(self, argv: Words, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen([*self.enter, *argv], **options)
