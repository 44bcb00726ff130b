"""Run other programs in the foreground: a rendered artefact, ssh, a command of the training module."""

from __future__ import annotations

import contextlib
import logging
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

from ddpgen.driver import trace
from ddpgen.errors import TargetUnavailableError
from ddpgen.resources import resource

_log = logging.getLogger(__name__)


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by `argv`, so that Ctrl-C and the exit code are the job's own.

    Raises TargetUnavailableError when the program is not there.
    """
    _log.info(f"+ {shlex.join(argv)}")
    _exec(argv)


class Interrupts:
    """A context in which Ctrl-C, SIGTERM and SIGHUP go to the program that `run` runs, and do not end this process.

    `heard` is set when one of these signals has come, and `last` is the number of the newest. In any thread but the
    main thread the context changes nothing, because Python handles signals only in the main thread.
    """

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.last = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._missed = 0

    def __enter__(self) -> Interrupts:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        is_main = threading.current_thread() is threading.main_thread()
        heard = [n for n in numbers if is_main and signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, argv: Sequence[str], stdout: int | None = None) -> int:
        """Run `argv`, wait for its end, and return its exit code. `stdout`: a descriptor in place of our own.

        Raises TargetUnavailableError if the program is not there.
        """
        _log.info(f"+ {shlex.join(argv)}")
        self._missed = 0
        ended = trace.begin(argv)
        try:
            # The program gets a session of its own, so that a Ctrl-C reaches it only once, through this process. A
            # second signal would kill the program.
            child = subprocess.Popen(argv, stdout=stdout, start_new_session=True)
        except OSError as error:
            raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
        self._child = child
        if self._missed:
            child.send_signal(self._missed)
        code = child.wait()
        self._child = None
        ended(code)
        return code if code >= 0 else 128 - code

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.set()
        self.last = number
        if self._child is None:
            self._missed = number
        else:
            self._child.send_signal(number)


def in_foreground(argv: Sequence[str]) -> int:
    """Run `argv`, wait for its end, and return its exit code.

    A signal goes to the program at once, and to this process after the program's end.
    Raises TargetUnavailableError if the program is not there.
    """
    with Interrupts() as interrupts:
        code = interrupts.run(argv)
    if interrupts.last:
        signal.raise_signal(interrupts.last)
    return code


def output(argv: Sequence[str], where: Path | None = None) -> tuple[int, str]:
    """Run `argv` in `where`; return its exit code and its standard output.

    Raises TargetUnavailableError if the program is not there.
    """
    ended = trace.begin(argv, where)
    try:
        done = subprocess.run(
            argv, cwd=where, stdout=subprocess.PIPE, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    ended(done.returncode)
    return done.returncode, done.stdout


def stream(argv: Sequence[str], text: bytes) -> int:
    """Run `argv` with our own output and return its exit code.

    Its input is `text`, and stays open until the program ends. Raises TargetUnavailableError if the program is
    not there.
    """
    ended = trace.begin(argv)
    try:
        running = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0)
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    with running:
        assert running.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the program has ended; its exit code says why
            running.stdin.write(text)
        code = running.wait()
    ended(code)
    return code


def become_module(command: str, directory: Path, options: Sequence[str], *more: Path) -> NoReturn:
    """Replace this process by a command of the training module: doctor, report, diff, verify.

    The working directory is the one that holds the training module, because a user's own module `train` must not
    come first. The command is not echoed, because it only reads. Messages of the command begin with the name that the
    user typed.
    """
    words, where = _module(command, directory, options, *more)
    trace.begin(words, where)
    _exec(words, where)


def output_of_module(command: str, directory: Path, options: Sequence[str]) -> tuple[int, str]:
    """Run a command of the training module; return its exit code and its standard output."""
    return output(*_module(command, directory, options))


def _module(
    command: str, directory: Path, options: Sequence[str], *more: Path
) -> tuple[list[str], Path]:
    """Return the words of a command of the training module, and its working directory."""
    os.environ.setdefault("DDPGEN_CALLED_AS", f"ddpgen {command}")
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # it would hide the training module, which is in the working directory
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
