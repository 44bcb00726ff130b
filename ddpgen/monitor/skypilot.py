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

from ddpgen.driver.child import Child
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import sky_jobs
from ddpgen.monitor.places import Ran

VARIABLE = "DDPGEN_SKY"
# It starts its server when there is none, and wakes a controller in the cloud.
ANSWER_S = 300.0
INSTALL = (
    f"python3 -m venv ~/skypilot && ~/skypilot/bin/pip install 'skypilot[aws]=={sky_jobs.FITS}.*', then "
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


def typed(words: Sequence[str], directory: Path | None = None) -> str:
    """What to type for that, from the user's working directory."""
    line = shlex.join([*command(), *words])
    return (
        line if directory is None else f"(cd {shlex.quote(os.path.relpath(directory))} && {line})"
    )


def _run(argv: Sequence[str], within: float | None, shown_in: Path | None = None) -> Ran:
    try:
        code, output = asyncio.run(_running(argv, within, shown_in))
    except OSError as error:
        raise TargetUnavailableError(
            f"cannot start {argv[0]}: {error.strerror}; {INSTALL}"
        ) from None
    if code is None:
        raise TargetUnavailableError(
            f"{shlex.join(argv)}: no answer within {within:.0f} s; is SkyPilot's server up? {argv[0]} api "
            "info tells"
        )
    return Ran(code, sky_jobs.plain(output.decode("utf-8", "replace")))


async def _running(
    argv: Sequence[str], within: float | None, shown_in: Path | None
) -> tuple[int | None, bytes]:
    heard = bytearray()

    def hear(data: bytes) -> None:
        heard.extend(data)
        with contextlib.suppress(OSError):  # stderr is closed; the launch goes on
            while shown_in and data:
                data = data[os.write(2, data) :]

    running = await Child.start(argv, hear, str(shown_in) if shown_in else None)
    try:
        running.close_input()
        code = await running.ended_within(within)
    finally:
        await running.kill()
    return code, bytes(heard)
