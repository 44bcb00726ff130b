"""The last launch from a bundle on each tier: build/<name>.launched.json.

Owns that file. A missing or damaged file is no error: it means that no launch is on record.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ddpgen.errors import FileTroubleError
from ddpgen.spec.job import JobSpec

_log = logging.getLogger(__name__)
_SUFFIX = ".launched.json"


@dataclass(frozen=True)
class Launch:
    """One launch.

    `job`: the scheduler's id of the job. `time`: of the launch. On Slurm, `cluster` is the cluster if sbatch named
    one. `login` is the login node, and `log` the path of the job's output, on the login node if there is one.
    """

    tier: str
    job: str = ""
    cluster: str = ""
    log: str = ""
    login: str = ""
    time: float = 0.0


class Following(NamedTuple):
    """One tier of a spec, the bundle's directory, and the last launch from it on that tier."""

    job: JobSpec
    tier: str
    bundle: Path
    launched: Launch | None

    @property
    def bundle_parent(self) -> Path:
        """The directory that holds the bundle, and checkpoints and logs if they are on this machine."""
        return self.bundle.absolute().parent

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory, for a tier that keeps it on this machine."""
        return checkpoints(self.job, self.bundle_parent)


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
    launches[launch.tier] = asdict(launch) | {"time": time.time()}
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
    return time_is_number and all(isinstance(text, str) for text in values.values())
