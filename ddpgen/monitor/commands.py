"""`ddpgen status`, `logs` and `stop` on every tier: which tier, then its own way.

Decides what is asked of whom. Lines go to the caller; the output of a job goes where ours goes.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from ddpgen.bundle.write import LISTING
from ddpgen.driver.logs import newest
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.launch import START, become
from ddpgen.monitor import (
    at_local,
    at_sky,
    at_slurm,
    managed,
    places,
    record,
    scripts,
    skypilot,
    store,
)
from ddpgen.monitor.at_slurm import Asked
from ddpgen.monitor.places import Here
from ddpgen.monitor.record import Launched
from ddpgen.spec.job import JobSpec
from ddpgen.spec.reader import Reading
from ddpgen.spec.sky import SkyJob
from ddpgen.spec.slurm import SlurmJob

_AT_ONCE = {
    "local": "press Ctrl-C twice where it runs",
    "hosts": "press Ctrl-C twice where run.sh runs",
    "slurm": "scancel JOBID",
}  # what ends a job there


class Following(NamedTuple):
    """One tier of a spec, the bundle's directory, and what was launched from it on that tier."""

    job: JobSpec
    tier: str
    bundle: Path
    launched: Launched | None


def choose(
    readings: Mapping[str, Reading], bundle: Path, target: str | None
) -> Following | tuple[str, ...]:
    """What is meant: `target`, else the tier launched last, else the only one there is.

    Several tiers, by name, where that is left open.
    """
    launched = record.recall(bundle)
    if target is None and launched is not None and launched.tier in readings:
        target = launched.tier
    if target is None:
        tiers = tuple(tier for tier in _rendered(bundle) or tuple(readings) if tier in readings)
        if len(tiers) != 1:
            return tiers
        target = tiers[0]
    ours = launched is not None and launched.tier == target
    return Following(readings[target].job, target, bundle, launched if ours else None)


def status(following: Following) -> Iterator[str]:
    """Lines that say how it stands. Raises TargetUnavailableError."""
    if following.tier == "hosts":
        yield from store.kept(following.job)
        _run_sh(following, "--status")
    if isinstance(following.job, SlurmJob):
        with _at_slurm(following) as asked:
            yield from at_slurm.status(asked)
    elif isinstance(following.job, SkyJob):
        yield from at_sky.status(at_sky.Asked(following.job, following.launched))
    else:
        yield from at_local.status(following.job, _beside(following))


def stop(following: Following, now: bool = False) -> Iterator[str]:
    """Ask for a clean stop, or end it `now`, where that is a tier's to do; lines that say what came of it.

    Raises TargetUnavailableError.
    """
    if isinstance(following.job, SkyJob):
        yield from at_sky.stop(at_sky.Asked(following.job, following.launched), now)
        return
    if now:
        raise DdpgenError(f"--now is for sky; on {following.tier}: {_AT_ONCE[following.tier]}")
    if following.tier == "hosts":
        _run_sh(following, "--stop")
    if isinstance(following.job, SlurmJob):
        with _at_slurm(following) as asked:
            yield from at_slurm.stop(asked)
    else:
        yield from at_local.stop(following.job, _beside(following))


def logs(following: Following, lines: int, follow: bool) -> int:
    """Show the end of the job's output, on and on if wanted; the exit code.

    Raises TargetUnavailableError, DdpgenError where there is nothing yet.
    """
    if following.tier == "hosts":
        _logs_of_hosts(following, lines, follow)
    if isinstance(following.job, SkyJob):
        _logs_of_sky(at_sky.Asked(following.job, following.launched), lines, follow)
    if not isinstance(following.job, SlurmJob):
        kept = at_local.metrics(following.job, _beside(following))
        if not kept.exists() and not follow:
            message = f"{places.short(str(kept))} is not there: no step is on record yet"
            raise DdpgenError(f"{message}; what local.sh says goes to the terminal it runs in")
        _tail([str(kept)], lines, follow)
    with _at_slurm(following) as asked:
        file = at_slurm.log(asked)
        if not file:
            raise DdpgenError(asked.unknown)
        if isinstance(asked.place, Here):
            _logs_here(asked, file, lines, follow)
        return _logs_there(asked, file, lines, follow)


@contextmanager
def _at_slurm(following: Following) -> Iterator[Asked]:
    assert isinstance(following.job, SlurmJob)
    launched = following.launched
    if launched is not None and launched.login != (following.job.login or ""):
        launched = None  # the spec has gone to another cluster since
    with places.reach(following.job, _beside(following), dict(os.environ)) as place:
        yield Asked(following.job, place, launched)


def _logs_here(asked: Asked, file: str, lines: int, follow: bool) -> NoReturn:
    directory, name = os.path.split(file)
    files = sorted(glob.glob(os.path.join(glob.escape(directory), name)))
    if not files and (not follow or asked.job.array):
        raise DdpgenError(f"{places.short(file)} is not there yet: {at_slurm.states(asked)}")
    _tail(files or [file], lines, follow)


def _logs_there(asked: Asked, file: str, lines: int, follow: bool) -> int:
    assert not isinstance(asked.place, Here)
    words = ["tail", f"--lines={lines}", *(["-F"] if follow else []), file.removeprefix("./")]
    print("+", asked.place.typed(words, "."), file=sys.stderr, flush=True)
    if follow:
        return asked.place.follow(file, lines)
    outcome = asked.place.ask(scripts.tail(file, lines))
    if outcome.code != 0:
        raise DdpgenError(
            f"{at_slurm.shown(asked.place, file)} is not there yet: {at_slurm.states(asked)}"
        )
    sys.stdout.write(scripts.said(outcome.output) or "")
    return 0


def _logs_of_sky(asked: at_sky.Asked, lines: int, follow: bool) -> NoReturn:
    job = at_sky.log(asked)
    if job is None:
        raise DdpgenError(asked.unknown)
    become([*skypilot.command(os.environ), *managed.logs(job.id, lines, follow)])


def _logs_of_hosts(following: Following, lines: int, follow: bool) -> NoReturn:
    if not follow:
        _run_sh(following, "--logs")
    launch = newest(_beside(following) / "logs" / following.job.name)
    if launch is None:
        raise DdpgenError("no host has said anything yet; see ddpgen logs without --follow")
    _tail(sorted(map(str, launch.glob("*.log"))), lines, follow)


def _tail(files: Sequence[str], lines: int, follow: bool) -> NoReturn:
    named = [places.as_argument(places.short(file)) for file in files]
    become(["tail", "-n", str(lines), *(["-F"] if follow else []), *named])


def _run_sh(following: Following, option: str) -> NoReturn:
    script = following.bundle / START["hosts"]
    if not script.is_file():
        raise TargetUnavailableError(
            f"{script} is not there; render the job for hosts first, or name its bundle with -o"
        )
    become(["bash", places.as_argument(str(script)), option])


def _beside(following: Following) -> Path:
    return following.bundle.absolute().parent


def _rendered(bundle: Path) -> tuple[str, ...]:
    """The tiers in the bundle."""
    try:
        targets = json.loads((bundle / LISTING).read_bytes())["targets"]
        return tuple(str(tier) for tier in targets)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
