"""The training loop, read from the top down: train(), train_step(), and what a step is made of.

Owns the order of things within a step. Calls no os.environ, no signal handler and no file: what it
learns comes in as values, what it has to say goes to a `Watcher`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

from train import rng
from train.config import RunConfig
from train.control import Control, Decision
from train.data import BatchPlan, to_device
from train.errors import TrainError
from train.health.phase import (
    BACKWARD,
    BUFFERS,
    DATA,
    EXCHANGE,
    FORWARD,
    NOW,
    RECORDS,
    SNAPSHOT,
    UPDATE,
    WAITING,
)
from train.optim import LearningRate
from train.parallel.buffers import Buffers
from train.parallel.gradients import Gradients
from train.parallel.process_group import World
from train.workload import Workload


@dataclass(frozen=True)
class Job:
    """What does not change during a run. `mine`: the micro-batches of a step that are this rank's."""

    config: RunConfig
    workload: Workload
    world: World
    plan: BatchPlan
    mine: range
    last_step: int
    learning_rate: LearningRate
    autocast: Callable[[], AbstractContextManager[Any]]


@dataclass
class State:
    """What changes, and so what a checkpoint holds. `step`: optimizer steps that are complete."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int


@dataclass(frozen=True)
class Machinery:
    """What carries a step out."""

    gradients: Gradients
    buffers: Buffers | None
    control: Control
    gradient_weights: dict[torch.dtype, torch.Tensor]


class Outcome(Enum):
    """How the training came to an end."""

    DONE = "done"
    STOPPED = "stopped"
    LEFT = "left"
    """The processes part to meet again as another world; the job goes on."""


class Watcher(Protocol):
    """Who is told how the run goes, and may ask it to end before its time."""

    def stop_requested(self) -> bool:
        """Is the job to stop? One rank's wish is enough, and goes before any wish to leave."""

    def leave_requested(self) -> bool:
        """Is this world about to change? One rank's wish is enough."""

    def state_may_change(self) -> None:
        """Called before the optimizer step; returns when nobody is copying the state any more."""

    def stepped(self, state: State, loss: float, lr: float) -> None:
        """`state.step` steps are complete, the last of them with this mean loss."""


def train(
    job: Job, state: State, machinery: Machinery, batches: Iterator[Any], watcher: Watcher
) -> Outcome:
    """Train until `job.last_step`, or until the ranks agree to stop or to leave."""
    machinery.gradients.ddp.train()
    while state.step < job.last_step:
        lr = job.learning_rate.set_for(state.step)
        decision = train_step(job, state, machinery, batches, watcher)
        state.step += 1
        NOW.name = RECORDS
        watcher.stepped(state, decision.loss, lr)
        if (decision.stop or decision.leave) and state.step < job.last_step:
            return Outcome.STOPPED if decision.stop else Outcome.LEFT
    return Outcome.DONE


def train_step(
    job: Job, state: State, machinery: Machinery, batches: Iterator[Any], watcher: Watcher
) -> Decision:
    """One optimizer step: this rank's micro-batches, the reduction, the update."""
    machinery.gradients.begin()
    buffers = machinery.buffers
    if buffers is not None:
        buffers.begin()
    losses: list[torch.Tensor] = []
    for v in job.mine:
        last = v == job.mine[-1]
        with nullcontext() if last else machinery.gradients.ddp.no_sync():
            NOW.name = DATA
            batch = next(batches)
            NOW.name = FORWARD
            loss = _forward(job, state, machinery, v, batch)
            losses.append(loss.detach())
            if buffers is not None:
                # Now, as a forward pass repeated for its activations writes to them once more.
                buffers.take(last)
            if last:
                changed = buffers.changed() if buffers is not None else []
                stop, leave = watcher.stop_requested(), watcher.leave_requested()
                NOW.name = EXCHANGE
                machinery.control.ask(losses, stop, leave, changed)
            NOW.name = BACKWARD
            _backward(state, machinery, loss)
        if not last:
            machinery.gradients.keep()
    _check_complete(machinery.gradients, state.step)
    NOW.name = SNAPSHOT
    watcher.state_may_change()
    NOW.name = UPDATE
    _update(job.config, state)
    NOW.name = EXCHANGE
    with WAITING:
        decision = machinery.control.answer()
    if buffers is not None:
        NOW.name = BUFFERS
        with WAITING:
            buffers.combine(decision.changed_buffers)
    return decision


def _check_complete(gradients: Gradients, step: int) -> None:
    """DDP itself complains one forward pass later, when the wrong update is done and saved."""
    missing = gradients.missing()
    if missing:
        raise TrainError(
            f"{', '.join(missing[:5])} got no gradient in step {step + 1}, so it was not reduced; set "
            "train.find_unused_parameters: true if the model leaves parameters out now and then, or "
            "freeze them (requires_grad_(False)) if it never uses them"
        )


def _forward(job: Job, state: State, machinery: Machinery, v: int, batch: Any) -> torch.Tensor:
    batch = to_device(batch, job.world.device)
    if machinery.buffers is not None:
        machinery.buffers.restore()
    rng.set_global(rng.derive(job.config.seed, rng.MODEL, state.step, v), job.world.device)
    with job.autocast():
        loss = job.workload.loss(machinery.gradients.ddp, batch)
    returned: object = loss  # what a user's function is annotated with is not what it returns
    if not isinstance(returned, torch.Tensor) or returned.numel() != 1:
        shape = getattr(returned, "shape", None)
        got = type(returned).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
        raise TrainError(f"the workload's loss returned {got}; it has to be a scalar tensor")
    return loss


def _backward(state: State, machinery: Machinery, loss: torch.Tensor) -> None:
    scaled = state.scaler.scale(loss)
    weights = machinery.gradient_weights
    if scaled.dtype not in weights:
        weight = machinery.gradients.weight
        weights[scaled.dtype] = torch.tensor(weight, dtype=scaled.dtype, device=scaled.device)
    # backward(weight) gives the same gradients, and has torch import sympy first: half a second.
    (scaled * weights[scaled.dtype]).backward()


def _update(config: RunConfig, state: State) -> None:
    """Clipping and scaling see the reduced gradients, so every rank computes identical values."""
    if config.grad_clip is not None:
        state.scaler.unscale_(state.optimizer)
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), config.grad_clip)
    state.scaler.step(state.optimizer)
    state.scaler.update()
