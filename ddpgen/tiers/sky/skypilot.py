"""Run SkyPilot's command line, which is installed in an environment of its own. Never imports SkyPilot.

Owns the command's name, the time limit of an answer, and the message for a program that is missing or does not
answer.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ddpgen.driver import child, trace
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import places
from ddpgen.monitor.places import ProgramResult
from ddpgen.tiers.sky import jobs

VARIABLE = "DDPGEN_SKY"
# A command may first start SkyPilot's server and wake a controller in the cloud.
ANSWER_S = 300.0
INSTALL = (
    f"install it: python3 -m venv ~/skypilot && ~/skypilot/bin/pip install 'skypilot[aws]=={jobs.VERSION}.*'; "
    f"then put it on PATH, or export {VARIABLE}=~/skypilot/bin/sky"
)


def command() -> list[str]:
    """Return the words that start SkyPilot. Raise TargetUnavailableError if the variable cannot be split."""
    try:
        words = shlex.split(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise TargetUnavailableError(f"{VARIABLE}: {error}; write it as for a shell") from None
    if not words:
        return ["sky"]
    return [os.path.expanduser(words[0]), *words[1:]]


def ask(words: Sequence[str]) -> ProgramResult:
    """Run a command and return its answer. Raise TargetUnavailableError if SkyPilot is missing or silent."""
    return _run([*command(), *words], ANSWER_S)


def show(words: Sequence[str], directory: Path) -> ProgramResult:
    """Run a command in `directory` and show its output on stderr, unless the user wants only errors.

    It has no time limit, because the very first launch waits for the controller's machine.
    """
    return _run([*command(), *words], None, directory)


def shell_line(words: Sequence[str], directory: str = ".") -> str:
    """Return the line that a user types for this command in their working directory."""
    return places.shell_line([*command(), *words], directory)


def _run(
    argv: Sequence[str], timeout_s: float | None, shown_directory: Path | None = None
) -> ProgramResult:
    directory = str(shown_directory) if shown_directory else None
    show = _show if shown_directory and not trace.quiet() else None
    try:
        outcome = places.finish(child.run(argv, b"", timeout_s, directory, show))
    except OSError as error:
        raise TargetUnavailableError(
            f"cannot start {argv[0]}: {error.strerror}; {INSTALL}"
        ) from None
    if outcome.code is None:
        raise TargetUnavailableError(
            f"{shlex.join(argv)}: no answer within {timeout_s:.0f} s; is SkyPilot's server up? {argv[0]} api "
            "info tells"
        )
    return ProgramResult(outcome.code, jobs.plain(outcome.output.decode("utf-8", "replace")))


def _show(data: bytes) -> None:
    with contextlib.suppress(OSError):  # stderr is closed; the launch goes on
        while data:
            data = data[os.write(2, data) :]
