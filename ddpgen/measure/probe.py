"""A second job to measure with: the user's spec under another name, run to its end.

Owns the name and the directories of such a job, so that it touches no file of the user's job. train/ measures, and
the commands write the results.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpgen.errors import FileTroubleError
from ddpgen.spec.job import Train
from ddpgen.spec.reader import Reading

PROBE = "probe.json"


def derived(reading: Reading, suffix: str, **changes: Any) -> Reading:
    """Return the job as NAME-suffix, with a checkpoint directory of its own. `changes`: fields of the job.

    The first point of a sweep stands for all.
    """
    job = replace(reading.job, points={})
    directory = f"{job.checkpoint.path}-{suffix}" if job.checkpoint.path else None
    checkpoint = replace(job.checkpoint, dir=directory)
    return reading._replace(
        job=replace(job, name=f"{job.name}-{suffix}", checkpoint=checkpoint, **changes), points={}
    )


def probed(reading: Reading) -> Reading:
    """Return the job that probes. For a user's script the job has the launch of the script, and trains `toy`."""
    train = reading.job.train
    if train.program_field != "workload":
        size = reading.job.world_size
        train = Train(workload="toy", steps=1, global_batch_size=size, micro_batch_size=1)
        return derived(reading, "probe", train=train, code=())
    return derived(reading, "probe")


def read(figures: Path) -> str:
    """Return the figures of a probe as text. Raise FileTroubleError."""
    try:
        return figures.read_text("utf-8")
    except OSError as error:
        raise FileTroubleError(f"{figures}: {error.strerror}") from None
