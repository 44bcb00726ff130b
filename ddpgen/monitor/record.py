"""The last launch from a bundle on each tier: build/<name>.launched.json.

Owns that file. A missing or damaged file is no error: it means that no launch is on record.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ddpgen.errors import FileTroubleError
from ddpgen.spec.job import JobSpec

_log = logging.getLogger(__name__)
_SUFFIX = ".launched.json"


@dataclass(frozen=True)
class Launch:
    """One launch.

    `job`: the scheduler's id of the job. `time`: when the launch was recorded. On Slurm, `cluster` is the cluster if
    sbatch named one. `login` is the login node, and `log` the path of the job's output, on the login node if there is
    one. `points`: the ids of a sweep's jobs by the names of their points, including those of earlier launches.
    """

    tier: str
    job: str = ""
    cluster: str = ""
    log: str = ""
    login: str = ""
    time: float = 0.0
    points: Mapping[str, str] = field(default_factory=dict)

    def at_point(self, name: str) -> Launch | None:
        """Return the launch of one point of a sweep; None if no launch of it is on record."""
        if not self.points:
            return self
        if name not in self.points:
            return None
        log = re.sub(r"-[^-]*\.log$", f"-{self.points[name]}.log", self.log)
        return replace(self, job=self.points[name], log=log, points={})


class Following(NamedTuple):
    """One tier of a spec, the bundle's directory, and the last launch from it on that tier.

    `point`: the name of the point of a sweep whose job this is, "" for a whole job, and `point_index` its number, counted
    from 0. `chosen`: the points that the user chose; () for all points.
    """

    job: JobSpec
    tier: str
    bundle: Path
    launched: Launch | None
    point: str = ""
    point_index: int = 0
    chosen: tuple[str, ...] = ()

    @property
    def bundle_parent(self) -> Path:
        """The directory that holds the bundle, and checkpoints and logs if they are on this machine."""
        return self.bundle.absolute().parent

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory, for a tier that keeps it on this machine."""
        return checkpoints(self.job, self.bundle_parent)

    @property
    def points(self) -> dict[str, Following]:
        """The run of each point of a sweep, by its name; {} for a job that is no sweep."""
        launched = self.launched
        return {
            name: self._replace(
                job=self.job.at_point(name),
                launched=launched.at_point(name) if launched else None,
                point=name,
                point_index=index,
            )
            for index, name in enumerate(self.job.points)
            if name in self.chosen or not self.chosen
        }

    def narrowed(self, names: Sequence[str]) -> Following:
        """Return the run of these points of a sweep."""
        return self._replace(chosen=tuple(names))


def checkpoints(job: JobSpec, bundle_parent: Path) -> Path:
    """The checkpoint directory on this machine of a job whose bundle lies in `bundle_parent`."""
    return Path(os.path.abspath(bundle_parent / os.path.expanduser(job.checkpoint_path)))


def path(bundle: Path) -> Path:
    """Return the path of the record, in the directory that holds the bundle."""
    return bundle.with_name(f"{bundle.name}{_SUFFIX}")


def bundles(parent: Path) -> list[Path]:
    """Return the bundles in `parent` that have a record of a launch. A bundle itself may be gone."""
    return [parent / file.name.removesuffix(_SUFFIX) for file in parent.glob(f"*{_SUFFIX}")]


def write_launch(bundle: Path, launch: Launch) -> None:
    """Record a launch. Raise FileTroubleError."""
    file = path(bundle)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    launches = {tier: asdict(entry) for tier, entry in read_launches(bundle).items()}
    earlier = launches.get(launch.tier, {}).get("points", {}) if launch.points else {}
    entry = {**asdict(launch), "time": time.time(), "points": {**earlier, **launch.points}}
    launches[launch.tier] = {name: value for name, value in entry.items() if value != {}}
    try:
        temporary.write_text(json.dumps(launches, indent=1) + "\n", "utf-8")
        os.replace(temporary, file)
    except OSError as error:
        raise FileTroubleError(f"{file}: {error.strerror}; make room, or give another -o") from None
    _log.debug(f"wrote {file}")


def read_launches(bundle: Path) -> dict[str, Launch]:
    """Return the last launch on each tier that has one on record."""
    try:
        entries = json.loads(path(bundle).read_bytes())
        launches = {str(tier): Launch(**entry) for tier, entry in entries.items()}
        return launches if all(map(_is_whole, launches.values())) else {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _is_whole(launch: Launch) -> bool:
    values: dict[str, object] = dict(vars(launch))
    time_is_number = isinstance(values.pop("time"), (int, float))
    points = values.pop("points")
    values |= points if isinstance(points, dict) else {"points": None}
    return time_is_number and all(isinstance(text, str) for text in values.values())
