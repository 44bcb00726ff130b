"""A user's own training, started again and again as one rank of a job in a directory that is claimed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from train.run.lock import claim
from train.run.status import Status, read_status, write_status

ROOT = Path(__file__).parents[2]


class Job:
    """`code`: where the user's files are; `directory`: the checkpoint directory, with the status `running … 7`."""

    def __init__(self, home: Path) -> None:
        self.home, self.code, self.directory = home, home / "code", home / "checkpoints"
        self.code.mkdir(parents=True)
        self.directory.mkdir()
        self.work = self.directory / "work"
        self.attempt = claim(self.directory, "mine", os.getpid())
        write_status(self.directory, Status("running", self.attempt, 7))

    def start(
        self, *words: str, stderr: int = subprocess.STDOUT, **variables: str
    ) -> subprocess.Popen[str]:
        """`python -m train script WORDS`."""
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DDPGEN_CHECKPOINT_DIR": str(self.directory),
            "DDPGEN_ATTEMPT": self.attempt,
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "train", "script", *words],
            cwd=self.home, env=env, text=True, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip

    def begin(
        self, text: str, options: tuple[str, ...] = (), *arguments: str, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a script of this text."""
        (self.code / "loop.py").write_text(text)
        return self.start(*options, "code/loop.py", *arguments, **variables)

    def run(
        self, text: str, options: tuple[str, ...] = (), *arguments: str, **variables: str
    ) -> tuple[int, str]:
        """Its exit code, and all that it says."""
        process = self.begin(text, options, *arguments, **variables)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def program(
        self, text: str, *options: str, arguments: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """Start a shell script of this text as a command."""
        path = self.code / "run.sh"
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        words = (*options, "--no-python", "./run.sh", *arguments)
        return self.start(*words, stderr=subprocess.PIPE, **variables)

    @property
    def status(self) -> Status:
        found = read_status(self.directory)
        assert found is not None
        return found

    def says(self, word: str, reason: str = "", step: int = 7) -> Status:
        """What the status is to be."""
        return Status(word, self.attempt, step, reason)


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
