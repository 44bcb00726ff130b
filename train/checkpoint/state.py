"""The state that changes in a run, and so the content of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from train.checkpoint.selection import Selection


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
