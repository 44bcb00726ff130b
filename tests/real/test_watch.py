"""A training that somebody watches on a terminal."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from tests.real import jobs

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
STEPS = 400
ENDED = b"\x1b[?25h"  # the cursor is shown again


class Terminal:
    """`ddpgen status JOB --watch` on a terminal of its own."""

    def __init__(self, job: Path) -> None:
        self.said = b""
        words = ["-m", "ddpgen", "status", str(job), "--watch"]
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(PYTHONPATH=str(jobs.ROOT), TERM="xterm", COLUMNS="80", LINES="24")
            os.execv(sys.executable, [sys.executable, *words])

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read on until it has been shown; what was shown before is forgotten."""
        while not (found := re.search(pattern, self.said)):
            self.said += os.read(self.master, 4096)
        self.said = self.said[found.end() :]
        return found

    def end(self) -> int:
        """Read on to the end; the exit code."""
        try:
            while more := os.read(self.master, 4096):
                self.said += more
        except OSError:  # nobody is there any more
            pass
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_steps_are_seen_to_go_by_until_the_end(tmp_path: Path) -> None:
    until = tmp_path / "go"
    train = {
        "workload": jobs.PACED, "steps": STEPS, "global_batch_size": 8, "micro_batch_size": 4,
        "args": {"pause": 0.05, "until": str(until)},
    }  # fmt: skip
    job = jobs.Job(jobs.render(tmp_path, jobs.spec(train)))
    job.until_step(1)
    directory = tmp_path / "checkpoints" / "job"
    first, second = Terminal(directory), Terminal(directory)
    shown = rb"(\d+) of 400"
    step = int(first.until(shown)[1])
    while int(first.until(shown)[1]) <= step:
        pass
    first.until(rb"every 1 s")
    os.write(first.master, b"\x03")
    assert first.end() == 130
    assert ENDED in first.said
    assert b"Traceback" not in first.said
    assert b"abort" not in first.said
    second.until(shown)
    until.touch()
    second.until(rb"done at step 400")
    assert second.end() == 0
    assert b"100%" in second.said
    assert ENDED in second.said
    assert job.end() == 0
