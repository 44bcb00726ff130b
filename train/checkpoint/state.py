"""The state that changes in a run, and so the content of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from train.checkpoint.selection import Selection
from train.distributed.sharding import ShardedOptimizer


@dataclass
class State:
    """All that a step changes.

    `optimizers`: one, or several of a workload, which step together. `step`: the number of complete optimizer steps.
    """

    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    scaler: torch.amp.GradScaler
    step: int
    selection: Selection

    @property
    def shards(self) -> list[ShardedOptimizer]:
        """The optimizers whose state is spread over the ranks (train.shard)."""
        optimizers: tuple[object, ...] = self.optimizers
        return [each for each in optimizers if isinstance(each, ShardedOptimizer)]

    def settle(self) -> None:
        """Wait for the parameters that other ranks have updated. Call it before you read parameters after a step."""
        for optimizer in self.shards:
            optimizer.settle()

    def collect(self) -> None:
        """Bring the optimizers' state to rank 0, and wait for the parameters. All ranks call it before a checkpoint."""
        for optimizer in self.shards:
            optimizer.collect()
