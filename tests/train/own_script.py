"""A user's own training, started again and again as one rank of a job in a directory that is claimed."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import traceback
from pathlib import Path
from threading import Timer
from typing import TextIO

from train.__main__ import main
from train.base.errors import exit_now
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

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        """The launcher's variables, and these."""
        return {
            "PYTHONPATH": str(ROOT),
            "DDPGEN_CHECKPOINT_DIR": str(self.directory),
            "DDPGEN_ATTEMPT": self.attempt,
            **variables,
        }

    def start(
        self, *words: str, stderr: int = subprocess.STDOUT, **variables: str
    ) -> subprocess.Popen[str]:
        """`python -m train script WORDS`."""
        return subprocess.Popen(
            [sys.executable, "-m", "train", "script", *words], cwd=self.home, text=True,
            env=os.environ | self.environment(variables), stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip

    def begin(
        self, text: str, options: tuple[str, ...] = (), *arguments: str, **variables: str
    ) -> subprocess.Popen[str] | Fork:
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


class ForkedJob(Job):
    """Each start is a fork of this process, which has imported torch and its compiler: a new
    interpreter would spend four seconds of processor on that import."""

    def start(self, *words: str, stderr: int = subprocess.STDOUT, **variables: str) -> Fork:  # type: ignore[override]
        """`python -m train script WORDS`, with standard error in the output."""
        assert stderr == subprocess.STDOUT
        import torch

        from tests.train.workers import import_compiler

        import_compiler()
        torch.set_num_threads(1)  # a fork has no threads of OpenMP, and would wait for them
        return Fork(["script", *words], self.home, self.environment(variables))


class Fork:
    """`python -m train WORDS` without a new interpreter; to be waited for as a subprocess.Popen is."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        reading, writing = os.pipe()
        self.stdout: TextIO = os.fdopen(reading)
        self._process = multiprocessing.get_context("fork").Process(
            target=_enter, args=(words, cwd, env, writing)
        )
        self._process.start()
        os.close(writing)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """All that it says. A process that takes longer than `timeout` is killed."""
        killer = Timer(timeout, self.kill)
        killer.start()
        with self.stdout:
            said = self.stdout.read()
        self._process.join()
        killer.cancel()
        return said, None

    def kill(self) -> None:
        self._process.kill()


def _enter(words: list[str], cwd: Path, env: dict[str, str], output: int) -> None:
    atexit._clear()  # what this process's parent does at its end
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))  # as -m does
    try:
        code = main(words)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    except BaseException:  # noqa: BLE001 - shown to whoever reads the output
        traceback.print_exc()
        code = 1
    exit_now(code)


def wait_for_line(process: subprocess.Popen[str] | Fork) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
