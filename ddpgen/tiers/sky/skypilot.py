"""Run SkyPilot's command line, which lives in an environment of its own. It is never imported.

Owns which command that is, how long an answer may take, and the message for a program that is missing or
silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ddpgen.driver import child
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import places
from ddpgen.monitor.places import Ran
from ddpgen.tiers.sky import jobs

VARIABLE = "DDPGEN_SKY"
# It starts its server when there is none, and wakes a controller in the cloud.
ANSWER_S = 300.0
INSTALL = (
    f"python3 -m venv ~/skypilot && ~/skypilot/bin/pip install 'skypilot[aws]=={jobs.FITS}.*', then "
    f"{VARIABLE}=~/skypilot/bin/sky, or have it on PATH"
)


def command() -> list[str]:
    """The words that start SkyPilot. Raises TargetUnavailableError when the variable cannot be split."""
    try:
        words = shlex.split(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise TargetUnavailableError(f"{VARIABLE}: {error}; write it as for a shell") from None
    if not words:
        return ["sky"]
    return [os.path.expanduser(words[0]), *words[1:]]


def ask(words: Sequence[str]) -> Ran:
    """One question. Raises TargetUnavailableError when there is no SkyPilot, or it does not answer."""
    return _run([*command(), *words], ANSWER_S)


def show(words: Sequence[str], directory: Path) -> Ran:
    """The same in `directory`, shown on stderr while it runs, for as long as it takes.

    The first launch of all waits for a controller's machine.
    """
    return _run([*command(), *words], None, directory)


def typed(words: Sequence[str], directory: str = ".") -> str:
    """What to type for that, from the user's working directory."""
    return places.typed([*command(), *words], directory)


def _run(argv: Sequence[str], within: float | None, shown_in: Path | None = None) -> Ran:
    directory, show = (str(shown_in), _show) if shown_in else (None, None)
    try:
        outcome = asyncio.run(child.run(argv, b"", within, directory, show))
    except OSError as error:
        raise TargetUnavailableError(
            f"cannot start {argv[0]}: {error.strerror}; {INSTALL}"
        ) from None
    if outcome.code is None:
        raise TargetUnavailableError(
            f"{shlex.join(argv)}: no answer within {within:.0f} s; is SkyPilot's server up? {argv[0]} api "
            "info tells"
        )
    return Ran(outcome.code, jobs.plain(outcome.output.decode("utf-8", "replace")))


def _show(data: bytes) -> None:
    with contextlib.suppress(OSError):  # stderr is closed; the launch goes on
        while data:
            data = data[os.write(2, data) :]
