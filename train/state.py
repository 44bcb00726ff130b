"""What changes in a run, and so what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from train.selection import Selection


@dataclass
class State:
    """`step`: optimizer steps that are complete."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int
    selection: Selection
