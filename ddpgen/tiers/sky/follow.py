"""status, logs and stop of a job that SkyPilot manages.

Chooses among SkyPilot's jobs of the spec's name: those that live, else the one launched from here, else the newest.
If SkyPilot knows of no live job, the bucket decides: another machine may have launched the job, or SkyPilot's
controller may be lost.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn

from ddpgen.driver import state
from ddpgen.driver.state import JobState
from ddpgen.driver.wording import ago, table
from ddpgen.errors import SpecUnreadableError, TargetUnavailableError
from ddpgen.monitor.places import Machine, ProgramResult
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.tiers.sky import bucket, skypilot, store
from ddpgen.tiers.sky import jobs as sky_jobs
from ddpgen.tiers.sky.jobs import Managed

_log = logging.getLogger(__name__)

# The job records `user: ` and this text as the reason of its end.
_REASON = "ddpgen stop"
# Rank 0 renews its time stamp every 30 s.
_LIVE_S = 120.0
# Reasons of an end from which SkyPilot starts the job again (train/launch/sky.py).
_RECOVERED_REASONS = ("preempted", "signal")
_STOP_REQUESTED = "asked for a clean stop, which it sees within some 10 s"


KILL_ADVICE = ""  # this tier has --now
INTERVAL_S = 30  # each status asks SkyPilot's server and a bucket


class QueueAnswer(NamedTuple):
    """Our jobs in SkyPilot, the newest last.

    `reason`: why there is no such job. `failed`: True if SkyPilot did not answer.
    """

    jobs: Sequence[Managed]
    reason: str
    failed: bool = False

    @property
    def live(self) -> list[Managed]:
        return [job for job in self.jobs if not job.ended]


class BucketState(NamedTuple):
    """The state in the bucket. `error`: why it could not be read. `age_s`: the age of rank 0's time stamp."""

    url: str = ""
    job_state: JobState = JobState()
    age_s: float | None = None
    error: str = ""

    @property
    def is_live(self) -> bool:
        return (
            self.job_state.status == "running" and self.age_s is not None and self.age_s <= _LIVE_S
        )

    @property
    def may_come_back(self) -> bool:
        """True if the job runs or may come back, because its machine was taken away during the run or after a stop."""
        interrupted = self.job_state.status == "stopped" and self.job_state.reason.startswith(
            _RECOVERED_REASONS
        )
        return self.job_state.status == "running" or interrupted


def status(following: Following) -> JobStatus:
    """Return the status of the job. Raise TargetUnavailableError."""
    return status_of(_query(following), _bucket_state(following))


def status_of(queue: QueueAnswer, bucket_state: BucketState) -> JobStatus:
    """Return the status of a job. Raise TargetUnavailableError if neither SkyPilot nor the bucket tells it."""
    if queue.failed and (bucket_state.error or not bucket_state.url):
        raise TargetUnavailableError("\n".join(filter(None, [queue.reason, bucket_state.error])))
    parts: list[str | Report] = [
        *(table(sky_jobs.table(queue.jobs)) if queue.jobs else [queue.reason])
    ]
    if bucket_state.error:
        parts.append(bucket_state.error)
    elif bucket_state.url:
        unknown = bucket_state.is_live and not queue.live
        runs = any(not job.waiting for job in queue.live) if queue.jobs and not unknown else None
        parts.append(Report(bucket_state.url, bucket_state.job_state, runs))
        if bucket_state.job_state.status == "running" and bucket_state.age_s is not None:
            parts.append(f"  last sign of life {ago(bucket_state.age_s)}")
        if unknown and not queue.failed:
            parts.append("  something runs there that this SkyPilot does not know")
    ended = bool(queue.jobs or bucket_state.job_state.status) and not bucket_state.is_live
    job_ended = ended and not queue.live and bool(queue.jobs or not bucket_state.may_come_back)
    return JobStatus(parts, job_ended, ", ".join(f"{job.id} {job.words}" for job in queue.jobs))


def asking(following: Following) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """Return a context with a function that asks for the status at each call and raises TargetUnavailableError."""
    return contextlib.nullcontext(functools.partial(status, following))


def stop(following: Following, now: bool) -> Iterator[str]:
    """Cancel jobs that wait and ask running ones for a clean stop. `now`: cancel all of them.

    Raises TargetUnavailableError.
    """
    queue = _query(following)
    if not queue.live:
        request_stop, lines = stop_in_bucket(queue, _bucket_state(following), now)
        if request_stop:
            _ask_to_stop(following)
        yield from lines
    running = []
    for job in queue.live:
        if job.cancelling:
            yield f"{job.id}: it is being cancelled already"
        elif now or job.waiting:
            yield from _cancel(job)
        else:
            running.append(job.id)
    if running:
        _ask_to_stop(
            following,
            f"at once, without a checkpoint: {skypilot.shell_line(sky_jobs.cancel(running))}",
        )
        yield f"{', '.join(running)}: {_STOP_REQUESTED}"


def logs(following: Following, lines: int, follow: bool) -> NoReturn:
    """Replace this process by `sky jobs logs`. Raise TargetUnavailableError; SpecUnreadableError if there is no job."""
    queue = _query(following)
    if queue.failed:
        raise TargetUnavailableError(queue.reason)
    if not queue.jobs:
        raise SpecUnreadableError(queue.reason)
    become([*skypilot.command(), *sky_jobs.logs(queue.jobs[-1].id, lines, follow)])


def is_live(following: Following) -> bool:
    """True if one of the jobs waits or runs, as far as SkyPilot knows."""
    return bool(_query(following).live)


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def has_local_checkpoints(following: Following) -> bool:
    """False: the checkpoint directory is on the job's machines, and its copies are in the bucket."""
    return False


def checkpoint_locations(
    following: Following,
) -> contextlib.AbstractContextManager[Sequence[tuple[Machine, str]]]:
    """Return no place: a machine's disk is lost with the machine."""
    return contextlib.nullcontext(())


def find(name: str, launched: str = "") -> QueueAnswer:
    """Return SkyPilot's jobs of this name. `launched`: the number of the last one launched from here."""
    try:
        answer = skypilot.ask(sky_jobs.queue())
    except TargetUnavailableError as error:
        return QueueAnswer((), str(error), failed=True)
    return our_jobs(answer, name, launched)


def our_jobs(answer: ProgramResult, name: str, launched: str) -> QueueAnswer:
    """Return our jobs in SkyPilot's answer to jobs.queue(). The arguments are those of find()."""
    if sky_jobs.controller_is_down(answer.output):
        refresh = skypilot.shell_line(["jobs", "queue", "--refresh"])
        down = "SkyPilot's controller of jobs is not up, so none of its jobs runs"
        return QueueAnswer((), f"{down}; how the last ones ended: {refresh}")
    jobs = sky_jobs.from_queue(answer.output)
    if answer.code != 0 or jobs is None:
        reason = f"{skypilot.shell_line(sky_jobs.queue())}: {sky_jobs.complaint(answer.output)}"
        return QueueAnswer((), reason, failed=True)
    # The name must match as well, because another server numbers its jobs from 1 again.
    named_jobs = [job for job in jobs if job.name == name]
    live = [job for job in reversed(named_jobs) if not job.ended]
    unknown = f"SkyPilot knows no job called {name}"
    if launched:
        unknown = f"SkyPilot does not show job {launched} any more"
    return QueueAnswer(
        live or [job for job in named_jobs if job.id == launched] or named_jobs[:1], unknown
    )


def _query(following: Following) -> QueueAnswer:
    return find(following.job.name, following.launched.job if following.launched else "")


def _bucket_state(following: Following) -> BucketState:
    address = bucket.address(following.job, os.environ)
    if address is None:
        return BucketState()
    _log.debug(f"look at the bucket {address.url}")
    try:
        facts = store.read_facts(address)
    except store.UnreachableError as error:
        return BucketState(address.url, error=f"{address.url}: not looked at: {error}")
    age = facts.get("owner-age")
    return BucketState(address.url, state.read(facts), None if age is None else float(age))


def stop_in_bucket(
    queue: QueueAnswer, bucket_state: BucketState, now: bool
) -> tuple[bool, list[str]]:
    """Return whether to ask for a stop through the bucket, and the lines that tell the outcome.

    SkyPilot knows of no live job, so the bucket decides: it may show that the job runs or may come back.
    Raises TargetUnavailableError.
    """
    queue_words = ", ".join(f"{job.id} ({job.words})" for job in queue.jobs) or queue.reason
    if bucket_state.error and not queue.jobs:
        by_hand = f"for a clean stop, if it runs, {_manual_stop(bucket_state.url)}"
        raise TargetUnavailableError(f"{queue_words}\n{bucket_state.error}\n{by_hand}")
    if not (bucket_state.is_live or (bucket_state.may_come_back and not queue.jobs)):
        if queue.failed:
            nothing = "nothing runs that could be asked; what waits only SkyPilot can cancel"
            raise TargetUnavailableError(f"{queue_words}\n{nothing}")
        return False, [f"nothing to stop: {queue_words}"]
    if now:
        raise TargetUnavailableError(
            f"{queue_words}\n{bucket_state.url}: it may run there, and --now cannot cancel what this SkyPilot does not "
            "know; ddpgen stop without it asks for a clean stop"
        )
    later = "asked for a clean stop: should it come back, it ends at once"
    outcome = _STOP_REQUESTED if bucket_state.is_live else later
    return True, [queue_words, f"{bucket_state.url}: {outcome}"]


def _cancel(job: Managed) -> Iterator[str]:
    words = sky_jobs.cancel([job.id])
    answer = skypilot.ask(words)
    if answer.code != 0:
        raise TargetUnavailableError(
            f"{skypilot.shell_line(words)}: {sky_jobs.complaint(answer.output)}"
        )
    if job.waiting:
        yield f"{job.id}: cancelled while it was {job.words}: nothing more is lost by that"
    else:
        yield f"{job.id}: cancelled; what it did since its newest checkpoint may be lost"


def _ask_to_stop(following: Following, advice: str = "") -> None:
    """Ask for a stop through the bucket. Raise TargetUnavailableError, with `advice` as its last line."""
    address = bucket.address(following.job, os.environ)
    if address is None:
        raise TargetUnavailableError(
            f"there is no bucket through which it could be asked\n{advice}"
        )
    try:
        store.ask_to_stop(address, _REASON)
    except store.UnreachableError as error:
        lines = [
            f"{address.url} cannot be written from here: {error}",
            f"for a clean stop, {_manual_stop(address.url)}",
        ]
        raise TargetUnavailableError("\n".join(filter(None, [*lines, advice]))) from None


def _manual_stop(url: str) -> str:
    return f"create the object {url}/{bucket.STOP} with the cloud's own tool (docs/sky.md)"
