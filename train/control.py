"""One small reduction a step: the losses, and every decision the ranks have to take together.

Owns what is in it. Each slot has at most one rank that writes a number other than zero (or is a
plain count), so the sums are exact whatever order they are added in. It is launched before the last
backward pass and read after the optimizer step: its latency hides behind the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from train.dist import World


@dataclass(frozen=True)
class Decision:
    """What all ranks know after a step. `loss`: the mean over the step's micro-batches."""

    loss: float
    stop: bool
    changed_buffers: list[float]


class Control:
    """The reduction of one step after another."""

    def __init__(self, world: World, mine: range, micro_batches: int) -> None:
        self._world, self._mine, self._count = world, mine, micro_batches
        self._asked: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def ask(self, losses: list[torch.Tensor], stop: bool, changed: list[float]) -> None:
        """Send this rank's losses and wishes on their way."""
        slots = [0.0] * self._count
        # All at once: on a GPU every look at a number waits for it.
        values = torch.stack([loss.reshape(()) for loss in losses]).tolist()
        slots[self._mine.start : self._mine.stop] = values
        vector = torch.tensor([float(stop), *slots, *changed], dtype=torch.float64)
        self._asked = vector
        if self._world.size > 1:
            self._work = dist.all_reduce(vector, group=self._world.control, async_op=True)

    def answer(self) -> Decision:
        """Wait for all ranks. Raises RuntimeError when a peer is gone or too late."""
        assert self._asked is not None
        if self._work is not None:
            self._work.wait()
        stop, *rest = self._asked.tolist()
        losses, changed = rest[: self._count], rest[self._count :]
        return Decision(sum(losses) / self._count, stop > 0, changed)
