"""The optimizers, named by the config or brought by a workload, and the learning rate as a function of the step.

Owns both. The schedule keeps no state of its own, so a resume has nothing to restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from train.base.errors import TrainError
from train.distributed.lean import keep_steps_uncompiled, without_compiler
from train.distributed.process_group import World
from train.distributed.sharding import shard
from train.run.config import RunConfig
from train.run.portable import PORTABLE
from train.workload import Workload

# The part of torch.optim.Optimizer that a run uses.
_PROTOCOL = ("step", "param_groups", "state_dict", "load_state_dict")


def build_optimizers(
    workload: Workload, config: RunConfig, world: World, directory: Path
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the workload's own optimizers if it brings any, else the one that the config names.

    `directory`: the checkpoint directory. Raises TrainError if the workload returns no usable optimizer.
    """
    if workload.optimizer is not None:
        optimizers = _checked_optimizers(workload.optimizer(workload.model, config.lr))
    else:
        with without_compiler():
            optimizers = (_built_in(workload, config),)
    for optimizer in optimizers:
        keep_steps_uncompiled(optimizer)
    return shard(optimizers, world, directory) if config.shard == "optimizer" else optimizers


def _checked_optimizers(returned: Any) -> tuple[torch.optim.Optimizer, ...]:
    optimizers = tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)
    odd = [
        type(optimizer).__name__
        for optimizer in optimizers
        if not all(hasattr(optimizer, n) for n in _PROTOCOL)
    ]
    if odd or not optimizers:
        what = odd[0] if odd else f"{type(returned).__name__} with nothing in it"
        raise TrainError(
            f"the workload's optimizer(model, lr) returned a {what}; return a torch.optim.Optimizer, or a "
            "list of them that step together (docs/workloads.md, Several optimizers)"
        )
    return optimizers


def _built_in(workload: Workload, config: RunConfig) -> torch.optim.Optimizer:
    parameters = [p for p in workload.model.parameters() if p.requires_grad]
    decay = config.weight_decay
    # torch.sqrt uses MKL, whose square root depends on the processor's maker. The fused update has its own square root.
    fused = True if config.determinism == PORTABLE else None
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=decay, fused=fused)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=decay, fused=fused)
    return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=decay)


def lr_factor(config: RunConfig, step: int, last_step: int) -> float:
    """Return the factor of the base learning rate at `step` (counted from 0)."""
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

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        config: RunConfig,
        last_step: int,
        schedule: Callable[[int, int], float] | None = None,
    ) -> None:
        """`schedule`: the workload's schedule. Raises TrainError when it gives no usable factor."""
        self._optimizers = optimizers
        self._config, self._last_step, self._schedule = config, last_step, schedule
        self._base = [group["lr"] for group in self._groups()]
        if schedule is not None:
            self._check_schedule()

    def set_for(self, step: int) -> float:
        """Set the learning rates for `step`, and return the first group's, to show it."""
        factor = self._factor(step)
        for group, base in zip(self._groups(), self._base, strict=True):
            group["lr"] = base * factor
        lr: float = next(self._groups())["lr"]
        return lr

    def _groups(self) -> Iterator[dict[str, Any]]:
        # Read the groups each time, because load_state_dict replaces them.
        return chain.from_iterable(each.param_groups for each in self._optimizers)

    def _factor(self, step: int) -> float:
        if self._schedule is None:
            return lr_factor(self._config, step, self._last_step)
        returned: object = self._schedule(step, self._last_step)
        try:
            factor = float(returned)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            factor = math.nan
        if not 0 <= factor < math.inf:
            raise TrainError(
                f"the workload's schedule({step}, {self._last_step}) returned {returned!r}; it has to "
                "be what the learning rate is multiplied by: a number from 0 on"
            )
        return factor

    def _check_schedule(self) -> None:
        if self._config.schedule != "constant" or self._config.warmup_steps:
            raise TrainError(
                "the workload brings a schedule of its own; take train.schedule and "
                "train.warmup_steps out of the spec, or the schedule out of the workload"
            )
        first = self._factor(0)
        self._factor(max(self._last_step - 1, 0))
        if self._factor(0) != first:
            raise TrainError(
                "the workload's schedule returned another number for step 0 when it was called again; "
                "compute it from step and steps alone, or a resumed run would not be the undisturbed one"
            )
