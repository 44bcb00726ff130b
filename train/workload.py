"""The protocol that a model is written against: `Workload`, and the `Context` that it is built in.

Knows nothing of steps, checkpoints or reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class Dataset(Protocol):
    """Map-style data: `len(dataset)` samples, `dataset[i]` for 0 <= i < len.

    If a dataset has `batch(indices: list[int]) -> batch`, only this method is called, and neither `[i]` nor collate.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def _alone(key: str, action: Callable[[], None], timeout_s: float) -> None:
    action()


@dataclass(frozen=True)
class Context:
    """The process in which a workload is built.

    Use `rank` and `world_size` for logging and for placing files, not for seeding. A model or dataset that depends on
    them gives other weights on another number of processes.

    `once_per_node(key, action, timeout_s)` runs `action` in one process of each node while the node's
    others wait for it. It raises TrainError on every process of the node when the action failed or did
    not end within `timeout_s` seconds.
    """

    seed: int
    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    micro_batch_size: int
    once_per_node: Callable[[str, Callable[[], None], float], None] = _alone


@dataclass
class Workload:
    """A model, its data and its loss.

    `loss(model, batch)` returns a scalar tensor, the mean over the micro-batch. It must call `model`, and not reach
    into the attributes of `model`, because DDP wraps the model.

    `metrics(model, batch)` returns scalars, each a mean over the micro-batch; the evaluation weighs them by samples.
    The loss itself is always evaluated. `finish(rows)` serves metrics that are not a mean over batches. With it,
    `metrics` may also return tensors [samples, ...]. `finish` receives these for the whole split, in the split's
    order, and returns numbers or lists of numbers.

    `optimizer(model, lr)` returns an optimizer, or a list of optimizers that step together. It replaces the optimizer
    that the spec names. `schedule(step, steps)` replaces the spec's schedule and warm-up. It returns the factor of the
    learning rate in step `step` of `steps`, counted from 0, and must depend only on these two numbers.

    `log(row)` is called on rank 0 with each row of metrics.jsonl. Throughput is counted in `unit`; a sample counts as
    `units_per_sample` units. `data_files` lists the paths of the files that were read. `fingerprint` is any text that
    differs for different data. Both go into manifest.json.
    """

    model: nn.Module
    dataset: Dataset
    loss: Callable[[nn.Module, Any], torch.Tensor]
    eval_dataset: Dataset | None = None
    metrics: Callable[[nn.Module, Any], Mapping[str, torch.Tensor]] | None = None
    finish: Callable[[dict[str, torch.Tensor]], Mapping[str, Any]] | None = None
    optimizer: (
        Callable[[nn.Module, float], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]] | None
    ) = None
    schedule: Callable[[int, int], float] | None = None
    log: Callable[[dict[str, Any]], None] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    unit: str = "samples"
    units_per_sample: int = 1
    data_files: Sequence[str] = ()
    fingerprint: str = ""
