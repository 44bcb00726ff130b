"""Run other programs in the foreground: a rendered artefact, ssh, a command of the training module."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ddpgen.errors import TargetUnavailableError
from ddpgen.resources import resource


def say(text: str) -> None:
    """To the user, on stderr."""
    print(text, file=sys.stderr, flush=True)


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by `argv`, so that Ctrl-C and the exit code are the job's own.

    Raises TargetUnavailableError when the program is not there.
    """
    say(f"+ {shlex.join(argv)}")
    _exec(argv)


class Interrupts:
    """While it is entered, Ctrl-C, SIGTERM and SIGHUP end nothing here: the program that `run` runs gets them.
    `heard`: whether one has come."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._missed = 0

    def __enter__(self) -> Interrupts:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, argv: Sequence[str], stdout: int | None = None) -> int:
        """Run `argv` and wait for it; the exit code. `stdout`: another descriptor than ours.

        Raises TargetUnavailableError when the program is not there.
        """
        say(f"+ {shlex.join(argv)}")
        self._missed = 0
        try:
            # In a session of its own: it gets a Ctrl-C from here alone, as two of them kill.
            child = subprocess.Popen(argv, stdout=stdout, start_new_session=True)
        except OSError as error:
            raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
        self._child = child
        if self._missed:
            child.send_signal(self._missed)
        code = child.wait()
        self._child = None
        return code if code >= 0 else 128 - code

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.set()
        if self._child is None:
            self._missed = number
        else:
            self._child.send_signal(number)


def output(argv: Sequence[str], where: Path | None = None) -> tuple[int, str]:
    """Run `argv` in `where`: its exit code and what it says on standard output.

    Raises TargetUnavailableError when the program is not there.
    """
    try:
        done = subprocess.run(
            argv, cwd=where, stdout=subprocess.PIPE, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    return done.returncode, done.stdout


def stream(argv: Sequence[str], text: bytes) -> int:
    """Run `argv`, whose output is ours, with `text` on its input, which stays open until it ends; its exit
    code. Raises TargetUnavailableError when the program is not there.
    """
    try:
        running = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0)
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    with running:
        assert running.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its exit code says why
            running.stdin.write(text)
        return running.wait()


def become_module(command: str, directory: Path, options: Sequence[str], *more: Path) -> NoReturn:
    """Replace this process by a command of the training module: doctor, report, diff, verify.

    It runs where that module lies: one of the user's that is called `train` must not come first. It
    only looks, so it is not echoed, and speaks under the name it was called by.
    """
    _exec(*_module(command, directory, options, *more))


def output_of_module(command: str, directory: Path, options: Sequence[str]) -> tuple[int, str]:
    """Run such a command: its exit code and what it says on standard output."""
    return output(*_module(command, directory, options))


def _module(
    command: str, directory: Path, options: Sequence[str], *more: Path
) -> tuple[list[str], Path]:
    """Its words, and where it runs."""
    os.environ.setdefault("DDPGEN_CALLED_AS", f"ddpgen {command}")
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # it hides the training module, which lies in the directory
    paths = (str(path.absolute()) for path in (directory, *more))
    words = ["-m", "train", command, *options, "--", *paths]
    return [sys.executable, "-B", *words], resource("train").parent


def _exec(argv: Sequence[str], where: Path | None = None) -> NoReturn:
    sys.stdout.flush()
    try:
        if where is not None:
            os.chdir(where)
        os.execvp(argv[0], list(argv))
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
