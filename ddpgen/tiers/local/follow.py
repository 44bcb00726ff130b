"""status, logs and stop of a job on this machine, by its checkpoint directory.

Owns the check for live processes of the lock, which calls the training module's own code.
"""

from __future__ import annotations

import contextlib
import functools
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ddpgen.driver import state
from ddpgen.driver.state import JobState
from ddpgen.errors import SpecUnreadableError
from ddpgen.monitor import places, scripts
from ddpgen.monitor.places import Machine
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.resources import resource

KILL_ADVICE = "press Ctrl-C twice where it runs"
INTERVAL_S = 1  # a look reads a few files


def status(following: Following | Path) -> JobStatus:
    """Return the status of the job in a checkpoint directory. Raise TargetUnavailableError."""
    directory = _directory(following)
    job_state = read_state(directory)
    return status_of(places.short(str(directory)), job_state, lock_is_live(job_state.lock))


def status_of(directory: str, job_state: JobState, is_live: bool | None) -> JobStatus:
    """Return the status of the job in a directory, as text shows it. `is_live`: the answer of lock_is_live."""
    report = Report(directory, job_state, is_live)
    return JobStatus([report, *_other_host_note(job_state, is_live)], report.ended)


def asking(
    following: Following | Path,
) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """Return a context with a function that reads the status at each call and raises TargetUnavailableError."""
    return contextlib.nullcontext(functools.partial(status, following))


def stop(following: Following | Path, now: bool) -> Iterator[str]:
    """Ask for a clean stop, unless no process is left to stop. Raise TargetUnavailableError."""
    directory = _directory(following)
    job_state, shown = read_state(directory), places.short(str(directory))
    is_live = lock_is_live(job_state.lock)
    if refusal := nothing_to_stop(shown, job_state, is_live):
        yield refusal
        return
    Machine("").facts(scripts.stop(str(directory)), f"ask for a stop in {shown}")
    yield "asked for a clean stop"
    yield from _other_host_note(job_state, is_live)


def nothing_to_stop(directory: str, job_state: JobState, is_live: bool | None) -> str:
    """Return why nothing in the directory can be asked to stop; "" if something can."""
    if job_state.directory_state != "yes" or job_state.lock is None:
        return f"nothing to stop: no job has begun in {directory}"
    if is_live is False:
        ended = Report(directory, job_state, running=False).facts()["state"]
        return f"nothing to stop: nothing runs in {directory}: {ended}"
    return ""


def logs(following: Following | Path, lines: int, follow: bool) -> NoReturn:
    """Replace this process by `tail` of the newest start's record: a script's output, or a workload's metrics.

    Raises SpecUnreadableError if there is no such file yet.
    """
    directory = _directory(following)
    file = max((directory / "logs").glob("*.log"), default=directory / "metrics.jsonl")
    if not file.exists() and not follow:
        message = f"{places.short(str(file))} is not there: no step is on record yet"
        raise SpecUnreadableError(f"{message}; what local.sh says goes to the terminal it runs in")
    become(places.tail([str(file)], lines, follow))


def is_live(following: Following) -> bool:
    """False: commands.choose has judged a lock of this machine already, and another machine's cannot be judged."""
    return False


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def has_local_checkpoints(following: Following) -> bool:
    """True: the checkpoint directory is always on this machine."""
    return True


def checkpoint_locations(
    following: Following,
) -> contextlib.AbstractContextManager[Sequence[tuple[Machine, str]]]:
    """Return this machine and the checkpoint directory on it."""
    here = Machine(str(following.bundle_parent))
    return contextlib.nullcontext([(here, here.checkpoints(following.job))])


def _directory(following: Following | Path) -> Path:
    return following if isinstance(following, Path) else following.checkpoints


def read_state(directory: Path) -> JobState:
    """Return the state of the job in a checkpoint directory. Raise TargetUnavailableError."""
    purpose = f"read {places.short(str(directory))}"
    return state.read(Machine("").facts(scripts.checkpoint_facts(str(directory)), purpose))


def _other_host_note(job_state: JobState, is_live: bool | None) -> Iterator[str]:
    if job_state.lock is not None and is_live is None and job_state.status == "running":
        yield f"it was started on {job_state.lock.get('host', 'another host')}: ddpgen status there tells whether it lives"


def lock_is_live(lock: Mapping[str, Any] | None) -> bool | None:
    """True if a process of the lock runs; None if the lock is from another host or an earlier boot."""
    if lock is None:
        return False
    processes = _processes()
    if lock.get("boot") != processes["machine"]():
        return None
    pairs = [lock.get("launcher"), lock.get("writer")]
    process_ids = [p for p in pairs if isinstance(p, list) and [type(n) for n in p] == [int, int]]
    return any(processes["process_state"](*pair) not in processes["ENDED"] for pair in process_ids)


@functools.cache
def _processes() -> Mapping[str, Any]:
    """Return the global names of train/base/processes.py. The file needs only Python, and is run, not imported."""
    return runpy.run_path(str(resource("train") / "base" / "processes.py"))
