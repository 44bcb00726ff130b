"""status, logs and stop of a job that Slurm runs.

Chooses among Slurm's jobs: the job that the checkpoint directory belongs to and the job submitted
from here, else all jobs of the spec's name. Asks the controller first, then the accounting.
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
from ddpgen.errors import SpecUnreadableError, TargetUnavailableError
from ddpgen.monitor import places, scripts
from ddpgen.monitor.places import LoginNode, Machine
from ddpgen.monitor.record import Following, Launch
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.tiers.slurm import jobs as slurm_jobs
from ddpgen.tiers.slurm.fields import SlurmJob
from ddpgen.tiers.slurm.jobs import QueuedJob
from ddpgen.tiers.slurm.place import control_machine

_log = logging.getLogger(__name__)
_MAX_TASKS = 8  # the most tasks of an array whose directories `status` reads


KILL_ADVICE = "scancel JOBID"
INTERVAL_S = 10  # a look costs questions to slurmctld


class JobAccess(NamedTuple):
    """A job of the spec, the machine with the programs of its Slurm, and the last launch there.

    `task`: the index of a sweep's point, whose job is one task of an array; else "".
    """

    job: SlurmJob
    machine: Machine
    launched: Launch | None
    task: str = ""

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
        directory = self.machine.checkpoints(self.job)
        return f"{directory}-{task}" if self.job.array else directory


@contextlib.contextmanager
def asking(following: Following) -> Iterator[Callable[[], JobStatus]]:
    """Yield a function that asks for the status at each call. This and the function raise TargetUnavailableError."""
    with _access(following) as access:
        yield functools.partial(_status, access)


def _status(access: JobAccess) -> JobStatus:
    job_state, queued = _query(access)
    states = {"": job_state}
    if access.job.array:
        states = {task: _read(access, task) for task in tasks(queued)}
    shown = {access.machine.shown(access.directory(task)): states[task] for task in states}
    log = access.launched.log if access.launched is not None else ""
    return status_of(queued, shown, access.unknown, access.machine.shown(log) if log else "")


def tasks(queued: Sequence[QueuedJob]) -> list[str]:
    """Return the tasks of an array whose directories `status` reads, live ones first."""
    live_first = sorted(queued, key=lambda job: job.ended)
    return list(dict.fromkeys(job.task for job in live_first if job.task))[:_MAX_TASKS]


def status_of(
    queued: Sequence[QueuedJob], states: Mapping[str, JobState], unknown: str, log: str
) -> JobStatus:
    """Return the status of a job, from Slurm's jobs and the state in each checkpoint directory.

    `unknown`: the message if Slurm has no such job. `log`: the path of the job's output; "" if it is not known.
    """
    parts: list[str | Report] = [*(table(slurm_jobs.table(queued)) if queued else [unknown])]
    reports = [
        Report(directory, job_state, _runs(job_state, queued))
        for directory, job_state in states.items()
    ]
    parts += reports
    if log:
        parts.append(f"log: {log}")
    parts += [
        f"Slurm calls job {job.id} {job.state!r}, which this version of ddpgen does not know; ask Slurm: squeue "
        f"--job={job.id}"
        for job in queued
        if not job.has_known_state
    ]
    ended = (
        not any(job.live for job in queued) if queued else any(report.ended for report in reports)
    )
    jobs = [f"{e.id} {e.state}" + (f" ({e.reason})" if e.reason else "") for e in queued]
    return JobStatus(parts, ended, ", ".join(jobs))


def status(following: Following) -> JobStatus:
    """Return the status of the job. Raise TargetUnavailableError."""
    with asking(following) as ask:
        return ask()


def stop(following: Following, now: bool) -> Iterator[str]:
    """Cancel jobs that wait and ask running ones for a clean stop. Raise TargetUnavailableError."""
    with _access(following) as access:
        _, queued = _query(access)
        waiting = [job.id for job in queued if job.waiting]
        if waiting:
            _answer(access.machine, slurm_jobs.cancel_waiting(waiting, access.cluster))
            yield f"taken out of the queue: {', '.join(waiting)}"
            _, queued = _query(access)  # one may have begun at that moment
        running = [job for job in queued if not job.waiting and not job.ended]
        if not waiting and not running:
            yield f"nothing to stop: {', '.join(f'{e.id} {e.state}' for e in queued) or access.unknown}"
        for directory, job in {access.directory(job.task): job for job in running}.items():
            yield _ask_to_stop(access, directory, job)


def logs(following: Following, lines: int, follow: bool) -> int:
    """Show the end of the job's output and return the exit code. Raise TargetUnavailableError, SpecUnreadableError."""
    with _access(following) as access:
        file = access.launched.log if access.launched else ""
        if not file:
            _, queued = _query(access)
            file = queued[-1].log if queued else ""
        if not file:
            raise SpecUnreadableError(access.unknown)
        if isinstance(access.machine, LoginNode):
            _log.info(f"{access.machine.shown(file)}:")
            code = access.machine.tail(file, lines, follow)
            if code == SSH_FAILED:
                raise TargetUnavailableError(f"{access.machine.name}: ssh has failed")
            if code != os.EX_NOINPUT:
                return code
        else:
            directory, name = os.path.split(file)
            files = sorted(glob.glob(os.path.join(glob.escape(directory), name)))
            if files or (follow and not access.job.array):
                become(places.tail(files or [file], lines, follow))
        states = [
            f"job {e.id} is {e.state}" + (f" ({e.reason})" if e.reason else "")
            for e in _query(access)[1]
        ]
        raise SpecUnreadableError(
            f"{access.machine.shown(file)} is not there yet: {', '.join(states) or access.unknown}"
        )


def is_live(following: Following) -> bool:
    """True if one of the jobs waits or runs. Raises TargetUnavailableError."""
    with _access(following) as access:
        return any(job.live for job in _query(access)[1])


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def has_local_checkpoints(following: Following) -> bool:
    """True if the spec names no login node: then the checkpoint directory is on this machine."""
    return following.job.login is None if isinstance(following.job, SlurmJob) else True


@contextlib.contextmanager
def checkpoint_locations(following: Following) -> Iterator[Sequence[tuple[Machine, str]]]:
    """Yield the machine with Slurm's programs, and the checkpoint directory on it. Raise TargetUnavailableError."""
    with _access(following) as access:
        yield [(access.machine, access.directory())]


@contextlib.contextmanager
def _access(following: Following) -> Iterator[JobAccess]:
    job, launched = following.job, following.launched
    assert isinstance(job, SlurmJob)
    if launched is not None and launched.login != (job.login or ""):
        launched = None  # the spec names another cluster by now
    with control_machine(job, following.bundle_parent) as machine:
        task = str(following.point_index) if following.point else ""
        yield JobAccess(job, machine, launched, task)


def _query(access: JobAccess) -> tuple[JobState, list[QueuedJob]]:
    """Return the state in the checkpoint directory, and our jobs in Slurm. The one submitted from here is the last."""
    job_state = JobState() if access.job.array else _read(access)
    ids = [job_state.slurm_job, access.launched.job if access.launched else ""]
    ids = list(dict.fromkeys(filter(None, ids)))
    if not ids:
        ids = slurm_jobs.numbers(_answer(access.machine, slurm_jobs.by_name(access.job.name)))
        ids = [f"{number}_{access.task}" if access.task else number for number in ids]
    return job_state, [job for number in ids for job in _find(access, number)]


def _read(access: JobAccess, task: str = "") -> JobState:
    directory = access.directory(task)
    return state.read(
        access.machine.facts(scripts.checkpoint_facts(directory), f"read {directory}")
    )


def _find(access: JobAccess, number: str) -> list[QueuedJob]:
    """Return a job, or the tasks of an array; [] if Slurm has forgotten it. Raise TargetUnavailableError."""
    found_jobs = slurm_jobs.from_scontrol(
        _answer(access.machine, slurm_jobs.show_job(number, access.cluster))
    )
    if "_" in number:  # a task that waits shares the record of the others
        found_jobs = [job._replace(id=number) for job in found_jobs]
    if found_jobs:
        return found_jobs
    try:
        accounting = access.machine.run(slurm_jobs.show_accounting(number, access.cluster))
    except TargetUnavailableError:
        return []  # a cluster without accounting may not have sacct
    return slurm_jobs.from_sacct(accounting.output) if accounting.code == 0 else []


def _answer(machine: Machine, argv: Sequence[str]) -> str:
    answer = machine.run(argv)
    if answer.code != 0 and not slurm_jobs.unknown(answer.output):
        message = answer.output.strip() or f"{argv[0]} ended with code {answer.code}"
        raise TargetUnavailableError(message)
    return answer.output


def _runs(job_state: JobState, queued: Sequence[QueuedJob]) -> bool | None:
    """True if Slurm runs the job that wrote the status; None if no job of Slurm wrote it."""
    if not job_state.status_slurm_job:
        return None  # another tier wrote it, or no job has begun
    return any(
        not e.waiting and not e.ended
        for e in queued
        if e.id.partition("_")[0] == job_state.status_slurm_job
    )


def _ask_to_stop(access: JobAccess, directory: str, job: QueuedJob) -> str:
    try:
        access.machine.facts(scripts.stop(directory), f"ask for a stop in {directory}")
    except TargetUnavailableError as error:
        raise TargetUnavailableError(
            f"{error}; job {job.id} runs: create the file stop in its checkpoint directory where that "
            f"can be seen, or kill the job: scancel {job.id}"
        ) from None
    return f"{job.id}: asked for a clean stop; it will not be requeued"
