"""Workloads with parts of a user's own: a schedule, a logger, augmented data."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.train.odd_models import Points, cross_entropy, workload
from train.workload import Workload


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))


def killed_once(made: Workload, killed: str, after: int = 25) -> Workload:
    """Its process dies in the middle of a run, unless the file `killed` is there, or is not named."""
    calls: list[object] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(batch)
        if killed and len(calls) > after and not Path(killed).exists():
            Path(killed).touch()
            os._exit(1)
        return made.loss(model, batch)

    return dataclasses.replace(made, loss=loss)


def triangle(step: int, steps: int) -> float:
    return 1.0 - abs(2 * step / steps - 1)


def own_schedule(context: Any, killed: str = "") -> Workload:
    return killed_once(workload(model(), schedule=triangle), killed)


def bad_schedule(context: Any, kind: str) -> Workload:
    calls: list[int] = []

    def counting(step: int, steps: int) -> float:
        calls.append(step)
        return 1 / len(calls)

    kinds: dict[str, Callable[[int, int], Any]] = {
        "counting": counting,
        "negative": lambda step, steps: -0.5 * step,
        "none": lambda step, steps: None,
    }
    return workload(model(), schedule=kinds[kind])


def own_log(context: Any, file: str, fails_at: int = -1) -> Workload:
    def log(row: dict[str, Any]) -> None:
        if row["step"] >= fails_at >= 0:
            raise ConnectionError("the tracking server is away")
        with Path(file).open("a") as out:
            out.write(json.dumps(row) + "\n")
        row.clear()  # it is the logger's own

    return workload(model(), log=log)


class Augmented(Points):
    """Every sample is shifted, scaled and cut anew whenever it is read."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        keep = torch.tensor(np.random.rand(len(x)) > 0.2)
        return (x + torch.randn(len(x)) * 0.1) * random.uniform(0.8, 1.2) * keep, y


def augmented(context: Any, killed: str = "", after: int = 25) -> Workload:
    made = Workload(model(), Augmented(), cross_entropy, eval_dataset=Augmented(7))
    return killed_once(made, killed, after)
