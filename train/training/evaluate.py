"""Evaluation on the held-out split, exact over any number of processes.

Owns the division of the split and the order of the sums. The split is cut into batches of fixed size in fixed order,
and each rank gets a contiguous range of them. Means have one slot per batch and are added up in order. Rows, one for
each sample, are put together in order. Knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from train.base.errors import TrainError
from train.distributed.process_group import World
from train.health.phase import WAITING
from train.run.config import RunConfig
from train.run.metrics import RESERVED
from train.training import rng
from train.training.data import batch_reader, ranges, to_device
from train.workload import Dataset, Workload

Means = dict[str, float]
Rows = dict[str, torch.Tensor]


def evaluate(workload: Workload, world: World, config: RunConfig) -> dict[str, Any]:
    """Return mean loss and metrics over the whole split, weighed by samples, and the results of `finish`.

    `finish` makes numbers, or lists of numbers, from the rows. Returns {} without a split. Every rank gets the same
    result. The last batch may be smaller, but it is the same batch on any number of processes.
    """
    dataset = workload.eval_dataset
    if dataset is None:
        return {}
    batches = -(-len(dataset) // config.micro_batch_size)
    each, more = divmod(batches, world.size)
    mine = ranges([each + (r < more) for r in range(world.size)])[world.rank]
    means, rows = _measure_batches(workload, dataset, mine, world.device, config)
    found: dict[str, Any] = {**_mean(means, batches, len(dataset), world)}
    if workload.finish is not None:
        rng.set_global_for_data(rng.derive(config.seed, rng.EVAL, batches), world.device)
        found |= _finish(workload, rows, found, world)
    return found


def names(workload: Workload, device: torch.device, config: RunConfig) -> set[str] | None:
    """Return the names of the metrics, from the first batch of the split; None if `finish` fails on this batch."""
    assert workload.eval_dataset is not None
    means, rows = _measure_batches(workload, workload.eval_dataset, range(1), device, config)
    if workload.finish is None:
        return set(means[0])
    try:
        with torch.no_grad():
            return {*means[0], *workload.finish(rows[0])}
    except Exception:  # noqa: BLE001 - one class in the batch, for example; an evaluation reports real errors
        return None


def _measure_batches(
    workload: Workload, dataset: Dataset, batches: range, device: torch.device, config: RunConfig
) -> tuple[dict[int, Means], list[Rows]]:
    """Return the means and the rows of these batches; leaves the model as it was."""
    size = config.micro_batch_size
    read = batch_reader(dataset, workload.collate)
    means: dict[int, Means] = {}
    rows: list[Rows] = []
    # Restore the buffers afterwards. Otherwise the weights would depend on when evaluations take place.
    saved_buffers = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
    # Only warn of a metric's operation without a deterministic version, because it does not change the weights.
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(min(mode, 1))
    workload.model.eval()
    try:
        # Do not use inference_mode, because training could not use a tensor that the model caches here.
        with torch.no_grad():
            for n in batches:
                indices = list(range(n * size, min((n + 1) * size, len(dataset))))
                rng.set_global_for_data(rng.derive(config.seed, rng.EVAL, n), device)
                batch = to_device(read(indices), device)
                means[n], of_samples = _measure(workload, batch, len(indices))
                rows.append(of_samples)
    finally:
        torch.set_deterministic_debug_mode(mode)
        workload.model.train()
        for buffer, before in saved_buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
    return means, rows


def _measure(workload: Workload, batch: object, samples: int) -> tuple[Means, Rows]:
    """Return, for one batch, each mean times the number of samples, and the rows."""
    values = dict(workload.metrics(workload.model, batch)) if workload.metrics else {}
    means: Means = {}
    rows: Rows = {}
    for name, value in values.items():
        returned: object = value  # a user's function may return something else than annotated
        if workload.finish and isinstance(returned, torch.Tensor) and returned.dim():
            if len(returned) != samples:
                raise TrainError(
                    f"metric {name!r} has the shape {tuple(returned.shape)} for a batch of {samples}; "
                    f"give a row for each sample, [{samples}, ...], or a mean, a tensor without dimensions"
                )
            rows[name] = returned.to("cpu")
        else:
            means[name] = _scalar(name, returned) * samples
    if "loss" not in means:
        # If the metrics bring the loss along, this second forward pass is not needed.
        means["loss"] = _scalar("loss", workload.loss(workload.model, batch)) * samples
    return means, rows


def _scalar(name: str, returned: object) -> float:
    _refuse_reserved(name)
    if isinstance(returned, torch.Tensor) and returned.numel() != 1:
        raise TrainError(
            f"metric {name!r} has the shape {tuple(returned.shape)}; give its mean, or let the "
            "workload's finish() make a number of the rows of all samples"
        )
    if not isinstance(returned, (torch.Tensor, float, int)):
        raise TrainError(f"metric {name!r} is a {type(returned).__name__}, not a scalar")
    return float(returned)


def _refuse_reserved(name: str) -> None:
    if name in RESERVED:
        raise TrainError(
            f"metric {name!r}: metrics.jsonl uses {', '.join(RESERVED)} itself; choose another"
        )


def _mean(rows: dict[int, Means], batches: int, samples: int, world: World) -> Means:
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


def _finish(
    workload: Workload, own_rows: list[Rows], means: Mapping[str, float], world: World
) -> dict[str, Any]:
    """Call `finish` with all rows on rank 0, and return its result on every rank."""
    assert workload.finish is not None
    # The ranks have contiguous ranges of the split, so their rows by rank are in the split's order.
    rank_rows = [part for part in world.all_gather(_concatenate(own_rows)) if part]
    results: dict[str, Any] | None = None
    if world.rank == 0:
        with torch.no_grad():
            returned: Mapping[str, object] = workload.finish(_concatenate(rank_rows))
        if not isinstance(returned, Mapping):
            raise TrainError(f"finish returned a {type(returned).__name__}, not names with numbers")
        results = {name: _numbers(name, value) for name, value in returned.items()}
        for name in results:
            _refuse_reserved(name)
            if name in means:
                raise TrainError(
                    f"metric {name!r} comes from metrics and from finish; name one of them otherwise"
                )
    result: dict[str, Any] = world.all_gather(results)[0]
    return result


def _concatenate(batches: list[Rows]) -> Rows:
    names = list(batches[0]) if batches else []
    shapes = [{name: tuple(rows.shape[1:]) for name, rows in batch.items()} for batch in batches]
    for shape in shapes:
        if shape != shapes[0]:
            raise TrainError(
                f"metrics returned rows of other names or shapes for another batch: {shapes[0]}, then "
                f"{shape}; they have to fit together (fill up to a fixed length, for one)"
            )
    return {name: torch.cat([batch[name] for batch in batches]) for name in names}


def _numbers(name: str, value: object) -> Any:
    """Return the value as a number or as lists of numbers, for JSON. Raises TrainError."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_numbers(name, each) for each in value]
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TrainError(
            f"metric {name!r}: finish returned a {type(value).__name__}, not a number or a list of them"
        ) from None
