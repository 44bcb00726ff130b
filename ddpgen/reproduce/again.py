"""Reproduce a run from the bundle that the run keeps: compare the bundle with a new render, and prepare a launch.

Owns the directory of a reproduction, which holds the bundle and the new checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddpgen import __version__, job
from ddpgen.bundle import write
from ddpgen.driver.wording import first_names
from ddpgen.errors import BundleRefusedError, DdpgenError, TargetUnavailableError
from ddpgen.monitor.record import Following
from ddpgen.resources import resource
from ddpgen.spec.job import JobSpec
from ddpgen.tiers.registry import TIERS


def new_directory(directory: Path, output: Path | None) -> Path:
    """Return the directory in which to reproduce the run of this checkpoint directory.

    It does not exist yet, or holds only the bundle of an earlier try. Raises BundleRefusedError.
    """
    target = (output or Path("build", f"{directory.absolute().name}-reproduced")).absolute()
    if target.is_relative_to(directory.absolute()):
        raise BundleRefusedError(
            f"{target} is in the run's own directory; give another place with -o"
        )
    if target.exists() and (not target.is_dir() or {*os.listdir(target)} - {"bundle"}):
        raise BundleRefusedError(f"{target} is not empty; remove it, or give another place with -o")
    return target


def compared(bundle: Path) -> str:
    """Say in words if this ddpgen renders the same bytes from the spec in bundle.json."""
    listing = write.read(bundle)
    origin = f"rendered by ddpgen {listing['ddpgen']}"
    try:
        differing = sorted(_differing(bundle, listing["files"]))
    except DdpgenError as error:
        return f"{origin}; this one, {__version__}, cannot render it: {error}"
    if not differing:
        return f"{origin}; this one, {__version__}, renders the same bytes"
    return f"{origin}; this one, {__version__}, renders another {first_names(differing)}. What runs is the run's own"


def _differing(bundle: Path, sums: dict[str, str]) -> Iterator[str]:
    """Yield the artefacts and the files of the training module that this ddpgen would make differently."""
    import hashlib

    from ddpgen.render import Renderer

    renderer = Renderer()
    rendered = {
        artefact.path: artefact.text.encode()
        for tier, tier_job in job.bundle_jobs(bundle).items()
        for artefact in TIERS[tier].render(tier_job, renderer)
    }
    for item in write.copied_tree(resource("train"), "train"):
        assert item.file is not None
        rendered[item.path] = item.file.read_bytes()
    for path, content in rendered.items():
        if sums.get(path) != hashlib.sha256(content).hexdigest():
            yield path
    yield from (path for path in sums if path.startswith("train/") and path not in rendered)


def launched(bundle: Path, tier: str, run: Path) -> tuple[JobSpec, Path, list[str]]:
    """Return the job of `tier` in this bundle, its checkpoint directory, and the run's point; [] if it is no sweep.

    `run`: the checkpoint directory of the run. In a sweep, the directory has the name of the point. Raises
    TargetUnavailableError if the bundle has no such job or point, or if the job would resume from the run's own
    checkpoints.
    """
    jobs = job.bundle_jobs(bundle)
    if tier not in jobs:
        raise TargetUnavailableError(
            f"the run's bundle was rendered for {', '.join(jobs)}, not for {tier}; name one of them, or leave --target "
            "out to compute it here"
        )
    tier_job = jobs[tier]
    following = Following(tier_job, tier, bundle, None)
    point = [name for name in tier_job.points if name == run.absolute().name]
    if tier_job.points:
        if not point:
            raise TargetUnavailableError(
                f"{run} is no point of the sweep {tier_job.name}; was it renamed?"
            )
        following = following.points[point[0]]
    checkpoints, is_local = (
        following.checkpoints,
        TIERS[tier].follow.has_local_checkpoints(following),
    )
    if (
        tier_job.checkpoint.url
        or not is_local
        or not checkpoints.is_relative_to(following.bundle_parent)
    ):
        raise TargetUnavailableError(
            f"on {tier} this job would resume from the checkpoints of the run itself, which lie in a place of its name; "
            "leave --target out to compute it here, or launch its spec under another name and compare the two by "
            "ddpgen diff"
        )
    return tier_job, checkpoints, point
