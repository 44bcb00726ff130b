"""status, logs and stop of a job that Slurm runs.

Chooses among Slurm's jobs: the one that the checkpoint directory belongs to and the one submitted
from here, else all of the spec's name. Asks the controller first, then the accounting.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpgen.driver import state
from ddpgen.driver.ends import SSH_FAILED
from ddpgen.driver.state import JobState
from ddpgen.driver.wording import table
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.monitor import places, scripts
from ddpgen.monitor.places import Login, Place
from ddpgen.monitor.record import Following, Launched
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.tiers.slurm import jobs as slurm_jobs
from ddpgen.tiers.slurm.fields import SlurmJob
from ddpgen.tiers.slurm.jobs import QueuedJob
from ddpgen.tiers.slurm.place import reach

_log = logging.getLogger(__name__)
_MOST_TASKS = 8  # status reads the directories of so many tasks of an array


AT_ONCE = "scancel JOBID"
INTERVAL_S = 10  # a look costs questions to slurmctld


class Asked(NamedTuple):
    """A job of the spec, the machine with its Slurm's programs, and the last launch there."""

    job: SlurmJob
    place: Place
    launched: Launched | None

    @property
    def cluster(self) -> str:
        return self.launched.cluster if self.launched else ""

    @property
    def unknown(self) -> str:
        """The message if Slurm has no such job."""
        if self.launched is not None:
            return f"Slurm does not know job {self.launched.job} any more"
        return f"no job called {self.job.name} was launched from here, and none is in the queue"

    def directory(self, task: str = "") -> str:
        """Return the job's checkpoint directory. Each task of an array has its own."""
        directory = self.place.checkpoints(self.job)
        return f"{directory}-{task}" if self.job.array else directory


@contextlib.contextmanager
def asking(following: Following) -> Iterator[Callable[[], JobStatus]]:
    """Yield a function that asks for the status at each call. Both raise TargetUnavailableError."""
    with _reach(following) as asked:
        yield functools.partial(_status, asked)


def _status(asked: Asked) -> JobStatus:
    found, seen = _look(asked)
    states = {task: _read(asked, task) for task in tasks(seen)} if asked.job.array else {"": found}
    shown = {asked.place.shown(asked.directory(task)): states[task] for task in states}
    log = asked.launched.log if asked.launched is not None else ""
    return status_of(seen, shown, asked.unknown, asked.place.shown(log) if log else "")


def tasks(seen: Sequence[QueuedJob]) -> list[str]:
    """Return the tasks of an array whose directories `status` reads, live ones first."""
    live_first = sorted(seen, key=lambda job: job.over)
    return list(dict.fromkeys(each.task for each in live_first if each.task))[:_MOST_TASKS]


def status_of(
    seen: Sequence[QueuedJob], states: Mapping[str, JobState], unknown: str, log: str
) -> JobStatus:
    """Return the status of a job, from Slurm's jobs and the state in each checkpoint directory.

    `unknown`: the message if Slurm has no such job. `log`: the path of the job's output; "" if it is not known.
    """
    said: list[str | Report] = [*(table(slurm_jobs.table(seen)) if seen else [unknown])]
    reports = [Report(place, found, _runs(found, seen)) for place, found in states.items()]
    said += reports
    if log:
        said.append(f"log: {log}")
    said += [
        f"Slurm calls job {each.id} {each.state!r}, which this version of ddpgen does not know; ask Slurm: squeue "
        f"--job={each.id}"
        for each in seen
        if not each.known
    ]
    over = not any(each.live for each in seen) if seen else any(each.over for each in reports)
    jobs = [f"{e.id} {e.state}" + (f" ({e.why})" if e.why else "") for e in seen]
    return JobStatus(said, over, ", ".join(jobs))


def status(following: Following) -> JobStatus:
    """Return the status of the job. Raise TargetUnavailableError."""
    with asking(following) as ask:
        return ask()


def stop(following: Following, now: bool) -> Iterator[str]:
    """Cancel jobs that wait and ask running ones for a clean stop. Raise TargetUnavailableError."""
    with _reach(following) as asked:
        _, seen = _look(asked)
        waiting = [each.id for each in seen if each.waits]
        if waiting:
            _told(asked.place, slurm_jobs.cancel_waiting(waiting, asked.cluster))
            yield f"taken out of the queue: {', '.join(waiting)}"
            _, seen = _look(asked)  # one may have begun at that moment
        running = [each for each in seen if not each.waits and not each.over]
        if not waiting and not running:
            yield f"nothing to stop: {', '.join(f'{e.id} {e.state}' for e in seen) or asked.unknown}"
        for directory, each in {asked.directory(each.task): each for each in running}.items():
            yield _ask_to_stop(asked, directory, each)


def logs(following: Following, lines: int, follow: bool) -> int:
    """Show the end of the job's output and return the exit code. Raise TargetUnavailableError, DdpgenError."""
    with _reach(following) as asked:
        file = asked.launched.log if asked.launched else ""
        if not file:
            _, seen = _look(asked)
            file = seen[-1].log if seen else ""
        if not file:
            raise DdpgenError(asked.unknown)
        if isinstance(asked.place, Login):
            _log.info(f"{asked.place.shown(file)}:")
            code = asked.place.tail(file, lines, follow)
            if code == SSH_FAILED:
                raise TargetUnavailableError(f"{asked.place.name}: ssh has failed")
            if code != os.EX_NOINPUT:
                return code
        else:
            directory, name = os.path.split(file)
            files = sorted(glob.glob(os.path.join(glob.escape(directory), name)))
            if files or (follow and not asked.job.array):
                become(places.tail(files or [file], lines, follow))
        told = [
            f"job {e.id} is {e.state}" + (f" ({e.why})" if e.why else "") for e in _look(asked)[1]
        ]
        raise DdpgenError(
            f"{asked.place.shown(file)} is not there yet: {', '.join(told) or asked.unknown}"
        )


def lives(following: Following) -> bool:
    """True if one of the jobs waits or runs. Raises TargetUnavailableError."""
    with _reach(following) as asked:
        return any(each.live for each in _look(asked)[1])


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def keeps_here(following: Following) -> bool:
    """True if the spec names no login node: then the checkpoint directory is on this machine."""
    return following.job.login is None if isinstance(following.job, SlurmJob) else True


@contextlib.contextmanager
def checkpoint_places(following: Following) -> Iterator[Sequence[tuple[Place, str]]]:
    """Yield the machine with Slurm's programs, and the checkpoint directory on it. Raise TargetUnavailableError."""
    with _reach(following) as asked:
        yield [(asked.place, asked.directory())]


@contextlib.contextmanager
def _reach(following: Following) -> Iterator[Asked]:
    job, launched = following.job, following.launched
    assert isinstance(job, SlurmJob)
    if launched is not None and launched.login != (job.login or ""):
        launched = None  # the spec names another cluster by now
    with reach(job, following.beside) as place:
        yield Asked(job, place, launched)


def _look(asked: Asked) -> tuple[JobState, list[QueuedJob]]:
    """Return the state in the checkpoint directory, and our jobs in Slurm. The one submitted from here is the last."""
    found = JobState() if asked.job.array else _read(asked)
    ids = [found.slurm_job, asked.launched.job if asked.launched else ""]
    ids = list(dict.fromkeys(filter(None, ids)))
    if not ids:
        ids = slurm_jobs.numbers(_told(asked.place, slurm_jobs.by_name(asked.job.name)))
    return found, [job for number in ids for job in _find(asked, number)]


def _read(asked: Asked, task: str = "") -> JobState:
    directory = asked.directory(task)
    return state.read(asked.place.facts(scripts.look(directory), f"read {directory}"))


def _find(asked: Asked, number: str) -> list[QueuedJob]:
    """Return a job, or the tasks of an array; [] if Slurm has forgotten it. Raise TargetUnavailableError."""
    known = slurm_jobs.from_scontrol(
        _told(asked.place, slurm_jobs.in_memory(number, asked.cluster))
    )
    if known:
        return known
    try:
        booked = asked.place.run(slurm_jobs.in_the_books(number, asked.cluster))
    except TargetUnavailableError:
        return []  # a cluster without accounting may not have sacct
    return slurm_jobs.from_sacct(booked.said) if booked.code == 0 else []


def _told(place: Place, argv: Sequence[str]) -> str:
    answer = place.run(argv)
    if answer.code != 0 and not slurm_jobs.unknown(answer.said):
        said = answer.said.strip() or f"{argv[0]} ended with code {answer.code}"
        raise TargetUnavailableError(said)
    return answer.said


def _runs(found: JobState, seen: Sequence[QueuedJob]) -> bool | None:
    """True if Slurm runs the job that wrote the status; None if no job of Slurm wrote it."""
    if not found.of_slurm:
        return None  # another tier wrote it, or no job has begun
    return any(not e.waits and not e.over for e in seen if e.id.partition("_")[0] == found.of_slurm)


def _ask_to_stop(asked: Asked, directory: str, job: QueuedJob) -> str:
    try:
        asked.place.facts(scripts.stop(directory), f"ask for a stop in {directory}")
    except TargetUnavailableError as error:
        raise TargetUnavailableError(
            f"{error}; job {job.id} runs: create the file stop in its checkpoint directory where that "
            f"can be seen, or kill the job: scancel {job.id}"
        ) from None
    return f"{job.id}: asked for a clean stop; it will not be requeued"
