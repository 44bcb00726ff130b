"""Run SkyPilot's command line, which lives in an environment of its own. It is never imported.

Owns which command that is, how long it may take, and the words for one that is missing or silent.
Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpgen.driver import child
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import managed
from ddpgen.monitor.places import Ran

VARIABLE = "DDPGEN_SKY"
# It starts its server when there is none, and wakes a controller in the cloud.
ANSWER_S = 300.0
# The first job of all waits for a controller's machine.
_LAUNCH_S = 3600.0
_FITS = f">={managed.FITS[0]}.{managed.FITS[1]},<{managed.FITS[0]}.{managed.FITS[1] + 1}"
INSTALL = (
    f"python3 -m venv ~/skypilot && ~/skypilot/bin/pip install 'skypilot[aws]{_FITS}', then "
    f"{VARIABLE}=~/skypilot/bin/sky, or have it on PATH"
)


def command(environment: Mapping[str, str]) -> list[str]:
    """The words that start SkyPilot. Raises TargetUnavailableError for a variable that is no words."""
    try:
        words = shlex.split(environment.get(VARIABLE, ""))
    except ValueError as error:
        raise TargetUnavailableError(f"{VARIABLE}: {error}; write it as for a shell") from None
    if not words:
        return ["sky"]
    return [os.path.expanduser(words[0]), *words[1:]]


def ask(words: Sequence[str], within: float = ANSWER_S) -> Ran:
    """One question. Raises TargetUnavailableError when there is no SkyPilot, or it does not answer."""
    argv = [*command(os.environ), *words]
    try:
        outcome = asyncio.run(child.run(argv, b"", within))
    except OSError as error:
        raise _missing(argv[0], error) from None
    return _ran(outcome, argv, within)


def version() -> tuple[int, ...]:
    """Which SkyPilot it is. Raises TargetUnavailableError, also for a program that is none."""
    answer = ask(managed.version())
    found = managed.version_in(answer.said)
    if found is not None and answer.code == 0:
        return found
    asked, told = typed(managed.version()), managed.complaint(answer.said)
    if answer.code != 0:
        raise TargetUnavailableError(f"{asked} does not work: {told}")
    remedy = f"name SkyPilot's own program in {VARIABLE}, as ~/skypilot/bin/sky"
    raise TargetUnavailableError(f"{asked}: this is no SkyPilot: {told}; {remedy}")


def show(words: Sequence[str], directory: Path) -> Ran:
    """The same in `directory`, and what it says is shown on stderr while it says it."""
    argv = [*command(os.environ), *words]
    if not directory.is_dir():
        raise TargetUnavailableError(f"{directory} is not there any more; render again")
    try:
        outcome = asyncio.run(_shown(argv, str(directory)))
    except OSError as error:
        raise _missing(argv[0], error) from None
    return _ran(outcome, argv, _LAUNCH_S)


def typed(words: Sequence[str], directory: Path | None = None) -> str:
    """What to type for that, from where the user stands."""
    line = shlex.join([*command(os.environ), *words])
    return (
        line if directory is None else f"(cd {shlex.quote(os.path.relpath(directory))} && {line})"
    )


async def _shown(argv: Sequence[str], directory: str) -> child.Outcome:
    heard = bytearray()

    def hear(data: bytes) -> None:
        heard.extend(data)
        with contextlib.suppress(OSError):  # nobody watches any more; the launch goes on
            while data:
                data = data[os.write(2, data) :]

    running = await child.Child.start(argv, hear, directory)
    try:
        running.close_input()
        code = await running.ended_within(_LAUNCH_S)
    finally:
        await running.kill()
    return child.Outcome(code, bytes(heard))


def _ran(outcome: child.Outcome, argv: Sequence[str], within: float) -> Ran:
    if outcome.code is None:
        asked = shlex.join(argv)
        raise TargetUnavailableError(
            f"{asked}: no answer within {within:.0f} s; is SkyPilot's server up? {argv[0]} api info "
            "tells"
        )
    return Ran(outcome.code, managed.plain(outcome.output.decode("utf-8", "replace")))


def _missing(program: str, error: OSError) -> TargetUnavailableError:
    if os.environ.get(VARIABLE):
        what = f"{error.strerror}"
        if os.path.isdir(program):
            what = "that is a directory"
        elif isinstance(error, FileNotFoundError):
            what = "there is no such program"
        remedy = "name SkyPilot's program, as ~/skypilot/bin/sky"
        return TargetUnavailableError(f"{VARIABLE} names {program}: {what}; {remedy}")
    if isinstance(error, FileNotFoundError):
        return TargetUnavailableError(f"there is no {program} on this machine; {INSTALL}")
    return TargetUnavailableError(f"cannot start {program}: {error.strerror}; {INSTALL}")
