"""A job beside a user's own, to measure with: the same spec under another name, run to its end.

Owns the name and the directories of such a job, so that nothing of the user's job is touched. What is measured is
the business of train/; which files come of it, of the commands.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpgen.errors import FileTroubleError
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.reader import Reading

PROBE = "probe.json"


def beside(reading: Reading, suffix: str, **changes: Any) -> Reading:
    """The job as NAME-suffix, with a checkpoint directory of its own; `changes` are fields of the job."""
    job = reading.job
    place = f"{job.checkpoint.path}-{suffix}" if job.checkpoint.path else None
    own = replace(job.checkpoint, dir=place)
    return reading._replace(
        job=replace(job, name=f"{job.name}-{suffix}", checkpoint=own, **changes)
    )


def probed(reading: Reading) -> Reading:
    """The job that probes: of a script of the user's it has the launch alone."""
    train = reading.job.train
    if train.runs != "workload":
        size = reading.job.world_size
        train = Train(workload="toy", steps=1, global_batch_size=size, micro_batch_size=1)
        return beside(reading, "probe", train=train, code=())
    return beside(reading, "probe")


def results(job: JobSpec, bundle: Path) -> Path:
    """The checkpoint directory of the job, here; from hosts it is brought by --fetch."""
    return (bundle.parent / Path(job.checkpoint_path).expanduser()).absolute()


def copy(figures: Path, to: Path) -> None:
    """Copy what was measured. Raises FileTroubleError."""
    try:
        shutil.copyfile(figures, to)
    except OSError as error:
        raise FileTroubleError(f"{error.filename or to}: {error.strerror}") from None
