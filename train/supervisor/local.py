"""The tier `local`: all processes on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys

from train.supervisor.decision import End, Outcome, Request, at_end, not_begun, on_signal
from train.supervisor.supervisor import Membership, Tier


class Local(Tier):
    """One machine, which meets nobody."""

    scheduler = ""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._results = os.path.abspath(os.path.expanduser(options.checkpoint_dir))
        self.again = f"bash {shlex.quote(os.path.join(os.getcwd(), 'local.sh'))}"

    def membership(self) -> Membership:
        procs = self._options.procs
        return Membership(me=socket.gethostname(), procs=procs, world_size=procs)

    def network(self, member: Membership) -> tuple[str, str]:
        """Loopback needs no network, and works where the hostname does not resolve."""
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        return self._options.nic or loopback, "127.0.0.1"

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        return on_signal(name, stops, met)

    def not_begun(self, name: str) -> Outcome:
        return not_begun(self.again)

    def at_end(self, end: End) -> Outcome:
        return at_end(end, f"results are in {self._results}", self.again)
