"""Run other programs in the foreground: a rendered artefact, ssh, a command of the training module."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ddpgen.errors import TargetUnavailableError
from ddpgen.resources import resource

START = {"local": "local.sh", "hosts": "hosts/run.sh"}  # of each tier, in the bundle


def say(text: str) -> None:
    """To the user, on stderr."""
    print(text, file=sys.stderr, flush=True)


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by `argv`, so that Ctrl-C and the exit code are the job's own.

    Raises TargetUnavailableError when the program is not there.
    """
    say(f"+ {shlex.join(argv)}")
    _exec(argv)


def run(argv: Sequence[str], stdout: int | None = None) -> int:
    """Run `argv` and wait for it, whose Ctrl-C is its own affair; the exit code. `stdout`: another descriptor
    than ours.

    Raises TargetUnavailableError when the program is not there.
    """
    print("+", shlex.join(argv), file=sys.stderr, flush=True)
    try:
        child = subprocess.Popen(argv, stdout=stdout)
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # the terminal has signalled it as well


def output(argv: Sequence[str]) -> tuple[int, str]:
    """Run `argv`: its exit code and what it says on standard output.

    Raises TargetUnavailableError when the program is not there.
    """
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, errors="replace", check=False
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


def become_module(command: str, directory: Path, options: Sequence[str]) -> NoReturn:
    """Replace this process by a command of the training module that needs no torch: doctor, report.

    It runs where that module lies: one of the user's that is called `train` must not come first. It
    only looks, so it is not echoed, and speaks under the name it was called by.
    """
    home, words = resource("train").parent, [*options, "--", str(directory.absolute())]
    os.environ["DDPGEN_CALLED_AS"] = f"ddpgen {command}"
    _exec([sys.executable, "-B", "-m", "train", command, *words], home)


def _exec(argv: Sequence[str], where: Path | None = None) -> NoReturn:
    sys.stdout.flush()
    try:
        if where is not None:
            os.chdir(where)
        os.execvp(argv[0], list(argv))
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
