"""What changes in a run, and so what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from train.checkpoint.selection import Selection


@dataclass
class State:
    """`optimizers`: one, or those of a workload that brings several, which step together. `step`: optimizer steps
    that are complete."""

    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    scaler: torch.amp.GradScaler
    step: int
    selection: Selection
