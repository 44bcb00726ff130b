"""`python -m train replay DIRECTORY STEP,… BACKEND ARGUMENT…`: one process that computes steps of a run again.

Owns which of the recorded arguments are another's here: where files go, who takes part, what else is told of the
training. All that decides what is computed stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from train import worker
from train.run.config import Period, RunConfig, parse


def main(argv: Sequence[str]) -> int:
    """Go on from the checkpoint in DIRECTORY, if there is one, to the last STEP, with a checkpoint after each of them.
    ARGUMENT…: as the run was given them."""
    directory, steps, backend, *recorded = argv
    points = tuple(map(int, steps.split(",")))
    return worker.work(replayed(parse(recorded), directory, points, backend), recorded)


def replayed(config: RunConfig, directory: str, points: tuple[int, ...], backend: str) -> RunConfig:
    """The settings of a replay in `directory`. It evaluates only where a checkpoint remembers that: by train.best."""
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
        shares=None,
        weight=Fraction(1),
        elastic=False,
        eval_every=config.eval_every if config.best_metric else 0,
        trackers=(),
        profile=None,
        probe=False,
        accept_changes=True,  # the first of its steps may be the first after a change
    )
