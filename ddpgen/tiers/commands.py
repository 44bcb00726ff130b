"""`ddpgen status`, `logs` and `stop`: choose the tier, then call that tier's own module."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ddpgen.bundle import write
from ddpgen.driver.state import JobState
from ddpgen.errors import OptionRefusedError, SpecUnreadableError, TargetUnavailableError
from ddpgen.monitor import places, record
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus
from ddpgen.spec.job import JobSpec
from ddpgen.tiers import points
from ddpgen.tiers.local import follow as local
from ddpgen.tiers.registry import DEFAULT_TIER, TIERS

_log = logging.getLogger(__name__)
_ELSEWHERE = "give it to the same command where the job runs"
_POINT = "point.json"  # in the checkpoint directory of a point of a sweep


def choose(jobs: Mapping[str, JobSpec], bundle: Path, target: str | None) -> Following:
    """Return the job on the tier that the user means. Raise OptionRefusedError if several tiers are possible.

    The tier is `target`, else the one on which the job runs, else the one of the newest run, else the only one.
    """
    launched = record.read_launches(bundle)
    candidates = {tier: Following(jobs[tier], tier, bundle, launched.get(tier)) for tier in jobs}
    if target is not None:
        return candidates[target]
    runs = {
        tier: run
        for tier, candidate in candidates.items()
        if (run := _newest_run(candidate)) is not None
    }
    _log.debug(f"tiers with a run: {', '.join(runs) or 'none'}")
    if len(runs) > 1:
        live = [tier for tier in runs if _is_live(candidates[tier])]
        if len(live) > 1:
            name = candidates[live[0]].job.name
            options = " or ".join(f"--target {tier}" for tier in live)
            raise OptionRefusedError(
                f"{name} runs on {' and on '.join(live)}; name one with {options}"
            )
        return candidates[live[0] if live else max(runs, key=lambda tier: runs[tier])]
    rendered = write.listing(bundle).get("targets") or jobs
    tiers = [*runs] or [tier for tier in rendered if tier in jobs]
    if len(tiers) == 1:
        return candidates[tiers[0]]
    name = candidates[tiers[0]].job.name
    raise OptionRefusedError(
        f"{name} was not launched from here, and has the tiers {', '.join(tiers)}; name one with --target"
    )


def _newest_run(following: Following) -> float | None:
    """Return when the tier's newest run was launched or last wrote its status; None if the tier has no run."""
    if following.job.points:
        return max(filter(None, map(_newest_run, following.points.values())), default=None)
    tier = TIERS[following.tier].follow
    launched = following.launched.time if following.launched else None
    times = [time for time in (launched, tier.launched_at(following)) if time is not None]
    if _local_state(following) is not None:
        with contextlib.suppress(OSError):
            times.append((following.checkpoints / "status").stat().st_mtime)
    return max(times, default=None)


def _is_live(following: Following) -> bool:
    """Return True if the tier's newest run lives; False if it has ended, or if nothing answers."""
    if following.job.points:
        return any(map(_is_live, following.points.values()))
    state = _local_state(following)
    lock_is_live = local.lock_is_live(state.lock) if state is not None else None
    if state is not None and lock_is_live is not None:
        return state.status == "running" and lock_is_live
    try:
        return TIERS[following.tier].follow.is_live(following)
    except TargetUnavailableError:
        return False


def _local_state(following: Following) -> JobState | None:
    """Return the state in the checkpoint directory on this machine; None if no run of this tier wrote it."""
    directory = following.checkpoints
    if not TIERS[following.tier].follow.has_local_checkpoints(following) or not os.path.exists(
        directory / "status"
    ):
        return None
    state = local.read_state(directory)
    return state if state.started_by == following.tier else None


def points_of(run: Following | Path) -> Mapping[str, Following | Path]:
    """Return the run of each point of a sweep by its name; {} for a job that is no sweep.

    A checkpoint directory belongs to a sweep if it has no status of its own, but directories of points that have begun.
    """
    if isinstance(run, Following):
        return run.points
    if os.path.exists(run / "status"):
        return {}
    return {mark.parent.name: mark.parent for mark in sorted(run.glob(f"*/{_POINT}"))}


def visible(run: Following | Path) -> Path:
    """Return the checkpoint directory.

    Raises TargetUnavailableError if it is not on this machine, and SpecUnreadableError if no job has made it yet. The
    points of a sweep have a directory each, so a sweep raises OptionRefusedError.
    """
    if points_of(run):
        sweep = places.short(str(_directory(run)))
        raise OptionRefusedError(f"{sweep} is of a sweep; give the directory of one point in it")
    return _on_this_machine(run, _ELSEWHERE)


def directories(run: Following | Path) -> list[Path]:
    """Return the checkpoint directory, or for a sweep the directory of each point, which may be missing.

    Raises the errors of visible(), except the error for a sweep.
    """
    remedy = _ELSEWHERE
    if isinstance(run, Following) and (start := TIERS[run.tier].start):
        # Only the tier hosts can use this remedy, because the directory of local is on this machine.
        remedy = f"bring it here: bash {places.short(str(run.bundle / start))} --fetch"
    whole = _on_this_machine(run, remedy)
    return [_directory(point) for point in points_of(run).values()] or [whole]


def _directory(run: Following | Path) -> Path:
    return run if isinstance(run, Path) else run.checkpoints


def _on_this_machine(run: Following | Path, remedy: str) -> Path:
    if isinstance(run, Path):
        return run
    if not TIERS[run.tier].follow.has_local_checkpoints(run):
        raise TargetUnavailableError(
            f"the checkpoint directory of {run.job.name} on {run.tier} is not on this machine; {remedy}"
        )
    if not run.checkpoints.is_dir():
        raise SpecUnreadableError(
            f"no job has begun in {places.short(str(run.checkpoints))}; launch it first: ddpgen launch SPEC "
            f"--target {run.tier}"
        )
    return run.checkpoints


def checkpoint_directory(path: Path) -> Path:
    """Return `path`, absolute. Raise SpecUnreadableError if no job has left a file in it."""
    state = local.read_state(path.absolute())
    # Also False if we may not read the directory. A job that the preflight ended leaves only preflight.json and nodes.
    has_files = any(
        os.path.exists(path / name) for name in ("metrics.jsonl", "preflight.json", "nodes")
    )
    if state.directory_state == "yes" and not (
        state.status
        or state.lock
        or state.newest_checkpoint is not None
        or has_files
        or points_of(path)
    ):
        raise SpecUnreadableError(
            f"{path} is neither a bundle nor a checkpoint directory; give the spec, or the directory that "
            "the launch script names at its end"
        )
    return path.absolute()


def status(following: Following | Path, captured: bool = False) -> JobStatus:
    """Return the status of the job of a spec, or of a checkpoint directory. Raise TargetUnavailableError.

    On some tiers this process becomes a program that shows the status, unless `captured` asks for the value.
    """
    if isinstance(following, Following) and not captured and not following.job.points:
        return TIERS[following.tier].follow.status(following)
    with asking(following) as ask:
        return ask()


def asking(
    following: Following | Path,
) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
    """Return a context with a function that asks for the status at each call, over connections that stay open.

    The context and the function raise TargetUnavailableError.
    """
    if runs := points_of(following):
        return points.asking({name: asking(run) for name, run in runs.items()})
    if isinstance(following, Path):
        return local.asking(following)
    return TIERS[following.tier].follow.asking(following)


def interval_s(following: Following | Path) -> int:
    """Return the seconds between two questions for the status of a job."""
    return TIERS[_tier_of(following)].follow.INTERVAL_S


def _tier_of(following: Following | Path) -> str:
    return DEFAULT_TIER if isinstance(following, Path) else following.tier


def stop(following: Following | Path, now: bool = False) -> Iterator[str]:
    """Ask for a clean stop and yield lines that tell the outcome. `now`: end the job at once.

    Raises TargetUnavailableError; OptionRefusedError if `now` is given on a tier that cannot do it.
    """
    tier = _tier_of(following)
    if now and (at_once := TIERS[tier].follow.KILL_ADVICE):
        raise OptionRefusedError(f"--now is for sky; on {tier}: {at_once}")
    if runs := points_of(following):
        return points.stop({name: stop(run, now) for name, run in runs.items()})
    if isinstance(following, Path):
        return local.stop(following, now)
    return TIERS[tier].follow.stop(following, now)


def logs(following: Following | Path, lines: int, follow: bool) -> int:
    """Show the last `lines` of the job's output and return the exit code. `follow`: go on with new lines.

    Raises TargetUnavailableError; SpecUnreadableError if there is no output yet.
    """
    if isinstance(following, Path):
        return local.logs(visible(following), lines, follow)
    if following.job.points:
        example = next(iter(following.job.points)).partition(",")[0]
        raise OptionRefusedError(
            f"{following.job.name} is a sweep; choose one point: --only {example}"
        )
    return TIERS[following.tier].follow.logs(following, lines, follow)
