"""Find out how jobs stand: squeue, then the accounting where there is one, then the controller.

Owns the order of the questions, and what counts as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import jobs
from ddpgen.monitor.jobs import Job
from ddpgen.monitor.places import Place, run


def look(place: Place, ids: Sequence[str], cluster: str = "") -> list[Job]:
    """How these jobs stand; one that Slurm has forgotten is missing.

    Raises TargetUnavailableError when Slurm does not answer.
    """
    if not ids:
        return []
    told = jobs.from_squeue(_told(place, jobs.in_queue(ids, cluster)))
    found = [job for job in told if any(_belongs(job, number) for number in ids)]
    for number in ids:
        if not any(_belongs(job, number) for job in found):
            found += _ended(place, number, cluster)
    return found


def named(place: Place, name: str) -> list[Job]:
    """What waits or runs under this name. Raises TargetUnavailableError."""
    return jobs.from_squeue(_told(place, jobs.by_name(name)))


def log_of(place: Place, number: str, cluster: str) -> str:
    """Where the controller says that the job's output goes, or ""."""
    known = jobs.from_scontrol(_told(place, jobs.in_memory(number, cluster)))
    return next((job.log for job in known if job.log), "")


def _ended(place: Place, number: str, cluster: str) -> list[Job]:
    """A job that is not in the queue."""
    try:
        booked = run(place, jobs.in_the_books([number], cluster))
        found = jobs.from_sacct(booked.said) if booked.code == 0 else []
    except TargetUnavailableError:
        found = []  # a cluster without accounting may be without its programs
    # Its own table may be behind, and say that it runs.
    if found and all(job.over for job in found):
        return found
    return jobs.from_scontrol(_told(place, jobs.in_memory(number, cluster))) or found


def _told(place: Place, argv: Sequence[str]) -> str:
    answer = run(place, argv)
    if answer.code != 0 and not jobs.unknown(answer.said):
        said = answer.said.strip() or f"{argv[0]} ended with code {answer.code}"
        raise TargetUnavailableError(said)
    return answer.said


def _belongs(job: Job, number: str) -> bool:
    return number in (job.id, job.id.partition("_")[0])
