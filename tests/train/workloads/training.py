"""The shortest training loop that shows whether a workload can be learnt at all."""

from __future__ import annotations

import torch

from train.workload import Workload


def train(workload: Workload, steps: int, lr: float, batch_size: int = 32) -> dict[str, float]:
    """Train in this process; return the held-out metrics, and the loss, over the whole set."""
    if workload.optimizer is not None:
        optimizer = workload.optimizer(workload.model, lr)
    else:
        optimizer = torch.optim.AdamW(workload.model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        indices = torch.randint(len(workload.dataset), (batch_size,), generator=order)
        optimizer.zero_grad()
        workload.loss(
            workload.model, batch_of(workload, workload.dataset, indices.tolist())
        ).backward()
        optimizer.step()
    held_out = workload.eval_dataset
    workload.model.eval()
    with torch.no_grad():
        batch = batch_of(workload, held_out, list(range(len(held_out))))
        found = workload.metrics(workload.model, batch)
        loss = workload.loss(workload.model, batch)
    if workload.finish is not None:
        rows = {name: found.pop(name) for name in list(found) if found[name].dim()}
        found |= workload.finish(rows)
    return {"loss": float(loss)} | {name: float(value) for name, value in found.items()}


def batch_of(workload: Workload, dataset, indices: list[int]):
    """What the loop of `train` hands to the loss: the fast path where there is one."""
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    return workload.collate([dataset[i] for i in indices])
