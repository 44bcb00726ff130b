"""`python -m train run --probe`: a worker that measures instead of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from train import worker
from train.distributed import nccl
from train.run.config import RunConfig
from train.training.run_info import RunInfo


def work(config: RunConfig, argv: Sequence[str]) -> int:
    """Run one worker and return its exit code."""
    directory = Path(config.checkpoint_dir).absolute()
    nccl.log_to_file(os.environ, int(os.environ.get("RANK", "0")), directory)
    return worker.work(config, argv, _load)


def _load() -> Callable[[RunInfo], int]:
    from train.tools.probe import measure

    return measure.run
