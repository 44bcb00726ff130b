"""The tier `slurm` on every node, where srun starts it.

Owns the node's ranks, the reaction to Slurm's signals there, and the report of its end to the batch supervisor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from pathlib import Path

from train.base.errors import EXIT_FAILED
from train.base.scheduler import VARIABLE, Scheduled
from train.launch.decision import (
    DONE,
    FAILED,
    NOT_BEGUN,
    STOPPED,
    End,
    ExitReport,
    Request,
    judge,
)
from train.launch.slurm.batch import Slurm
from train.launch.slurm.decision import AGAIN
from train.launch.slurm.directory import Directory
from train.launch.tier import Membership, Tier
from train.launch.words import Command

_CODES = {DONE: 0, STOPPED: 0, NOT_BEGUN: 0, FAILED: EXIT_FAILED}


class SlurmNode(Tier):
    """One node of a start."""

    restart_command = AGAIN
    decides = False
    has_secrets = True  # the batch supervisor has read them
    # Slurm signals every process of srun's step. The workers ignore that, to finish a training step and its checkpoint.
    ignored = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options of the batch supervisor, and the options whose values it has found out."""
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
            host_name=self._me,
            procs=procs,
            world_size=procs * len(names),
            node_rank=rank,
            first_rank=rank * procs,
            nodes=len(names),
            min_nodes=len(names),
            head=self._options.head,
            head_address=self._options.address,
            port=self._options.port,
            roster=[(name, "") for name in names],
            launch=self._directory.launch,
        )

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        """Ask for a stop, however often a signal comes. Before the processes of all nodes have met, end the launcher,
        because nobody looks for the stop file then."""
        self._stops += 1
        message = f"{name}: asking for a clean stop"
        return Request("stop" if met else "end", message, f"{self.scheduler} {name}")

    def not_begun(self, name: str) -> ExitReport:
        self._stops += 1
        with contextlib.suppress(OSError):
            self._directory.request_stop(name)
        return ExitReport(0, (f"{self._me}: stopped before the training began",))

    def at_end(self, end: End) -> ExitReport:
        """Report 0 unless this node has failed. The batch supervisor decides what that means for the job."""
        kind, line, reason = judge(end)
        lines = () if kind in (DONE, STOPPED, FAILED) else (f"{self._me}: {line}",)
        # The launcher may have ended with 0 although no process has said that the job is over.
        code = _CODES.get(kind, end.code or EXIT_FAILED)
        return ExitReport(code, lines, reason)

    def report(self, outcome: ExitReport) -> None:
        """Put a failure of this node on file: srun then ends the other nodes, and may drop this node's output."""
        if outcome.code and not self._stops:
            words = outcome.lines[-1] if outcome.lines else outcome.reason
            self._directory.keep_failure(
                outcome.code, self._me, words.removeprefix(f"{self._me}: ")
            )
