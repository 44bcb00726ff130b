"""Models that break naive gradient and buffer handling, each for a reason that its name gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from train.workload import Workload


class Points:
    def __init__(self, n: int = 64, shape: tuple[int, ...] = (8,)) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, *shape, generator=generator)
        self.y = torch.randint(0, 3, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def workload(model: nn.Module, **more: Any) -> Workload:
    more = {"dataset": Points(), "loss": cross_entropy, "eval_dataset": Points(5), **more}
    return Workload(model, **more)


def plain(context: Any) -> Workload:
    return workload(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))


def dropout(context: Any) -> Workload:
    return workload(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 3)))


def channels_last(context: Any) -> Workload:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    ).to(memory_format=torch.channels_last)
    return workload(model, dataset=Points(shape=(3, 8, 8)), eval_dataset=None)


class Functional(nn.Module):
    """A model whose forward is a function; its tensors are given by name."""

    def __init__(
        self,
        forward: Callable[[Any, torch.Tensor], torch.Tensor],
        parameters: dict[str, torch.Tensor] | None = None,
        buffers: dict[str, torch.Tensor | None] | None = None,
        persistent: bool = True,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.function = forward
        for name, value in (parameters or {}).items():
            setattr(self, name, nn.Parameter(value))
        for name, buffer in (buffers or {}).items():
            self.register_buffer(name, buffer, persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def transposed(context: Any) -> Workload:
    return workload(Functional(lambda m, x: x @ m.w.t() + m.layer(x), {"w": torch.randn(8, 3).t()}))


def one_gradient_for_two(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ (m.a.view(8, 3) + m.b.view(8, 3)) + m.layer(x)

    return workload(Functional(forward, {"a": torch.randn(24), "b": torch.randn(24)}))


def tied(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = m.layer(x + m.layer(x) @ m.layer.weight)
        return result

    return workload(Functional(forward))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.norm(self.a(x)).relu()
            return result

        result: torch.Tensor = self.b(checkpoint(inner, x, use_reentrant=False))
        return result


def batch_norm_computed_twice(context: Any) -> Workload:
    return workload(Recomputed())


def _count(m: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = m.layer(x) * (1 + 0.01 * m.n)
    return result


def changed_now_and_then(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if m.training and x[0, 0] > 1.0:
            m.n += 1
        return _count(m, x)

    return workload(Functional(forward, buffers={"n": torch.zeros(())}))


def changed_in_evaluation(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.n += 1
        return _count(m, x)

    return workload(Functional(forward, buffers={"n": torch.zeros(())}))


def not_saved(context: Any) -> Workload:
    forward = changed_in_evaluation(context).model.function
    return workload(Functional(forward, buffers={"n": torch.zeros(())}, persistent=False))


class Mixed(nn.Module):
    """A batch norm, a counter, a running maximum that only some micro-batches raise, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("highest", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
            top = x.max(0).values.double()
            if (top > 2).any():
                self.highest.copy_(torch.maximum(self.highest, top))
        result: torch.Tensor = self.layer(self.norm(x)) + self.mask.diagonal()
        return result


def mixed_buffers(context: Any) -> Workload:
    return workload(Mixed())


def replaced(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.mean = x.mean(0).detach()
        result: torch.Tensor = m.layer(x - m.mean)
        return result

    return workload(Functional(forward, buffers={"mean": torch.zeros(8)}))


def flag(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.on.fill_(True)
        result: torch.Tensor = m.layer(x)
        return result

    return workload(Functional(forward, buffers={"on": torch.zeros((), dtype=torch.bool)}))


def created_late(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if m.mean is None:
            m.mean = x.mean(0).detach()
        result: torch.Tensor = m.layer(x - m.mean)
        return result

    return workload(Functional(forward, buffers={"mean": None}))


def from_infinity(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.high.copy_(torch.maximum(m.high, x.abs().max()))
        result: torch.Tensor = m.layer(x / m.high)
        return result

    return workload(Functional(forward, buffers={"high": torch.tensor(-float("inf"))}))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.again = self.norm
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.again(self.norm(x)))
        return result


def one_module_two_names(context: Any) -> Workload:
    return workload(Twice())


def unused(context: Any, after: int) -> Workload:
    """`extra` is left out of every forward pass after this many."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.calls += int(m.training)
        y: torch.Tensor = m.layer(x)
        return y * m.extra if m.calls <= after else y

    model = Functional(forward, {"extra": torch.ones(3)})
    model.calls = 0  # type: ignore[assignment]
    return workload(model)


def branching(context: Any) -> Workload:
    """A layer is left out of some micro-batches."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = m.layer(x)
        return y + x @ m.extra if x[0, 0] > 0 else y

    return workload(Functional(forward, {"extra": torch.ones(8, 3)}))


def sparse(context: Any) -> Workload:
    return workload(nn.Sequential(nn.EmbeddingBag(10, 3, sparse=True)))


def table_that_grows(context: Any) -> Workload:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > len(m.table):
            m.table = torch.arange(x.shape[1]).float().cos()
        result: torch.Tensor = m.layer(x[:, :8] * m.table[:8])
        return result

    model = Functional(forward)
    model.table = torch.ones(0)
    return workload(model, eval_dataset=Points(4, (12,)))


def metric(context: Any, kind: str) -> Workload:
    values = {
        "vector": {"accuracy": torch.ones(2)},
        "word": {"accuracy": "good"},
    }
    return workload(plain(context).model, metrics=lambda m, b: values[kind])


def bad_on_one_rank(context: Any) -> Workload:
    def loss(model: nn.Module, batch: Any) -> Any:
        return [] if context.rank == 1 else cross_entropy(model, batch)

    return workload(plain(context).model, loss=loss)


def hundred_samples(context: Any) -> Workload:
    return workload(plain(context).model, dataset=Points(100))
