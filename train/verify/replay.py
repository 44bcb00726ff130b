"""`python -m train replay DIRECTORY STEP BACKEND ARGUMENT…`: one process that computes steps of a run again.

Owns which of the recorded arguments are another's here: where files go, who takes part, what else is told of the
training. All that decides what is computed stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from train import worker
from train.config import Period, RunConfig, parse


def main(argv: Sequence[str]) -> int:
    """Go on from the checkpoint in DIRECTORY, if there is one, to STEP. ARGUMENT…: as the run was given them."""
    directory, until, backend, *recorded = argv
    return worker.work(replayed(parse(recorded), directory, int(until), backend), recorded)


def replayed(config: RunConfig, directory: str, until: int, backend: str) -> RunConfig:
    """The settings of a replay in `directory`. It evaluates only where a checkpoint remembers that: by train.best."""
    return replace(
        config,
        checkpoint_dir=directory,
        checkpoint_store="",
        checkpoint_every=Period(steps=until),
        code_dir=str(Path("code").absolute()) if config.code_dir is not None else None,
        until=until,
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
