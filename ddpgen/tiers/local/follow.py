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
from ddpgen.errors import DdpgenError
from ddpgen.monitor import places, scripts
from ddpgen.monitor.places import Place
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.resources import resource

AT_ONCE = "press Ctrl-C twice where it runs"
INTERVAL_S = 1  # a look reads a few files


def status(following: Following | Path) -> JobStatus:
    """Return the status of the job in a checkpoint directory. Raise TargetUnavailableError."""
    directory = _directory(following)
    found = look(directory)
    return status_of(places.short(str(directory)), found, lock_lives(found.lock))


def status_of(place: str, found: JobState, lives: bool | None) -> JobStatus:
    """Return the status of the job in the directory `place`. `lives`: the answer of lock_lives."""
    report = Report(place, found, lives)
    return JobStatus([report, *_elsewhere(found, lives)], report.over)


def asking(
    following: Following | Path,
) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """Return a context with a function that reads the status at each call and raises TargetUnavailableError."""
    return contextlib.nullcontext(functools.partial(status, following))


def stop(following: Following | Path, now: bool) -> Iterator[str]:
    """Ask for a clean stop, unless no process is left to stop. Raise TargetUnavailableError."""
    directory = _directory(following)
    found, shown = look(directory), places.short(str(directory))
    lives = lock_lives(found.lock)
    if nothing := nothing_to_stop(shown, found, lives):
        yield nothing
        return
    Place("").facts(scripts.stop(str(directory)), f"ask for a stop in {shown}")
    yield "asked for a clean stop"
    yield from _elsewhere(found, lives)


def nothing_to_stop(place: str, found: JobState, lives: bool | None) -> str:
    """Return why nothing in the directory `place` can be asked to stop; "" if something can."""
    if found.there != "yes" or found.lock is None:
        return f"nothing to stop: no job has begun in {place}"
    if lives is False:
        ended = Report(place, found, runs=False).facts()["state"]
        return f"nothing to stop: nothing runs in {place}: {ended}"
    return ""


def logs(following: Following | Path, lines: int, follow: bool) -> NoReturn:
    """Replace this process by `tail` of the newest start's record: a script's output, or a workload's metrics.

    Raises DdpgenError if there is no such file yet.
    """
    directory = _directory(following)
    file = max((directory / "logs").glob("*.log"), default=directory / "metrics.jsonl")
    if not file.exists() and not follow:
        message = f"{places.short(str(file))} is not there: no step is on record yet"
        raise DdpgenError(f"{message}; what local.sh says goes to the terminal it runs in")
    become(places.tail([str(file)], lines, follow))


def lives(following: Following) -> bool:
    """False: commands.choose has judged a lock of this machine already, and another machine's cannot be judged."""
    return False


def launched_at(following: Following) -> float | None:
    """None: the record of launches is the only source."""
    return None


def keeps_here(following: Following) -> bool:
    """True: the checkpoint directory is always on this machine."""
    return True


def checkpoint_places(
    following: Following,
) -> contextlib.AbstractContextManager[Sequence[tuple[Place, str]]]:
    """Return this machine and the checkpoint directory on it."""
    here = Place(str(following.beside))
    return contextlib.nullcontext([(here, here.checkpoints(following.job))])


def _directory(following: Following | Path) -> Path:
    return following if isinstance(following, Path) else following.checkpoints


def look(directory: Path) -> JobState:
    """Return the state of the job in a checkpoint directory. Raise TargetUnavailableError."""
    purpose = f"read {places.short(str(directory))}"
    return state.read(Place("").facts(scripts.look(str(directory)), purpose))


def _elsewhere(found: JobState, lives: bool | None) -> Iterator[str]:
    if found.lock is not None and lives is None and found.word == "running":
        yield f"it was started on {found.lock.get('host', 'another host')}: ddpgen status there tells whether it lives"


def lock_lives(lock: Mapping[str, Any] | None) -> bool | None:
    """True if a process of the lock runs; None if the lock is from another host or an earlier boot."""
    if lock is None:
        return False
    processes = _processes()
    if lock.get("boot") != processes["machine"]():
        return None
    pairs = [lock.get("launcher"), lock.get("writer")]
    known = [p for p in pairs if isinstance(p, list) and [type(n) for n in p] == [int, int]]
    return any(processes["process_state"](*pair) not in processes["ENDED"] for pair in known)


@functools.cache
def _processes() -> Mapping[str, Any]:
    """Return the names of train/base/processes.py. That file needs only Python, and is run, not imported."""
    return runpy.run_path(str(resource("train") / "base" / "processes.py"))
