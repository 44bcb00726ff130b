"""status and stop of a job on this machine: what its checkpoint directory and its lock say.

Owns whether the processes in the lock live: by pid and start time, on the boot that they began in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddpgen.monitor import places, scripts, state, store
from ddpgen.monitor.places import Here
from ddpgen.monitor.state import JobState
from ddpgen.spec.job import JobSpec

_EXITING = 0x4  # PF_EXITING of include/linux/sched.h


def status(job: JobSpec, beside: Path) -> Iterator[str]:
    """Lines that say how it stands. Raises TargetUnavailableError."""
    directory, found = _look(job, beside)
    yield f"{places.short(directory)}:"
    yield from (f"  {line}" for line in state.words(found, _lives(found.lock)))
    yield from (f"  {line}" for line in _elsewhere(found))
    if found.newest is None:
        yield from store.kept(job)


def stop(job: JobSpec, beside: Path) -> Iterator[str]:
    """Ask for a clean stop, if there may be somebody to ask. Raises TargetUnavailableError."""
    directory, found = _look(job, beside)
    if found.there != "yes" or found.lock is None:
        yield f"nothing to stop: no job has begun in {places.short(directory)}"
    elif _lives(found.lock) is False:
        word = state.words(found, runs=False)[0]
        yield f"nothing to stop: nothing runs in {places.short(directory)}: {word}"
    else:
        places.facts(Here(beside).ask(scripts.stop(directory)))
        yield "asked for a clean stop after the current step"
        yield from _elsewhere(found)


def metrics(job: JobSpec, beside: Path) -> Path:
    """What is kept of a run: its output went to the terminal."""
    return Path(places.checkpoints(Here(beside), job), "metrics.jsonl")


def _look(job: JobSpec, beside: Path) -> tuple[str, JobState]:
    here = Here(beside)
    directory = places.checkpoints(here, job)
    return directory, state.read(places.facts(here.ask(scripts.look(directory))))


def _elsewhere(found: JobState) -> Iterator[str]:
    if found.lock is not None and _lives(found.lock) is None and found.word == "running":
        yield f"it was started on {found.lock.get('host', 'another host')}: look there whether it lives"


def _lives(lock: Mapping[str, Any] | None) -> bool | None:
    """Whether a process of the lock is there; None when it is not of this boot of this host."""
    if lock is None:
        return False
    if lock.get("boot") != _machine():
        return None
    pairs = (lock.get("launcher"), lock.get("writer"))
    return any(_is_running(*pair) for pair in pairs if isinstance(pair, list) and len(pair) == 2)


def _is_running(pid: Any, began: Any) -> bool:
    """As train/processes.py judges it."""
    if not os.path.isdir("/proc/self"):
        with contextlib.suppress(PermissionError):  # somebody else's, and there
            try:
                os.kill(int(pid), 0)
            except (ProcessLookupError, OverflowError, TypeError, ValueError):
                return False
        return True
    try:
        fields = Path(f"/proc/{int(pid)}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, TypeError, ValueError):
        return False
    ends = fields[0] in (b"Z", b"X") or int(fields[6]) & _EXITING
    return not ends and began in (0, int(fields[19]))


def _machine() -> str:
    """As train/processes.py names it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:
        return os.uname().nodename
