"""status and stop of a job that Slurm runs, and where its output is.

Owns which jobs are meant: the one submitted from here and the one that the checkpoint directory
belongs to, else what has the spec's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpgen.driver.screen import table
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import jobs, places, queue, scripts, state, store
from ddpgen.monitor.jobs import Job
from ddpgen.monitor.places import Here, Login
from ddpgen.monitor.record import Launched
from ddpgen.monitor.state import JobState, Report
from ddpgen.spec.slurm import SlurmJob

_MOST_TASKS = 8  # of an array have their directories looked at


class Asked(NamedTuple):
    """A job of the spec, where its Slurm is, and what was launched last; that of another login node
    counts for nothing."""

    job: SlurmJob
    place: Here | Login
    launched: Launched | None

    @property
    def directory(self) -> str:
        """The checkpoint directory; of an array, what its tasks' directories begin with."""
        return places.checkpoints(self.place, self.job)

    @property
    def cluster(self) -> str:
        """The cluster that sbatch named, if any."""
        return self.launched.cluster if self.launched else ""

    @property
    def unknown(self) -> str:
        """What to say when there is no job."""
        if self.launched is not None:
            return f"Slurm does not know job {self.launched.job} any more"
        return f"no job called {self.job.name} was launched from here, and none is in the queue"


def status(asked: Asked) -> Iterator[str | Report]:
    """Lines that say how it stands. Raises TargetUnavailableError."""
    found, seen = _look(asked)
    if seen:
        yield from table(jobs.table(seen))
    else:
        yield asked.unknown
    for directory, there in _directories(asked, found, seen):
        yield Report(shown(asked.place, directory), there, _runs(there, seen))
    if found.newest is None and not asked.job.array:
        yield from store.kept(asked.job)
    if asked.launched is not None and asked.launched.log:
        yield f"log: {shown(asked.place, asked.launched.log)}"


def stop(asked: Asked) -> Iterator[str]:
    """Cancel what waits, ask what runs for a clean stop. Raises TargetUnavailableError."""
    _, seen = _look(asked)
    waiting = [each.id for each in seen if each.waits]
    if waiting:
        yield from _cancel(asked, waiting)
        _, seen = _look(asked)  # one may have begun at that moment
    running = [each for each in seen if not each.waits and not each.over]
    if not waiting and not running:
        yield f"nothing to stop: {', '.join(f'{e.id} {e.state}' for e in seen) or asked.unknown}"
    of_directory = {_own(asked, each): each for each in running}
    for directory, each in of_directory.items():
        yield from _ask_to_stop(asked, directory, each)


def log(asked: Asked) -> str:
    """The file of the job's output, for a text; the name may end in a pattern. "" when not known.

    Raises TargetUnavailableError.
    """
    if asked.launched is not None and asked.launched.log:
        return asked.launched.log
    _, seen = _look(asked)
    return queue.log_of(asked.place, seen[-1].id, asked.cluster) if seen else ""


def lives(asked: Asked) -> bool:
    """Whether one of the jobs waits or runs. Raises TargetUnavailableError."""
    return any(not each.over for each in _look(asked)[1])


def states(asked: Asked) -> str:
    """The jobs and their states in a few words. Raises TargetUnavailableError."""
    _, seen = _look(asked)
    told = (f"job {e.id} is {e.state}" + (f" ({e.why})" if e.why else "") for e in seen)
    return ", ".join(told) or asked.unknown


def shown(place: Here | Login, path: str) -> str:
    """A path as people write it."""
    return f"{place.name}:{path.removeprefix('./')}" if place.name else places.short(path)


def _look(asked: Asked) -> tuple[JobState, list[Job]]:
    """What the directory says, and every job that is meant, the remembered one last."""
    found = JobState()
    if not asked.job.array:
        found = _job_state(asked, asked.directory)
    ids = [found.slurm_job, asked.launched.job if asked.launched else ""]
    ids = list(dict.fromkeys(filter(None, ids)))
    seen = queue.look(asked.place, ids, asked.cluster)
    return found, seen if ids else queue.named(asked.place, asked.job.name)


def _job_state(asked: Asked, directory: str) -> JobState:
    return state.read(places.facts(asked.place.ask(scripts.look(directory))))


def _directories(
    asked: Asked, found: JobState, seen: Sequence[Job]
) -> Iterator[tuple[str, JobState]]:
    if not asked.job.array:
        yield asked.directory, found
        return
    tasks = list(dict.fromkeys(each.task for each in seen if each.task))
    for task in tasks[:_MOST_TASKS]:
        directory = f"{asked.directory}-{task}"
        yield directory, _job_state(asked, directory)


def _own(asked: Asked, job: Job) -> str:
    return f"{asked.directory}-{job.task}" if asked.job.array else asked.directory


def _runs(found: JobState, seen: Sequence[Job]) -> bool | None:
    """Whether the processes that wrote the status are there, as far as Slurm knows."""
    if not found.of_slurm:
        return None  # it is of another tier, or nothing has begun
    return any(not e.waits and not e.over for e in seen if e.id.partition("_")[0] == found.of_slurm)


def _cancel(asked: Asked, waiting: Sequence[str]) -> Iterator[str]:
    answer = places.run(asked.place, jobs.cancel_waiting(waiting, asked.cluster))
    if answer.code != 0 and not jobs.unknown(answer.said):
        raise TargetUnavailableError(
            answer.said.strip() or f"scancel ended with code {answer.code}"
        )
    yield f"taken out of the queue: {', '.join(waiting)}"


def _ask_to_stop(asked: Asked, directory: str, job: Job) -> Iterator[str]:
    try:
        places.facts(asked.place.ask(scripts.stop(directory)))
    except TargetUnavailableError as error:
        raise TargetUnavailableError(
            f"{error}; job {job.id} runs: create the file stop in its checkpoint directory where that "
            f"can be seen, or kill the job: scancel {job.id}"
        ) from None
    yield f"{job.id}: asked for a clean stop; it will not be requeued"
