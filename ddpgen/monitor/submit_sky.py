"""Hand a rendered bundle to SkyPilot: what can be seen to be missing first, then the launch itself.

Owns what has to be there before machines are paid for. A refusal is shown as SkyPilot gave it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import bucket, managed, skypilot, snapshot, store
from ddpgen.monitor.managed import Managed
from ddpgen.monitor.record import Launched
from ddpgen.spec.sky import SkyJob


def submit(job: SkyJob, bundle: Path, arguments: Sequence[str]) -> Launched:
    """Launch a copy of `bundle` as a managed job.

    Raises TargetUnavailableError when something is missing, or SkyPilot refuses; FileTroubleError.
    """
    missing = [*_missing(job), *_unsayable(arguments)]
    if missing:
        raise TargetUnavailableError("\n".join(missing))
    _fits()
    _alone(job.name)
    _open(job)
    copy = snapshot.take(bundle)
    words = managed.launch(job.name, job.secrets, arguments)
    _say(f"+ {skypilot.typed(words, copy.path)}")
    unsure = f"whether it was launched all the same, {skypilot.typed(['jobs', 'queue'])} tells"
    try:
        answer = skypilot.show(words, copy.path)
    except TargetUnavailableError as error:
        raise TargetUnavailableError(f"{error}\n{unsure}") from None
    except KeyboardInterrupt:
        _say(unsure)
        raise
    number = managed.submitted(answer.said)
    if number is None:
        message = "SkyPilot has not launched the job, see above"
        if answer.code == 0:
            message = f"SkyPilot did not say the job's id; {skypilot.typed(['jobs', 'queue'])} may"
        elif "Connection" in managed.complaint(answer.said):
            message = f"{message}; {unsure}"  # its server may go on with it
        else:
            snapshot.give_up(copy)
        raise TargetUnavailableError(message)
    return Launched("sky", number)


def _missing(job: SkyJob) -> Iterator[str]:
    for name in job.secrets:
        if not os.environ.get(name):
            yield f"{name} is not in your environment; export it, or take it out of targets.sky.secrets"


def _unsayable(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if not argument or len(argument.split()) != 1 or argument.strip() != argument:
            yield (
                f"{argument!r} cannot be handed to the machines: one word without spaces each; write it "
                "into the spec"
            )


def _fits() -> None:
    """Raise TargetUnavailableError for a SkyPilot that was never tried."""
    found = skypilot.version()
    if found[:2] != managed.FITS:
        wanted = ".".join(map(str, managed.FITS))
        have = ".".join(map(str, found))
        raise TargetUnavailableError(
            f"this is SkyPilot {have}, and ddpgen is for {wanted}; {skypilot.INSTALL}"
        )


def _alone(name: str) -> None:
    """Raise TargetUnavailableError when a job of this name lives: two would want the same place in the
    bucket, and the second finds that out on machines that are paid for."""
    answer = skypilot.ask(managed.queue())
    found = managed.from_queue(answer.said)
    if answer.code != 0 or found is None:
        if managed.nothing_up(answer.said):
            return
        told = managed.complaint(answer.said)
        raise TargetUnavailableError(f"SkyPilot does not say which jobs there are: {told}")
    alive: list[Managed] = [job for job in found if job.name == name and not job.over]
    if alive:
        told = ", ".join(f"{job.id} ({job.words})" for job in alive)
        ends = skypilot.typed(managed.cancel([job.id for job in alive]))
        remedy = f"ddpgen stop ends it cleanly, {ends} at once"
        if all(job.ending for job in alive):
            remedy = "launch again when it is gone"
        raise TargetUnavailableError(f"there is a job called {name} already: {told}; {remedy}")


def _open(job: SkyJob) -> None:
    """Raise TargetUnavailableError when the bucket itself says no; one that cannot be looked into from
    here is left to the machines."""
    at = bucket.address(job, os.environ)
    if at is not None and (told := store.shut(at)):
        raise TargetUnavailableError(
            f"{at.url}: {told}; the bucket has to exist, and whoever launches to be allowed to list, "
            "read, write and delete there"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
