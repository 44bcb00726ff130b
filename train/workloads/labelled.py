"""The parts that the classifiers `toy` and `mnist` share: samples with labels, the loss, and the accuracy."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]


class Labelled:
    """Samples held as two tensors: values [n, ...], labels int64 [n]."""

    def __init__(self, values: torch.Tensor, labels: torch.Tensor) -> None:
        self.values, self.labels = values, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.values[index], self.labels[index]

    def batch(self, indices: list[int]) -> Batch:
        """Return the samples at `indices`, gathered by one index operation for each tensor."""
        rows = torch.tensor(indices)
        return self.values[rows], self.labels[rows]


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy of the micro-batch, in nats."""
    values, labels = batch
    return functional.cross_entropy(model(values), labels)


def metrics(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """Return `accuracy`, the part of samples (0 to 1) with the correct class, and the loss, both from one pass."""
    values, labels = batch
    logits = model(values)
    return {
        "loss": functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(dim=1) == labels).float().mean(),
    }
