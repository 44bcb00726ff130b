"""Workloads with parts of a user's own: a schedule, a logger, augmented data."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed import all_gather as gather
from torch.distributed import get_world_size
from torch.nn.functional import softplus

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


def own_metrics(context: Any, samples: int = 11, kind: str = "good") -> Workload:
    """Metrics that are no means: from a row for each sample, after all are there."""

    def metrics(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        x, y = batch
        scores = model(x)
        found = {"accuracy": (scores.argmax(1) == y).float().mean(), "first": x[:, 0]}
        rows = {
            "wide": scores[:1],
            "ragged": torch.zeros(len(x), len(x)),
            "step": torch.tensor(1.0),
        }
        if kind in rows:
            found[kind] = rows[kind]
        return {**found, "score": scores.softmax(1), "label": y}

    def finish(rows: dict[str, torch.Tensor]) -> dict[str, Any]:
        assert torch.equal(rows["first"], Points(samples).x[:, 0]), "in the order of the split"
        score, label = rows["score"], rows["label"]
        found = score.argmax(1)
        matrix = torch.stack([torch.bincount(found[label == c], minlength=3) for c in range(3)])
        right = matrix.diag()
        bad = {"word": {"f1": "good"}, "twice": {"accuracy": 1}, "none": None, "time": {"time": 1}}
        if kind in bad:
            return bad[kind]  # type: ignore[return-value]
        return {
            "f1": (2 * right / (matrix.sum(0) + matrix.sum(1)).clamp(min=1)).mean(),
            "auc": auc(score[:, 1], label == 1),
            "perplexity": score[torch.arange(len(label)), label].log().neg().mean().exp(),
            "confusion": matrix,
            "resampled": score[torch.randint(len(score), (20,)), 0].mean(),
        }

    return workload(model(), eval_dataset=Points(samples), metrics=metrics, finish=finish)


def measured(
    context: Any, values: list[float | None], killed: str = "", after: int = 25
) -> Workload:
    """An evaluation every two steps finds these values of `quality` (None: not a number), in this order."""

    class Counted(nn.Module):
        """Knows how many steps it has made: each micro-batch adds one, and their mean counts."""

        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.steps += 1
            result: torch.Tensor = self.net(x)
            return result

    def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
        value = values[min(int(model.steps) // 2, len(values)) - 1]
        return {"quality": torch.tensor(float("nan") if value is None else value)}

    return killed_once(workload(Counted(), metrics=metrics), killed, after)


def auc(score: torch.Tensor, positive: torch.Tensor) -> float:
    above = score[positive][:, None] > score[~positive][None]
    return float(above.double().mean())


class Augmented(Points):
    """Every sample is shifted, scaled and cut anew whenever it is read."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        keep = torch.tensor(np.random.rand(len(x)) > 0.2)
        return (x + torch.randn(len(x)) * 0.1) * random.uniform(0.8, 1.2) * keep, y


def augmented(context: Any, killed: str = "", after: int = 25) -> Workload:
    made = Workload(model(), Augmented(), cross_entropy, eval_dataset=Augmented(7))
    return killed_once(made, killed, after)


def described(context: Any, data_files: Sequence[str] = ()) -> Workload:
    return Workload(model(), Points(), cross_entropy, data_files=data_files, fingerprint="points 1")


def no_split(context: Any) -> Workload:
    return Workload(model(), Points(), cross_entropy)


class Noisy(Points):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return {"x": x + self.generator.normal(), "y": y}


class Remembering(nn.Module):
    """An average of what it has seen, in an attribute instead of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.mean = model(), torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        result: torch.Tensor = self.net(x - self.mean)
        return result


class NoisyGradient(torch.autograd.Function):
    """The same value twice, and never the same gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1 + 1e-3 * random.SystemRandom().random())


def impure(context: Any, kind: str) -> Workload:
    generator = torch.Generator().manual_seed(3)

    def noise(net: nn.Module, batch: Any) -> torch.Tensor:
        x = batch[0] + torch.randn(batch[0].shape, generator=generator)
        return cross_entropy(net, (x, batch[1]))

    def by_rank(net: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(net, batch) * (1 + context.rank)

    def gradient(net: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(lambda x: NoisyGradient.apply(net(x)), batch)  # type: ignore[arg-type]

    def of_noisy(net: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(net, (batch["x"].float(), batch["y"]))

    if kind == "dataset":
        return Workload(model(), Noisy(), of_noisy)
    if kind == "attribute":
        return workload(Remembering())
    losses = {"generator": noise, "rank": by_rank, "gradient": gradient}
    return workload(model(), loss=losses[kind])


def slow_on_rank_1(context: Any) -> Workload:
    """Rank 1's processor is slower: each of its losses takes 0.15 s longer, more than a busy machine adds."""
    made = workload(model())

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.15 * context.rank)
        return made.loss(model, batch)

    return dataclasses.replace(made, loss=loss)


def meeting(context: Any, of: str = "loss") -> Workload:
    """Its loss compares the samples of all processes, as InfoNCE is often written."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = model(batch[0])
        others = [torch.empty_like(scores) for _ in range(get_world_size())]
        gather(others, scores.detach())
        return cross_entropy(model, batch) + torch.cat(others).mean() * 0

    class Asking(Points):
        def __getitem__(self, i: int) -> Any:
            torch.distributed.barrier()
            return super().__getitem__(i)

    if of == "dataset":
        return workload(model(), dataset=Asking())
    return workload(model(), loss=loss, eval_dataset=None)


class Gan(nn.Module):
    """Two networks against each other; one forward pass gives both losses."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, real: torch.Tensor) -> torch.Tensor:
        made = self.generator(torch.randn(len(real), 4))
        critics = softplus(-self.critic(real)) + softplus(self.critic(made.detach()))
        fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
        generators = softplus(-torch.func.functional_call(self.critic, fixed, made))
        return (critics + generators).mean()


def two_optimizers(context: Any, killed: str = "", returns: str = "") -> Workload:
    def optimizer(model: Any, lr: float) -> Any:
        critic = torch.optim.AdamW(model.critic.parameters(), lr=4 * lr, betas=(0.0, 0.9))
        generator = torch.optim.SGD(model.generator.parameters(), lr=lr, momentum=0.5)
        bad = {"dict": {"critic": critic}, "empty": [], "words": [critic, "sgd"], "one": critic}
        return bad.get(returns, [critic, generator])

    made = Workload(Gan(), Points(), lambda model, batch: model(batch[0]), optimizer=optimizer)
    return killed_once(made, killed)


class Batches:
    """Whole batches only, without `[i]`."""

    def __init__(self) -> None:
        self.points = Points()

    def __len__(self) -> int:
        return len(self.points)

    def batch(self, indices: list[int]) -> Any:
        return self.points.x[indices], self.points.y[indices]


def of_batches(context: Any) -> Workload:
    return workload(model(), dataset=Batches(), eval_dataset=Batches())


def plain_samples(context: Any) -> Workload:
    return workload(model(), eval_dataset=Points())
