"""Workloads whose micro-batches move: to other ranks at every step, or away from a slow rank."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tests.train import own_parts
from tests.train.odd_models import workload
from train.training.shares import Shares
from train.workload import Workload
from train.workloads import gpt as built_in


def at_every_step() -> None:
    """Let the shares of this process change at random wherever they may change, on all ranks alike."""

    def stepped(self: Shares, step: int, rank_times: Sequence[Sequence[float]]) -> bool:
        if self.balances and self._next is None:
            micro_batches, size = sum(self.counts), len(self.counts)
            cuts = sorted(random.Random(step).sample(range(1, micro_batches), size - 1))
            ends = zip([0, *cuts], [*cuts, micro_batches], strict=True)
            self.change(step, [end - first for first, end in ends])
        return unpatched(self, step, [])

    unpatched = Shares.stepped
    Shares.stepped = stepped  # type: ignore[method-assign]


def gpt(context: Any, **arguments: Any) -> Workload:
    at_every_step()
    return built_in.build(context, **arguments)


def impure(context: Any) -> Workload:
    at_every_step()
    return own_parts.impure(context, "rank")


def batch_norm_and_dropout(context: Any) -> Workload:
    at_every_step()
    layers = (nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))
    return workload(nn.Sequential(*layers))


def slow(context: Any, file: str, until: int, micro_batch_s: float = 0.015) -> Workload:
    """Each micro-batch takes as long on every rank, and twice as long on rank 0 while `file` is there: to step `until`."""

    def loss(model: nn.Module, batch: Any) -> Any:
        throttled = context.rank == 0 and Path(file).exists()
        time.sleep(micro_batch_s * (1 + throttled))
        return made.loss(model, batch)

    def log(row: dict[str, Any]) -> None:
        if row["kind"] == "step" and row["step"] == until:
            Path(file).unlink(missing_ok=True)

    made = workload(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    return dataclasses.replace(made, loss=loss, log=log)
