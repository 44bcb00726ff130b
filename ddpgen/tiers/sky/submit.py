"""Submit a rendered bundle to SkyPilot: check first for everything that may be missing, then launch.

Owns the conditions for spending money on machines. Shows SkyPilot's refusal unchanged.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpgen.driver import secret_values, trace
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import places, snapshot
from ddpgen.monitor.record import Launch
from ddpgen.tiers.sky import bucket, follow, jobs, skypilot, store
from ddpgen.tiers.sky.fields import SkyJob

_log = logging.getLogger(__name__)


def submit(
    job: SkyJob, bundle: Path, arguments: Sequence[str], points: Sequence[str] = ()
) -> Launch:
    """Launch a copy of `bundle` as a managed job, or as one for each of `points`.

    Raises TargetUnavailableError if something is missing or SkyPilot refuses a job; FileTroubleError.
    """
    if not points:
        return Launch("sky", _submit(job, bundle, arguments))
    ids: dict[str, str] = {}
    for point in points:
        at_point = job.at_point(point)
        assert isinstance(at_point, SkyJob)
        ids[point] = _submit(at_point, bundle, (f"--point={point}", *arguments))
    return Launch("sky", ", ".join(ids.values()), points=ids)


def _submit(job: SkyJob, bundle: Path, arguments: Sequence[str]) -> str:
    """Launch one managed job and return its id."""
    values, missing = secret_values.read(dict(job.secrets), os.environ)
    if missing := [*missing, *_unfit(arguments)]:
        raise TargetUnavailableError("\n".join(missing))
    _check_version()
    _check_name_is_free(job.name)
    _check_bucket(job)
    copy = snapshot.copy_bundle(bundle)
    words = jobs.launch(job.name, values, arguments)
    _log.info(f"+ {skypilot.shell_line(words, str(copy))}")
    os.environ.update(values)  # SkyPilot takes them from there
    queue = skypilot.shell_line(["jobs", "queue"])
    try:
        answer = skypilot.show(words, copy)
    except KeyboardInterrupt:
        _log.error(f"whether it was launched all the same, {queue} tells")
        raise
    number = jobs.submitted(answer.output)
    if number is None:
        if trace.quiet():
            _log.error(answer.output.rstrip("\n"))
        # SkyPilot refused, or its server went away and may launch it still
        raise TargetUnavailableError(
            f"SkyPilot has named no job that it launched, see above; {queue} tells what there is"
        )
    return number


def preview(
    job: SkyJob, bundle: Path, copy: Path, arguments: Sequence[str], points: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each copy and each command of submit(), and for its question to the bucket. Asks nobody."""
    if not points:
        yield from _preview(job, bundle, copy, arguments)
    for point in points:
        at_point = job.at_point(point)
        assert isinstance(at_point, SkyJob)
        yield from _preview(at_point, bundle, copy, (f"--point={point}", *arguments))


def _preview(job: SkyJob, bundle: Path, copy: Path, arguments: Sequence[str]) -> Iterator[str]:
    for words in (["--version"], jobs.queue()):
        yield f"+ {skypilot.shell_line(words)}"
    if (address := bucket.address(job, os.environ)) is not None:
        yield f"look into {address.url}"
    yield f"copy {bundle} to {places.short(str(copy))}"
    launch = jobs.launch(job.name, [secret.name for secret in job.secrets], arguments)
    yield f"+ {skypilot.shell_line(launch, str(copy))}"


def _unfit(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if not re.fullmatch(r"\S+", argument):
            yield (
                f"{argument!r} cannot be handed to the machines: one word without spaces each; write it "
                "into the spec"
            )


def _check_version() -> None:
    """Raise TargetUnavailableError if the program is another version of SkyPilot, or another program."""
    answer = skypilot.ask(["--version"])
    if answer.code != 0 or not jobs.is_supported(answer.output):
        raise TargetUnavailableError(
            f"{skypilot.shell_line(['--version'])} says {jobs.complaint(answer.output)!r}, and ddpgen is for "
            f"SkyPilot {jobs.VERSION}; {skypilot.INSTALL}"
        )


def _check_name_is_free(name: str) -> None:
    """Raise TargetUnavailableError if a job of this name lives.

    Two jobs would use the same place in the bucket. The second would notice that only on paid machines.
    """
    queue_answer = follow.find(name)
    if queue_answer.failed:
        raise TargetUnavailableError(queue_answer.reason)
    if queue_answer.live:
        live_jobs = ", ".join(f"{job.id} ({job.words})" for job in queue_answer.live)
        cancel_command = skypilot.shell_line(jobs.cancel([job.id for job in queue_answer.live]))
        raise TargetUnavailableError(
            f"there is a job called {name} already: {live_jobs}; ddpgen stop ends it cleanly, {cancel_command} at once"
        )


def _check_bucket(job: SkyJob) -> None:
    """Raise TargetUnavailableError if the cloud refuses the bucket.

    A bucket that this machine cannot reach is no error here, because the job's machines may reach it.
    """
    address = bucket.address(job, os.environ)
    if address is not None and (refusal := store.refusal(address)):
        raise TargetUnavailableError(
            f"{address.url}: {refusal}; the bucket has to exist, and whoever launches to be allowed to list, "
            "read, write and delete there"
        )
