"""The tier `slurm` on every node: what srun starts there.

Owns what this node is among the others, what Slurm's signals mean there, and what the batch supervisor
hears of its end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from pathlib import Path

from train.base.scheduler import VARIABLE, Scheduled
from train.launch.decision import End, ExitReport, Request, crash
from train.launch.slurm.batch import Slurm
from train.launch.slurm.decision import AGAIN
from train.launch.slurm.directory import Directory
from train.launch.tier import Membership, Tier
from train.launch.words import Command


class SlurmNode(Tier):
    """One node of a start."""

    again = AGAIN
    decides = False
    # Slurm sends its signals to every process of the step: a step and its checkpoint are finished first.
    ignored = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """What the batch supervisor was told, and what it has found out."""
        Slurm.add_options(parser)
        add = parser.add_argument
        add("--head", required=True, help="the name of the first node")
        add("--address", required=True, help="of the head")
        add("--port", type=int, required=True)

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        self._options = options
        self.scheduler = os.environ[VARIABLE]
        start = Scheduled.parse(self.scheduler)
        assert start is not None
        self._directory = Directory(
            Path(options.checkpoint_dir), start.job, os.environ["SLURM_JOB_ID"], start.restarts
        )
        self._me = os.environ["SLURMD_NODENAME"]
        self._stops = 0

    def membership(self) -> Membership:
        names = os.environ["DDPGEN_ROSTER"].splitlines()
        rank, procs = int(os.environ["SLURM_NODEID"]), self._options.procs
        return Membership(
            me=self._me,
            procs=procs,
            world_size=procs * len(names),
            node_rank=rank,
            first_rank=rank * procs,
            nodes=len(names),
            least=len(names),
            head=self._options.head,
            head_address=self._options.address,
            port=self._options.port,
            roster=[(name, "") for name in names],
            launch=self._directory.launch,
        )

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        """A stop, however often it comes. Before the processes of all nodes have met, nobody looks for the
        stop file; then the launcher is ended."""
        self._stops += 1
        message = f"{name}: asking for a clean stop"
        return Request("stop" if met else "end", message, f"{self.scheduler} {name}")

    def not_begun(self, name: str) -> ExitReport:
        self._stops += 1
        with contextlib.suppress(OSError):
            self._directory.request_stop(name)
        return ExitReport(0, (f"{self._me}: stopped before the training began",))

    def at_end(self, end: End) -> ExitReport:
        """0 for what is no failure of this node: what it means for the job is for the batch supervisor."""
        word = end.status.word if end.status else ""
        if word in ("done", "stopped"):
            return ExitReport(0)
        if word == "failed":
            return ExitReport(1)
        if end.stops and not end.met:
            return ExitReport(0, (f"{self._me}: stopped before the training began",))
        # It may have ended as if all were well, and nobody says so.
        noted = end.status.reason if end.status else ""
        return ExitReport(end.code or 1, (f"{self._me}: crashed: {crash(end)}",), noted)

    def report(self, outcome: ExitReport) -> None:
        """What this node decides by itself: srun then ends the others, and may drop what it has said."""
        if outcome.code and not self._stops:
            words = outcome.lines[-1] if outcome.lines else outcome.reason
            self._directory.keep_failure(
                outcome.code, self._me, words.removeprefix(f"{self._me}: ")
            )
