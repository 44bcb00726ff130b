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

    One with `batch(indices: list[int]) -> batch` is read by that alone, and needs neither `[i]` nor collate.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def _alone(key: str, action: Callable[[], None], timeout_s: float) -> None:
    action()


@dataclass(frozen=True)
class Context:
    """Where a workload is being built.

    A model or dataset that depends on `rank` or `world_size` gives other weights on another number
    of processes; they are here for logging and for placing files, not for seeding.

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

    `loss(model, batch)` returns a scalar tensor, the mean over the micro-batch; `model` is to be
    called, not reached into. `metrics(model, batch)` returns scalars, each a mean over the
    micro-batch, weighed by samples at evaluation; the loss itself is always evaluated. For what is no
    mean of batches there is `finish(rows)`: with it, `metrics` may also return tensors [samples, ...],
    and `finish` makes numbers (or lists of them) of those of the whole split, in the split's order.
    `optimizer(model, lr)` replaces the one named in the spec, by one or by a list of them that step together.
    `schedule(step, steps)` replaces the
    spec's schedule and warm-up: what the learning rate is multiplied by in step `step` of `steps`, from
    0, by nothing but these two. `log(row)` is called on rank 0 with each row of metrics.jsonl. `unit`
    and `units_per_sample` are what throughput is counted in. `data_files` are the paths of what was read,
    `fingerprint` any text that is another one for other data: both go into manifest.json.
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
