"""The optimizer a config names, and the learning rate as a function of the step.

Owns both. The schedule keeps no state of its own, so there is none to resume.
"""

from __future__ import annotations

import math

import torch

from train.config import RunConfig
from train.lean import keep_steps_uncompiled, without_compiler
from train.workload import Workload


def build_optimizer(workload: Workload, config: RunConfig) -> torch.optim.Optimizer:
    """The workload's own optimizer if it brings one, else the one the config names."""
    if workload.optimizer is not None:
        optimizer = workload.optimizer(workload.model, config.lr)
    else:
        with without_compiler():
            optimizer = _built_in(workload, config)
    keep_steps_uncompiled(optimizer)
    return optimizer


def _built_in(workload: Workload, config: RunConfig) -> torch.optim.Optimizer:
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    decay = config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=decay)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=decay)


def lr_factor(config: RunConfig, step: int, last_step: int) -> float:
    """What the base learning rate is multiplied by at `step` (counted from 0)."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup_steps) / max(last_step - config.warmup_steps, 1)
    if config.schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))


class LearningRate:
    """Sets every parameter group's learning rate from the step."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: RunConfig, last_step: int) -> None:
        self._optimizer = optimizer
        self._config, self._last_step = config, last_step
        self._base = [group["lr"] for group in optimizer.param_groups]

    def set_for(self, step: int) -> float:
        """Returns the first group's learning rate, the one worth showing."""
        factor = lr_factor(self._config, step, self._last_step)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor
        lr: float = self._optimizer.param_groups[0]["lr"]
        return lr
