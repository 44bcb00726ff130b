"""A sweep: the jobs of its points, the words of the training that each point adds, and points.json of the bundle.

The supervisor reads that file (train/launch/points.py). Each point is a job of its own, whose checkpoint directory is
a part of the sweep's.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpgen.bundle import lock
from ddpgen.errors import Finding, OptionRefusedError, SpecInvalidError
from ddpgen.spec import sweep, yamltree
from ddpgen.spec.job import JobSpec, PointProgram
from ddpgen.spec.overrides import with_overrides
from ddpgen.spec.reader import Reading, SpecTree, read_tree
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.registry import MODELS, TIERS

_log = logging.getLogger(__name__)
FILE = "points.json"


def read(tree: SpecTree) -> dict[str, Reading]:
    """Return the job for each tier that the spec fits. The job of a sweep is its first point, and has all points.

    Raises SpecInvalidError with the errors of every point.
    """
    if tree.sweep is None:
        return read_tree(tree, MODELS)
    points, findings = sweep.read(tree.sweep, tree.root, MODELS)
    if findings:
        raise SpecInvalidError(tree.filename, [*tree.findings, *findings])
    errors: set[Finding] = set()
    readings: dict[str, dict[str, Reading]] = {}
    for point in points:
        root = with_overrides(tree.root, point.values, MODELS)
        try:
            readings[point.name] = read_tree(tree._replace(root=root), MODELS)
        except SpecInvalidError as error:
            errors.update(error.findings)
    if errors:
        raise SpecInvalidError(tree.filename, errors)
    first = next(iter(readings.values()))
    tiers = [tier for tier in first if all(tier in each for each in readings.values())]
    return {
        tier: _whole({name: each[tier] for name, each in readings.items()}, tree) for tier in tiers
    }


def _whole(points: Mapping[str, Reading], tree: SpecTree) -> Reading:
    args = _own({name: _arguments(reading.job) for name, reading in points.items()})
    programs = {name: PointProgram(args=own) for name, own in args.items()}
    points = {
        name: reading._replace(job=replace(reading.job, points=programs))
        for name, reading in points.items()
    }
    return next(iter(points.values()))._replace(points=points, whole=tree)


def _arguments(job: JobSpec) -> list[str]:
    args = job.train.args
    if isinstance(args, Mapping):
        return [f"--{name}={value}" for name, value in args.items()]
    return [*args]


def _own(words: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the words of each point that not all points have."""
    shared = set.intersection(*map(set, words.values()))
    return {name: tuple(w for w in each if w not in shared) for name, each in words.items()}


def in_container(reading: Reading, path: str) -> Reading:
    """Return the job in the container that its lock names, if it names one."""
    if not (image := lock.container(reading.job, path)):
        return reading
    _log.debug(f"{reading.tier} runs in the container {image}, which {lock.path(path)} names")
    points = {name: in_container(point, path) for name, point in reading.points.items()}
    job = TIERS[reading.tier].contained(reading.job, image)
    return reading._replace(job=job, points=points)


def by_point(readings: Sequence[Reading]) -> Iterator[list[Reading]]:
    """Yield the readings of all tiers: for each point of a sweep, or once for a job without points."""
    for name in readings[0].points or [""]:
        yield [reading.points.get(name, reading) for reading in readings]


def check(reading: Reading) -> Iterator[Finding]:
    """Yield the faults of a sweep as a whole: points that differ in more than the training, and equal points."""
    plans = [TIERS[reading.tier].plan(point.job) for point in reading.points.values()]
    if len({(plan.command.options, plan.command.launcher) for plan in plans}) > 1:
        problem = "the points differ in how processes are started, and all points share that"
        fields = ("train.threads", "train.reduction", "train")
        remedy = "write a spec of its own for each of these values"
        yield reading.locate(Conflict(fields, problem, remedy))
    names: dict[str, str] = {}
    for name, point in programmed(reading).points.items():
        if (twin := names.setdefault(point.id, name)) != name:
            problem = f"the points {twin} and {name} are the same training"
            assert reading.whole.sweep is not None
            remedy = "leave one of the equal values out"
            yield yamltree.finding(reading.whole.sweep, problem, remedy)


def programmed(reading: Reading) -> JobSpec:
    """Return the job with the words that each point adds to the program. A job without points stays as it is."""
    if not reading.points:
        return reading.job
    tier = TIERS[reading.tier]
    programs = {
        name: [str(word) for word in tier.plan(point.job).command.program]
        for name, point in reading.points.items()
    }
    own = _own(programs)
    points = {name: PointProgram(own[name], _id(words)) for name, words in programs.items()}
    return replace(reading.job, points=points)


def _id(program: Sequence[str]) -> str:
    """Return an id of the training. Options that share out the work do not count: they change no bit."""
    own = [word for word in program if not word.startswith(("--weight=", "--balance", "--shard="))]
    words = "\0".join(own)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def listing(jobs: Mapping[str, JobSpec]) -> str:
    """Return points.json for these jobs by tier: a line for each point. Return "" if no job has points."""
    tiers = []
    for tier, job in jobs.items():
        lines = (
            f"    {_json(name)}: {_json(point._asdict())}" for name, point in job.points.items()
        )
        tiers.append(f"  {_json(tier)}: {{\n" + ",\n".join(lines) + "\n  }")
    has_points = any(job.points for job in jobs.values())
    return "{\n" + ",\n".join(tiers) + "\n}\n" if has_points else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def restored(bundle: Path, tier: str, job: JobSpec) -> JobSpec:
    """Return the job of a bundle with its points, if it has any. Raise ValueError, KeyError, TypeError."""
    if not (bundle / FILE).is_file():
        return job
    points = json.loads((bundle / FILE).read_bytes())[tier]
    programs = {name: PointProgram(tuple(p["words"]), p["id"]) for name, p in points.items()}
    return replace(job, points=programs)


def chosen(job: JobSpec, only: Sequence[str]) -> list[str]:
    """Return the points that `only` means; all points without `only`. Raise OptionRefusedError if no point fits."""
    if not job.points:
        if only:
            raise OptionRefusedError("the job is no sweep; leave --only out")
        return []
    if names := sweep.chosen([*job.points], only):
        return names
    some = ", ".join([*job.points][:10])
    raise OptionRefusedError(f"no point has {' and '.join(only)}; the points are {some}")
