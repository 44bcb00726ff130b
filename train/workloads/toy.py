"""A small classifier on synthetic data: the workload that needs no file, no network and no time.

Owns the data (a function of only the seed) and the two-layer model. Knows nothing of processes.
"""

from __future__ import annotations

import torch
from torch import nn

from train.workload import Context, Workload
from train.workloads import arguments
from train.workloads.labelled import Labelled, loss, metrics

CLUSTERS_PER_CLASS = 2  # two, so that no linear model solves it and the hidden layer is needed


def build(
    context: Context,
    *,
    features: int = 16,
    classes: int = 4,
    hidden: int = 64,
    samples: int = 4096,
    eval_samples: int = 512,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Workload:
    """Classify points of `features` dimensions, drawn around two centres for each class.

    Raises TrainError for an argument out of its range.
    """
    arguments.whole_number("features", features)
    arguments.whole_number("classes", classes, at_least=2)
    arguments.whole_number("hidden", hidden)
    arguments.whole_number("samples", samples)
    arguments.whole_number("eval_samples", eval_samples)
    arguments.probability("dropout", dropout)
    arguments.flag("batch_norm", batch_norm)

    generator = torch.Generator().manual_seed(context.seed)
    centres = torch.randint(
        -256, 257, (classes * CLUSTERS_PER_CLASS, features), generator=generator
    )
    return Workload(
        model=Classifier(features, classes, hidden, dropout, batch_norm),
        dataset=draw(samples, centres, classes, generator),
        eval_dataset=draw(eval_samples, centres, classes, generator),
        loss=loss,
        metrics=metrics,
    )


def draw(count: int, centres: torch.Tensor, classes: int, generator: torch.Generator) -> Labelled:
    """Draw `count` points around `centres` [clusters, features]. Cluster k has the class k mod `classes`.

    Draws and adds only integers, and scales once, by a power of two. `randn` would use log and cos, whose last bits
    differ between processors.
    """
    clusters = torch.randint(0, len(centres), (count,), generator=generator)
    values = centres[clusters]
    for _ in range(4):  # the sum of four uniform numbers is close enough to a bell curve
        values += torch.randint(-128, 129, values.shape, generator=generator)
    return Labelled(values.float() / 256, clusters % classes)


class Classifier(nn.Module):
    """[b, features] -> logits [b, classes], with one hidden layer."""

    def __init__(
        self, features: int, classes: int, hidden: int, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden),
            nn.BatchNorm1d(hidden) if batch_norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(points)
        return logits
