"""Workloads for train.shard: an optimizer of every class, and models that are hard to share out."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import threading
import time
from typing import Any

import torch
from torch import nn

from tests.train import moving
from tests.train.odd_models import Functional, plain, workload
from train.distributed.sharding import Gather
from train.workload import Workload

# Arguments with which an optimizer keeps all the state that it can keep.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1},
    "Adadelta": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {"t0": 2},
    "Adafactor": {},
    "Muon": {},
}


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def optimizer(name: str, model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    """One of torch's, with two groups that have rates of their own."""
    kind, arguments = getattr(torch.optim, name), ARGUMENTS.get(name, {})
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    if name == "Muon":  # takes matrices only
        vectors, matrices = matrices[:1], matrices[1:]
    made: torch.optim.Optimizer = kind(
        [{"params": vectors, "lr": 2 * lr}, {"params": matrices}], lr=lr, **arguments
    )
    return made


def tied_and_frozen(context: Any) -> Workload:
    """A layer that is used twice, one that is frozen, and parameters in the same memory."""
    first, second, last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    second.bias.data = first.bias.data
    last.bias.data = second.weight.data[0, 1:4]
    first.weight.requires_grad_(False)
    return workload(
        nn.Sequential(first, second, nn.Tanh(), second, last),
        optimizer=lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr),
    )


def overflowing(context: Any) -> Workload:
    """The first gradients of one parameter, which one rank has, are infinite under the gradient scaler."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        return m.layer(x), 8e33 * m.w.sum()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores, huge = model(batch[0])
        return nn.functional.cross_entropy(scores.float(), batch[1]) + huge

    return workload(Functional(forward, {"w": torch.zeros(3)}), loss=loss, eval_dataset=None)


def reads_weights_in_log(context: Any) -> Workload:
    """Its log prints the sum of the weights. The exchange of the parameters takes longer than the log."""

    def slow(self: Gather, of_ranks: Any) -> None:
        time.sleep(0.1)
        unpatched(self, of_ranks)

    unpatched = Gather._run
    Gather._run = slow  # type: ignore[method-assign]
    made = plain(context)

    def log(row: dict[str, Any]) -> None:
        total = sum(p.sum().item() for p in made.model.parameters())
        print(f"weights after step {row['step']}: {total}")

    return dataclasses.replace(made, log=log)


def killed(context: Any) -> Workload:
    """Batch norm and dropout, with shares that change. With KILL_SEED, a rank dies in any moment of its first steps."""
    made, seed = moving.batch_norm_and_dropout(context), os.environ.get("KILL_SEED")
    chance = random.Random(seed)
    victim, left = chance.randrange(context.world_size), 1 + chance.randrange(30)
    after_s, calls = chance.uniform(0, 0.02), 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if seed is not None and context.rank == victim and calls == left:
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        result: torch.Tensor = made.loss(model, batch)
        return result

    return workload(made.model, loss=loss)
