"""`ddpgen status`, `logs` and `stop` on every tier: which tier, then its own way.

Decides what is asked of whom. Lines go to the caller; the output of a job goes where ours goes.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from ddpgen.bundle.write import LISTING
from ddpgen.driver.logs import newest
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.launch import START, become, output
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
from ddpgen.monitor.state import JobState, Report
from ddpgen.spec.job import JobSpec
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


class UnclearError(DdpgenError):
    """Several tiers are possible, and none was named."""

    exit_code = 2


def choose(jobs: Mapping[str, JobSpec], bundle: Path, target: str | None) -> Following:
    """What is meant: `target`, else the tier where it runs, else the one of the newest run, else the
    only one there is. Raises UnclearError.
    """
    launched = record.recall(bundle)
    every = {tier: Following(jobs[tier], tier, bundle, launched.get(tier)) for tier in jobs}
    if target is not None:
        return every[target]
    runs = {tier: run for tier, each in every.items() if (run := _newest_run(each)) is not None}
    if len(runs) > 1:
        live = [tier for tier in runs if _lives(every[tier])]
        if len(live) > 1:
            name = every[live[0]].job.name
            options = " or ".join(f"--target {tier}" for tier in live)
            raise UnclearError(f"{name} runs on {' and on '.join(live)}: name one with {options}")
        return every[live[0] if live else max(runs, key=lambda tier: runs[tier])]
    tiers = [*runs] or [tier for tier in _rendered(bundle) or jobs if tier in jobs]
    if len(tiers) == 1:
        return every[tiers[0]]
    raise UnclearError(
        f"nothing was started from here, and the job has the tiers {', '.join(tiers)}: name one with "
        "--target"
    )


def _newest_run(following: Following) -> float | None:
    """When the tier's newest run was launched or has last said something; None without one."""
    times = [following.launched.time] if following.launched else []
    if following.tier == "hosts":
        launch = newest(_beside(following) / "logs" / following.job.name)
        times += [launch.stat().st_mtime] if launch else []
    found = None if following.tier == "sky" else _found_here(following)
    if found is not None and found.started_by == following.tier:
        with contextlib.suppress(OSError):
            times.append((directory(following) / "status").stat().st_mtime)
    return max(times, default=None)


def _lives(following: Following) -> bool:
    """Whether the tier's newest run lives, as far as can be found out."""
    found = None if following.tier == "sky" else _found_here(following)
    if found is not None and found.started_by == following.tier:
        here = at_local.lives(found.lock)
        if here is not None or following.tier == "local":
            return found.word == "running" and bool(here)
    try:
        if isinstance(following.job, SkyJob):
            return at_sky.lives(at_sky.Asked(following.job, following.launched))
        if isinstance(following.job, SlurmJob):
            with _at_slurm(following) as asked:
                return at_slurm.lives(asked)
    except TargetUnavailableError:
        return False
    if following.tier != "hosts":
        return False
    return bool(re.search(r"^\S+ +yes ", _table_of_hosts(following), re.MULTILINE))


def _found_here(following: Following) -> JobState | None:
    """What the checkpoint directory says, where it is on this machine."""
    if isinstance(following.job, SlurmJob) and following.job.login is not None:
        return None
    where = directory(following)
    return at_local.look(where) if os.path.exists(where / "status") else None


def directory(following: Following) -> Path:
    """The checkpoint directory of a job that keeps it on this machine."""
    return Path(places.checkpoints(Here(_beside(following)), following.job))


def visible(following: Following) -> Path:
    """The checkpoint directory, for what has to look into it here. Raises TargetUnavailableError."""
    if following.tier == "sky" or getattr(following.job, "login", None) is not None:
        raise TargetUnavailableError(
            f"the checkpoint directory of {following.job.name} on {following.tier} is not on this machine; run "
            "ddpgen doctor CHECKPOINT_DIR where the job runs"
        )
    where = directory(following)
    if following.tier == "hosts" and not where.is_dir():
        raise TargetUnavailableError(
            f"{places.short(str(where))} is not on this machine; run ddpgen doctor CHECKPOINT_DIR on a host of the "
            "job: ddpgen status names them"
        )
    return where


def checkpoint_directory(path: Path) -> Path:
    """`path`, absolute. Raises DdpgenError where no job has left anything in it."""
    found = at_local.look(path.absolute())
    kept = os.path.exists(path / "metrics.jsonl")  # False where it may not be read
    if found.there == "yes" and not (found.word or found.lock or found.newest is not None or kept):
        raise DdpgenError(
            f"{path} is neither a bundle nor a checkpoint directory; give the spec, or the directory that "
            "the launch script names at its end"
        )
    return path.absolute()


def status(following: Following | Path, captured: bool = False) -> Iterator[str | Report]:
    """How the job of a spec, or in a checkpoint directory, stands. Raises TargetUnavailableError.

    On hosts this process becomes run.sh, unless what it says is to be `captured`.
    """
    if isinstance(following, Path):
        yield from at_local.status(following)
    elif following.tier == "hosts":
        yield from store.kept(following.job)
        if not captured:
            become(["bash", places.as_argument(str(_run_sh(following))), "--status"])
        yield _table_of_hosts(following)
    elif isinstance(following.job, SlurmJob):
        with _at_slurm(following) as asked:
            yield from at_slurm.status(asked)
    elif isinstance(following.job, SkyJob):
        yield from at_sky.status(at_sky.Asked(following.job, following.launched))
    else:
        for part in at_local.status(directory(following)):
            yield part
            if isinstance(part, Report) and part.found.newest is None:
                yield from store.kept(following.job)


def stop(following: Following | Path, now: bool = False) -> Iterator[str]:
    """Ask for a clean stop, or end it `now`, where that is a tier's to do; lines that say what came of it.

    Raises TargetUnavailableError.
    """
    if isinstance(following, Path):
        if now:
            raise DdpgenError(
                "--now is for a spec with the tier sky, not for a checkpoint directory"
            )
        yield from at_local.stop(following)
        return
    if isinstance(following.job, SkyJob):
        yield from at_sky.stop(at_sky.Asked(following.job, following.launched), now)
        return
    if now:
        raise DdpgenError(f"--now is for sky; on {following.tier}: {_AT_ONCE[following.tier]}")
    if following.tier == "hosts":
        become(["bash", places.as_argument(str(_run_sh(following))), "--stop"])
    if isinstance(following.job, SlurmJob):
        with _at_slurm(following) as asked:
            yield from at_slurm.stop(asked)
    else:
        yield from at_local.stop(directory(following))


def logs(following: Following | Path, lines: int, follow: bool) -> int:
    """Show the end of the job's output, on and on if wanted; the exit code.

    Raises TargetUnavailableError, DdpgenError where there is nothing yet.
    """
    if isinstance(following, Path) or following.tier == "local":
        where = following if isinstance(following, Path) else directory(following)
        kept = at_local.output(where)
        if not kept.exists() and not follow:
            message = f"{places.short(str(kept))} is not there: no step is on record yet"
            raise DdpgenError(f"{message}; what local.sh says goes to the terminal it runs in")
        _tail([str(kept)], lines, follow)
    if following.tier == "hosts":
        _logs_of_hosts(following, lines, follow)
    if isinstance(following.job, SkyJob):
        _logs_of_sky(at_sky.Asked(following.job, following.launched), lines, follow)
    with _at_slurm(following) as asked:
        file = at_slurm.log(asked)
        if not file:
            raise DdpgenError(asked.unknown)
        if isinstance(asked.place, Here):
            _logs_here(asked, file, lines, follow)
        return _logs_there(asked, file, lines, follow)


@contextlib.contextmanager
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
        become(["bash", places.as_argument(str(_run_sh(following))), "--logs"])
    launch = newest(_beside(following) / "logs" / following.job.name)
    if launch is None:
        raise DdpgenError("no host has said anything yet; see ddpgen logs without --follow")
    _tail(sorted(map(str, launch.glob("*.log"))), lines, follow)


def _tail(files: Sequence[str], lines: int, follow: bool) -> NoReturn:
    named = [places.as_argument(places.short(file)) for file in files]
    become(["tail", "-n", str(lines), *(["-F"] if follow else []), *named])


def _run_sh(following: Following) -> Path:
    script = following.bundle / START["hosts"]
    if not script.is_file():
        raise TargetUnavailableError(
            f"{script} is not there; render the job for hosts first, or name its bundle with -o"
        )
    return script


def _table_of_hosts(following: Following) -> str:
    """What run.sh --status says. Raises TargetUnavailableError when a host cannot be asked."""
    argv = ["bash", places.as_argument(str(_run_sh(following))), "--status"]
    code, said = output(argv)
    if code != 0:
        raise TargetUnavailableError(f"{said}not every host could be asked")
    return said.rstrip("\n")


def _beside(following: Following) -> Path:
    return following.bundle.absolute().parent


def _rendered(bundle: Path) -> tuple[str, ...]:
    """The tiers in the bundle."""
    try:
        targets = json.loads((bundle / LISTING).read_bytes())["targets"]
        return tuple(str(tier) for tier in targets)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
