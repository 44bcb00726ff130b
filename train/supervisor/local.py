"""The tier `local`: all processes on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import time

from train.console import say
from train.supervisor import directory
from train.supervisor.decision import End, Outcome, at_end
from train.supervisor.output import KeptOutput
from train.supervisor.supervisor import Membership, Tier
from train.supervisor.words import Command


class Local(Tier):
    """One machine, which meets nobody."""

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        self._options = options
        self._results = directory.of(options.checkpoint_dir)
        self._command = command
        self._kept: KeptOutput | None = None
        self.again = shlex.join(["bash", os.path.join(os.getcwd(), "local.sh"), *command.arguments])

    def membership(self) -> Membership:
        procs = self._options.procs
        return Membership(me=socket.gethostname(), procs=procs, world_size=procs)

    def prepare(self, member: Membership, address: str) -> None:
        """What a user's program prints is nowhere else; a workload's progress is in metrics.jsonl."""
        if self._command.program[0] != "script":
            return
        try:
            self._kept = KeptOutput(self._results / "logs" / time.strftime("%Y%m%d-%H%M%S.log"))
        except OSError as error:
            say(f"{error.filename}: {error.strerror}; what is printed is kept in no file")

    def report(self, outcome: Outcome) -> None:
        if self._kept is not None:
            self._kept.end()

    def at_end(self, end: End) -> Outcome:
        results = f"results are in {self._results}"
        if self._kept is not None:
            results = f"what it printed is in {self._results / 'logs'}"
        return at_end(end, results, self.again)
