"""The outside of a rig's keeper: starts it, and what it is asked to start.

Owns the pipe that is the rig's life, and one FIFO for each thing started, by which that reports and, by
its end-of-file, dies. Knows nothing of hosts or networks.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.real.rig.errors import RigError
from tests.real.rig.tools import SEARCH, mark, program, where

PATIENCE_S = 60.0


class Reports:
    """Lines that something in the rig writes, and the end of them."""

    def __init__(self, descriptor: int, log: Path) -> None:
        self._descriptor = descriptor
        self._log = log
        self._pending = b""

    def line(self) -> str:
        """The next line; RigError with what the log says when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            piece = self._piece(left) if left > 0 else b""
            if not piece:
                said = self._log.read_text() if self._log.exists() else ""
                raise RigError(f"{self._log.stem} did not come up: {said.strip() or 'no word'}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._descriptor)

    def _piece(self, left: float) -> bytes:
        # A FIFO that nobody has opened for writing yet is not readable; one that everybody has left is.
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return os.read(self._descriptor, 4096) if poll.poll(left * 1000) else b""


class Keeper:
    """PID 1 around everything in the rig. Closing it, or dying, ends everything in the rig."""

    def __init__(self, directory: Path, lifetime_s: float) -> None:
        self._directory = directory
        self._number = 0
        (directory / "disks").mkdir()
        log = directory / "keeper.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    *(where("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child"),
                    *(*program("keep"), str(directory), str(lifetime_s)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # The terminal's Ctrl-C is for the test; how the rig ends is the test's affair.
                start_new_session=True,
                # A machine does not know its maker's environment; the mark is for tests/conftest.py,
                # which finds by it what a test, or the session, left running.
                env={"PATH": SEARCH, "LANG": "C.UTF-8", **mark()},
            )
        assert self._process.stdout is not None
        try:
            self.pid = int(Reports(self._process.stdout.fileno(), log).line())
        except BaseException:
            self.close()
            raise

    def start(self, name: str, argv: Sequence[str]) -> Reports:
        """Start something in the keeper's namespaces."""
        self._number += 1
        fifo = self._directory / f"{self._number}.fifo"
        log = self._directory / f"{name}.log"
        os.mkfifo(fifo)
        reports = Reports(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), log)
        self._ask({"argv": list(argv), "out": str(fifo), "log": str(log)})
        return reports

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RigError("the rig is gone: its keeper has ended") from None

    def close(self) -> None:
        """End it, and wait until all it kept is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
