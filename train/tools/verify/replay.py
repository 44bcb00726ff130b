"""`python -m train replay DIRECTORY STEP,… BACKEND ARGUMENT…`: one process that computes steps of a run again.

Owns the choice of the recorded arguments that a replay replaces: the places of files, the processes that take part, and
the reports about the training. All arguments that decide what is computed stay.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from train import worker
from train.run.config import Period, RunConfig, parse


def main(argv: Sequence[str]) -> int:
    """Go on from the checkpoint in DIRECTORY, if there is one, to the last STEP, with a checkpoint after each STEP.

    ARGUMENT…: the run's own arguments.
    """
    directory, steps, backend, *recorded = argv
    points = tuple(map(int, steps.split(",")))
    world_size = int(os.environ["WORLD_SIZE"])
    config = replayed(parse(recorded), directory, points, backend, world_size)
    return worker.work(config, recorded)


def replayed(
    config: RunConfig, directory: str, points: tuple[int, ...], backend: str, world_size: int
) -> RunConfig:
    """Return the settings of a replay in `directory`, with a checkpoint after each step of `points`.

    An all-reduce adds in the order of the ranks, so it keeps the ranks' shares if there are as many ranks as then.
    A replay evaluates only with train.best, because then a checkpoint holds results of evaluations.
    """
    shares = config.shares if config.reduction == "allreduce" else None
    return replace(
        config,
        checkpoint_dir=directory,
        checkpoint_store="",
        checkpoint_every=Period(at=points),
        checkpoint_keep=len(points) + 1,
        code_dir=str(Path("code").absolute()) if config.code_dir is not None else None,
        until=points[-1],
        backend=backend,
        world_size=None,
        shares=shares if len(shares or ()) == world_size else None,
        weight=Fraction(1),
        balance=False,
        elastic=False,
        eval_every=config.eval_every if config.best_metric else 0,
        trackers=(),
        profile=None,
        probe=False,
        accept_changes=True,  # the first of its steps may be the first after a change
    )
