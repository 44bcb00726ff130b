"""status, logs and stop of a job that SkyPilot manages.

Chooses among SkyPilot's jobs: those of the spec's name that live, else the one launched from here.
If SkyPilot knows of no live one, the bucket decides: another machine may have launched the job, or SkyPilot's
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
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.monitor.places import Place, Ran
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.tiers.sky import bucket, skypilot, store
from ddpgen.tiers.sky import jobs as sky_jobs
from ddpgen.tiers.sky.jobs import Managed

_log = logging.getLogger(__name__)

# The job records `user: ` and this as the reason of its end.
_REASON = "ddpgen stop"
# Rank 0 renews its time stamp every 30 s.
_LIVES_S = 120.0
# Reasons of an end from which SkyPilot starts the job again (train/launch/sky.py).
_COMES_BACK = ("preempted", "signal")
_SOON = "asked for a clean stop, which it sees within some 10 s"


AT_ONCE = ""  # this tier has --now
INTERVAL_S = 30  # each status asks SkyPilot's server and a bucket


class Seen(NamedTuple):
    """Our jobs in SkyPilot, the newest last.

    `why`: the reason, if SkyPilot has no such job. `trouble`: True if SkyPilot did not answer.
    """

    jobs: Sequence[Managed]
    why: str
    trouble: bool = False

    @property
    def live(self) -> list[Managed]:
        return [job for job in self.jobs if not job.over]


class There(NamedTuple):
    """The state in the bucket. `closed`: why it could not be read. `age_s`: the age of rank 0's time stamp."""

    url: str = ""
    found: JobState = JobState()
    age_s: float | None = None
    closed: str = ""

    @property
    def lives(self) -> bool:
        return self.found.word == "running" and self.age_s is not None and self.age_s <= _LIVES_S

    @property
    def may_go_on(self) -> bool:
        """True if the job runs or may come back, because it was killed with its machine or stopped before that."""
        taken = self.found.word == "stopped" and self.found.reason.startswith(_COMES_BACK)
        return self.found.word == "running" or taken


def status(following: Following) -> JobStatus:
    """Return the status of the job. Raise TargetUnavailableError."""
    return status_of(_look(following), _there(following))


def status_of(seen: Seen, there: There) -> JobStatus:
    """Return the status of a job. Raise TargetUnavailableError if neither SkyPilot nor the bucket tells it."""
    if seen.trouble and (there.closed or not there.url):
        raise TargetUnavailableError("\n".join(filter(None, [seen.why, there.closed])))
    said: list[str | Report] = [*(table(sky_jobs.table(seen.jobs)) if seen.jobs else [seen.why])]
    if there.closed:
        said.append(there.closed)
    elif there.url:
        unknown = there.lives and not seen.live
        runs = any(not job.waits for job in seen.live) if seen.jobs and not unknown else None
        said.append(Report(there.url, there.found, runs))
        if there.found.word == "running" and there.age_s is not None:
            said.append(f"  last sign of life {ago(there.age_s)}")
        if unknown and not seen.trouble:
            said.append("  something runs there that this SkyPilot does not know")
    ended = bool(seen.jobs or there.found.word) and not there.lives
    over = ended and not seen.live and bool(seen.jobs or not there.may_go_on)
    return JobStatus(said, over, ", ".join(f"{job.id} {job.words}" for job in seen.jobs))


def asking(following: Following) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """Return a context with a function that asks for the status at each call and raises TargetUnavailableError."""
    return contextlib.nullcontext(functools.partial(status, following))


def stop(following: Following, now: bool) -> Iterator[str]:
    """Cancel jobs that wait and ask running ones for a clean stop. `now`: cancel all of them.

    Raises TargetUnavailableError.
    """
    seen = _look(following)
    if not seen.live:
        asked, told = stop_in_bucket(seen, _there(following), now)
        if asked:
            _ask_to_stop(following)
        yield from told
    running = []
    for each in seen.live:
        if each.ending:
            yield f"{each.id}: it is being cancelled already"
        elif now or each.waits:
            yield from _cancel(each)
        else:
            running.append(each.id)
    if running:
        _ask_to_stop(
            following,
            f"at once, without a checkpoint: {skypilot.typed(sky_jobs.cancel(running))}",
        )
        yield f"{', '.join(running)}: {_SOON}"


def logs(following: Following, lines: int, follow: bool) -> NoReturn:
    """Replace this process by `sky jobs logs`. Raise TargetUnavailableError; DdpgenError if there is no job."""
    seen = _look(following)
    if seen.trouble:
        raise TargetUnavailableError(seen.why)
    if not seen.jobs:
        raise DdpgenError(seen.why)
    become([*skypilot.command(), *sky_jobs.logs(seen.jobs[-1].id, lines, follow)])


def lives(following: Following) -> bool:
    """True if one of the jobs waits or runs, as far as SkyPilot knows."""
    return bool(_look(following).live)


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def keeps_here(following: Following) -> bool:
    """False: the checkpoint directory is on the job's machines, and its copies are in the bucket."""
    return False


def checkpoint_places(
    following: Following,
) -> contextlib.AbstractContextManager[Sequence[tuple[Place, str]]]:
    """Return no place: a machine's disk is lost with the machine."""
    return contextlib.nullcontext(())


def find(name: str, launched: str = "") -> Seen:
    """Return SkyPilot's jobs of this name. `launched`: the number of the last one launched from here."""
    try:
        answer = skypilot.ask(sky_jobs.queue())
    except TargetUnavailableError as error:
        return Seen((), str(error), trouble=True)
    return chosen(answer, name, launched)


def chosen(answer: Ran, name: str, launched: str) -> Seen:
    """Return our jobs in SkyPilot's answer to jobs.queue(). The arguments are those of find()."""
    if sky_jobs.nothing_up(answer.said):
        refresh = skypilot.typed(["jobs", "queue", "--refresh"])
        down = "SkyPilot's controller of jobs is not up, so none of its jobs runs"
        return Seen((), f"{down}; how the last ones ended: {refresh}")
    found = sky_jobs.from_queue(answer.said)
    if answer.code != 0 or found is None:
        why = f"{skypilot.typed(sky_jobs.queue())}: {sky_jobs.complaint(answer.said)}"
        return Seen((), why, trouble=True)
    # The name must match as well, because another server numbers its jobs from 1 again.
    ours = [each for each in found if each.name == name]
    live = [each for each in reversed(ours) if not each.over]
    unknown = f"SkyPilot knows no job called {name}"
    if launched:
        unknown = f"SkyPilot does not show job {launched} any more"
    return Seen(live or [each for each in ours if each.id == launched] or ours[:1], unknown)


def _look(following: Following) -> Seen:
    return find(following.job.name, following.launched.job if following.launched else "")


def _there(following: Following) -> There:
    at = bucket.address(following.job, os.environ)
    if at is None:
        return There()
    _log.debug(f"look at the bucket {at.url}")
    try:
        facts = store.look(at)
    except store.UnreachableError as closed:
        return There(at.url, closed=f"{at.url}: not looked at: {closed}")
    age = facts.get("owner-age")
    return There(at.url, state.read(facts), None if age is None else float(age))


def stop_in_bucket(seen: Seen, there: There, now: bool) -> tuple[bool, list[str]]:
    """Return whether to ask for a stop through the bucket, and the lines that tell the outcome.

    SkyPilot knows of no live job, so the bucket decides: it may show that the job runs or may come back.
    Raises TargetUnavailableError.
    """
    known = ", ".join(f"{each.id} ({each.words})" for each in seen.jobs) or seen.why
    if there.closed and not seen.jobs:
        told = [known, there.closed, f"for a clean stop, if it runs, {_by_hand(there.url)}"]
        raise TargetUnavailableError("\n".join(told))
    if not (there.lives or (there.may_go_on and not seen.jobs)):
        if seen.trouble:
            nothing = "nothing runs that could be asked; what waits only SkyPilot can cancel"
            raise TargetUnavailableError(f"{known}\n{nothing}")
        return False, [f"nothing to stop: {known}"]
    if now:
        raise TargetUnavailableError(
            f"{known}\n{there.url}: it may run there, and --now cannot cancel what this SkyPilot does not "
            "know; ddpgen stop without it asks for a clean stop"
        )
    later = "asked for a clean stop: should it come back, it ends at once"
    return True, [known, f"{there.url}: {_SOON if there.lives else later}"]


def _cancel(job: Managed) -> Iterator[str]:
    words = sky_jobs.cancel([job.id])
    answer = skypilot.ask(words)
    if answer.code != 0:
        raise TargetUnavailableError(f"{skypilot.typed(words)}: {sky_jobs.complaint(answer.said)}")
    if job.waits:
        yield f"{job.id}: cancelled while it was {job.words}: nothing more is lost by that"
    else:
        yield f"{job.id}: cancelled; what it did since its newest checkpoint may be lost"


def _ask_to_stop(following: Following, otherwise: str = "") -> None:
    """Ask for a stop through the bucket. Raise TargetUnavailableError, with the advice `otherwise`."""
    at = bucket.address(following.job, os.environ)
    if at is None:
        raise TargetUnavailableError(
            f"there is no bucket through which it could be asked\n{otherwise}"
        )
    try:
        store.ask_to_stop(at, _REASON)
    except store.UnreachableError as error:
        told = [
            f"{at.url} cannot be written from here: {error}",
            f"for a clean stop, {_by_hand(at.url)}",
        ]
        raise TargetUnavailableError("\n".join(filter(None, [*told, otherwise]))) from None


def _by_hand(url: str) -> str:
    return f"create the object {url}/{bucket.STOP} with the cloud's own tool (docs/sky.md)"
