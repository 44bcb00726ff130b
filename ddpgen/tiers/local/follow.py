"""status, logs and stop of a job on this machine, by its checkpoint directory.

Owns whether the processes in the lock live, as the training module judges it.
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
    """How the job in a checkpoint directory stands. Raises TargetUnavailableError."""
    directory = _directory(following)
    found = look(directory)
    report = Report(places.short(str(directory)), found, lock_lives(found.lock))
    return JobStatus([report, *_elsewhere(found)], report.over)


def asking(
    following: Following | Path,
) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """The function that tells how it stands, as often as it is called. Raises TargetUnavailableError, as that does."""
    return contextlib.nullcontext(functools.partial(status, following))


def stop(following: Following | Path, now: bool) -> Iterator[str]:
    """Ask for a clean stop, if there may be somebody to ask. Raises TargetUnavailableError."""
    directory = _directory(following)
    found, shown = look(directory), places.short(str(directory))
    if found.there != "yes" or found.lock is None:
        yield f"nothing to stop: no job has begun in {shown}"
    elif lock_lives(found.lock) is False:
        ended = Report(shown, found, runs=False).facts()["state"]
        yield f"nothing to stop: nothing runs in {shown}: {ended}"
    else:
        Place("").facts(scripts.stop(str(directory)))
        yield "asked for a clean stop"
        yield from _elsewhere(found)


def logs(following: Following | Path, lines: int, follow: bool) -> NoReturn:
    """Become the end of what is kept of the newest start: all that a user's script has printed; of a
    workload, its metrics. Raises DdpgenError where there is nothing yet."""
    directory = _directory(following)
    file = max((directory / "logs").glob("*.log"), default=directory / "metrics.jsonl")
    if not file.exists() and not follow:
        message = f"{places.short(str(file))} is not there: no step is on record yet"
        raise DdpgenError(f"{message}; what local.sh says goes to the terminal it runs in")
    become(places.tail([str(file)], lines, follow))


def lives(following: Following) -> bool:
    """The lock has told already whether it lives, where it is of this machine."""
    return False


def launched_at(following: Following) -> float | None:
    """When the newest launch began, if something besides the record of launches knows."""
    return None


def keeps_here(following: Following) -> bool:
    """True if the checkpoint directory is on this machine."""
    return True


def kept(following: Following) -> contextlib.AbstractContextManager[Sequence[tuple[Place, str]]]:
    """This machine, and the checkpoint directory on it."""
    here = Place(str(following.beside))
    return contextlib.nullcontext([(here, here.checkpoints(following.job))])


def _directory(following: Following | Path) -> Path:
    return following if isinstance(following, Path) else places.directory(following)


def look(directory: Path) -> JobState:
    """What a checkpoint directory says. Raises TargetUnavailableError."""
    return state.read(Place("").facts(scripts.look(str(directory))))


def _elsewhere(found: JobState) -> Iterator[str]:
    if found.lock is not None and lock_lives(found.lock) is None and found.word == "running":
        yield f"it was started on {found.lock.get('host', 'another host')}: ddpgen status there tells whether it lives"


def lock_lives(lock: Mapping[str, Any] | None) -> bool | None:
    """Whether a process of the lock is there; None when it is not of this boot of this host."""
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
    """What the training module's own file knows of processes: it needs nothing but Python, and is run, not
    imported."""
    return runpy.run_path(str(resource("train") / "base" / "processes.py"))
