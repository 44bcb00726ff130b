"""The tier `local`: all processes run on this machine, and a file keeps the output of a user's program."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from train.base.console import say
from train.launch import directory
from train.launch.decision import End, ExitReport, at_end
from train.launch.tier import Membership, Tier
from train.launch.words import Command

_LAST_WORDS_S = 2.0


class Local(Tier):
    """One machine, which meets no other host."""

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        self._options = options
        self._results = directory.of(options.checkpoint_dir)
        self._command = command
        self._kept: KeptOutput | None = None
        point = [f"--point={options.point}"] if options.point else []
        self.restart_command = shlex.join(
            ["bash", os.path.join(os.getcwd(), "local.sh"), *point, *command.arguments]
        )

    def membership(self) -> Membership:
        procs = self._options.procs
        return Membership(host_name=socket.gethostname(), procs=procs, world_size=procs)

    def prepare(self, member: Membership, address: str) -> None:
        """Keep the output of a user's program, which no other file has. A workload's progress is in metrics.jsonl."""
        if self._command.program[0] != "script":
            return
        try:
            self._kept = KeptOutput(self._results / "logs" / time.strftime("%Y%m%d-%H%M%S.log"))
        except OSError as error:
            say(f"{error.filename}: {error.strerror}; what is printed is kept in no file")

    def report(self, outcome: ExitReport) -> None:
        if self._kept is not None:
            self._kept.end()

    def at_end(self, end: End) -> ExitReport:
        results = f"results are in {self._results}"
        if self._kept is not None:
            results = f"what it printed is in {self._results / 'logs'}"
        return at_end(end, results, self.restart_command)


class KeptOutput:
    """Copy the output of this process and its children to `file`, from now on.

    tee(1) does it, because tee goes on when the terminal is gone or the disk is full.
    """

    def __init__(self, file: Path) -> None:
        """Start to append the output to `file`. Raises OSError, and then nothing has changed."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._tees = []
        outputs = [(1, 2)] if os.path.sameopenfile(1, 2) else [(1,), (2,)]
        self._own = {fd: os.dup(fd) for fds in outputs for fd in fds}
        for fds in outputs:
            reading, writing = os.pipe()
            # tee must ignore the job's signals, and end only with its input. A shell sets that up, because this process
            # has several threads and so may run no code between fork and exec.
            words = ["sh", "-c", 'trap "" INT TERM HUP; exec tee -a "$1"', "sh", str(file)]
            tee = subprocess.Popen(words, stdin=reading, stdout=fds[0])
            self._tees.append(tee)
            for fd in fds:
                os.dup2(writing, fd)
            os.close(reading)
            os.close(writing)

    def end(self) -> None:
        """Print directly again, without tee. Wait at most 2 s for each tee, until it has printed the earlier output."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, own in self._own.items():
            os.dup2(own, fd)
            os.close(own)
        for tee in self._tees:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tee.wait(_LAST_WORDS_S)
