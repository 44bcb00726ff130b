"""Evaluation on the held-out split, exact over any number of processes.

Owns the division of the split and the order of the sums: batches of fixed size in fixed order, a
contiguous range of them to each rank, one slot per batch, added up in order. Knows nothing of
training.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from train import rng
from train.config import RunConfig
from train.data import batch_reader, ranges, to_device
from train.errors import TrainError
from train.health.phase import WAITING
from train.parallel.process_group import World
from train.workload import Workload

RESERVED = ("kind", "step", "attempt", "generation", "time")


def evaluate(workload: Workload, world: World, config: RunConfig) -> dict[str, float]:
    """Mean loss and metrics over the whole split, weighed by samples. Empty without a split.

    Every rank gets the same numbers. The last batch may be smaller: it is the same one everywhere.
    """
    dataset = workload.eval_dataset
    if dataset is None:
        return {}
    size = config.micro_batch_size
    batches = -(-len(dataset) // size)
    each, more = divmod(batches, world.size)
    mine = ranges([each + (r < more) for r in range(world.size)])[world.rank]
    read = batch_reader(dataset, workload.collate)
    rows: dict[int, dict[str, float]] = {}
    # What an evaluation writes to buffers would make the weights depend on when one takes place.
    kept = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
    workload.model.eval()
    try:
        # Not inference_mode: a table that a model keeps for later would be of no use in training.
        with torch.no_grad():
            for n in mine:
                indices = list(range(n * size, min((n + 1) * size, len(dataset))))
                rng.set_global_for_data(rng.derive(config.seed, rng.EVAL, n), world.device)
                batch = to_device(read(indices), world.device)
                rows[n] = _measure(workload, batch, len(indices))
    finally:
        workload.model.train()
        for buffer, before in kept:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
    return _mean(rows, batches, len(dataset), world)


def _measure(workload: Workload, batch: object, samples: int) -> dict[str, float]:
    values = dict(workload.metrics(workload.model, batch)) if workload.metrics else {}
    if "loss" not in values:
        # Metrics that bring the loss along save a second forward pass.
        values["loss"] = workload.loss(workload.model, batch)
    measured = {}
    for name, value in values.items():
        if name in RESERVED:
            raise TrainError(
                f"metric {name!r}: metrics.jsonl uses {', '.join(RESERVED)} itself; choose another"
            )
        returned: object = value  # what a user's function is annotated with is not what it returns
        if isinstance(returned, torch.Tensor) and returned.numel() != 1:
            raise TrainError(
                f"metric {name!r} has the shape {tuple(returned.shape)}; give its mean"
            )
        if not isinstance(returned, (torch.Tensor, float, int)):
            raise TrainError(f"metric {name!r} is a {type(returned).__name__}, not a scalar")
        measured[name] = float(returned) * samples
    return measured


def _mean(
    rows: dict[int, dict[str, float]], batches: int, samples: int, world: World
) -> dict[str, float]:
    # A rank may have no batch at all, so the names come from the first rank that has one.
    names = next(
        n for n in world.all_gather(sorted({k for row in rows.values() for k in row})) if n
    )
    table = torch.zeros(batches, len(names), dtype=torch.float64)
    for n, row in rows.items():
        table[n] = torch.tensor([row[name] for name in names], dtype=torch.float64)
    if world.size > 1:
        with WAITING:
            dist.all_reduce(table, group=world.control)
    totals = [sum(column) for column in table.T.tolist()]
    return {name: total / samples for name, total in zip(names, totals, strict=True)}
