"""`ddpgen status`, `logs` and `stop`: which tier is meant, then that tier's own module."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ddpgen.bundle import write
from ddpgen.driver.state import JobState
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.monitor import places, record
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus
from ddpgen.spec.job import JobSpec
from ddpgen.tiers.local import follow as local
from ddpgen.tiers.registry import FIRST, TIERS


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
    rendered = write.listing(bundle).get("targets") or jobs
    tiers = [*runs] or [tier for tier in rendered if tier in jobs]
    if len(tiers) == 1:
        return every[tiers[0]]
    raise UnclearError(
        f"nothing was started from here, and the job has the tiers {', '.join(tiers)}: name one with "
        "--target"
    )


def _newest_run(following: Following) -> float | None:
    """When the tier's newest run was launched or has last said something; None without one."""
    tier = TIERS[following.tier].follow
    launched = following.launched.time if following.launched else None
    times = [time for time in (launched, tier.launched_at(following)) if time is not None]
    if _found_here(following) is not None:
        with contextlib.suppress(OSError):
            times.append((places.directory(following) / "status").stat().st_mtime)
    return max(times, default=None)


def _lives(following: Following) -> bool:
    """Whether the tier's newest run lives, as far as can be found out."""
    found = _found_here(following)
    here = local.lock_lives(found.lock) if found is not None else None
    if found is not None and here is not None:
        return found.word == "running" and here
    try:
        return TIERS[following.tier].follow.lives(following)
    except TargetUnavailableError:
        return False


def _found_here(following: Following) -> JobState | None:
    """What the checkpoint directory on this machine says of a run of this tier; None without one."""
    where = places.directory(following)
    if not TIERS[following.tier].follow.keeps_here(following) or not os.path.exists(
        where / "status"
    ):
        return None
    found = local.look(where)
    return found if found.started_by == following.tier else None


def visible(following: Following) -> Path:
    """The checkpoint directory, for what has to look into it here. Raises TargetUnavailableError."""
    if not TIERS[following.tier].follow.keeps_here(following):
        raise TargetUnavailableError(
            f"the checkpoint directory of {following.job.name} on {following.tier} is not on this machine; run "
            "ddpgen doctor CHECKPOINT_DIR where the job runs"
        )
    return places.directory(following)


def checkpoint_directory(path: Path) -> Path:
    """`path`, absolute. Raises DdpgenError where no job has left anything in it."""
    found = local.look(path.absolute())
    kept = os.path.exists(path / "metrics.jsonl")  # False where it may not be read
    if found.there == "yes" and not (found.word or found.lock or found.newest is not None or kept):
        raise DdpgenError(
            f"{path} is neither a bundle nor a checkpoint directory; give the spec, or the directory that "
            "the launch script names at its end"
        )
    return path.absolute()


def status(following: Following | Path, captured: bool = False) -> JobStatus:
    """How the job of a spec, or in a checkpoint directory, stands. Raises TargetUnavailableError.

    On some tiers this process becomes another one that shows it, unless the status is `captured` for programs.
    """
    if isinstance(following, Following) and not captured:
        return TIERS[following.tier].follow.status(following)
    with asking(following) as ask:
        return ask()


def asking(
    following: Following | Path,
) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """The function that tells how it stands, as often as it is called; connections stay. Raises
    TargetUnavailableError, as that does."""
    if isinstance(following, Path):
        return local.asking(following)
    return TIERS[following.tier].follow.asking(following)


def interval_s(following: Following | Path) -> int:
    """How often to ask a job how it stands."""
    return TIERS[FIRST if isinstance(following, Path) else following.tier].follow.INTERVAL_S


def stop(following: Following | Path, now: bool = False) -> Iterator[str]:
    """Ask for a clean stop, or end it `now`, where that is a tier's to do; lines that say what came of it.

    Raises TargetUnavailableError, DdpgenError.
    """
    name = FIRST if isinstance(following, Path) else following.tier
    if now and (at_once := TIERS[name].follow.AT_ONCE):
        raise DdpgenError(f"--now is for sky; on {name}: {at_once}")
    if isinstance(following, Path):
        return local.stop(following, now)
    return TIERS[name].follow.stop(following, now)


def logs(following: Following | Path, lines: int, follow: bool) -> int:
    """Show the end of the job's output, on and on if wanted; the exit code.

    Raises TargetUnavailableError, DdpgenError where there is nothing yet.
    """
    if isinstance(following, Path):
        return local.logs(following, lines, follow)
    return TIERS[following.tier].follow.logs(following, lines, follow)
