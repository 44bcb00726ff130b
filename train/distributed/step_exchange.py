"""One small reduction a step: the losses, and every decision the ranks have to take together.

Owns the reduction's content. In each slot at most one rank writes a number other than zero, or the slot is a plain
count. So the sums are exact in any order. The reduction is launched at the last backward pass and read after the
optimizer step, so the computation hides its latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from train.distributed.local_sockets import MOST_NUMBERS, LocalSockets, Message
from train.distributed.process_group import World
from train.health.phase import WAITING


@dataclass(frozen=True)
class StepResult:
    """The result of a step, the same on all ranks. `loss`: the mean over the step's micro-batches."""

    loss: float
    stop_requested: bool
    leave_requested: bool
    checkpoint_due: bool
    changed_buffers: list[float]
    rank_times: list[list[float]]
    """Each rank's report (StepClock.report in train/distributed/timing.py); empty in a step without reports."""


class StepExchange:
    """The reductions of a run, one for each step."""

    def __init__(
        self,
        world: World,
        own_micro_batches: range,
        micro_batches: int,
        sockets: LocalSockets | None,
    ) -> None:
        self._world, self._own_micro_batches, self._count = world, own_micro_batches, micro_batches
        self._sockets = sockets
        self._losses: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self._vector: torch.Tensor | None = None
        self._per_rank = 0
        self._work: dist.Work | Message | None = None

    def assign(self, ranges: Sequence[range], rank: int) -> None:
        """From the next step on, the ranks have these micro-batches."""
        self._own_micro_batches = ranges[rank]

    def add_losses(self, losses: list[torch.Tensor]) -> None:
        """Take this rank's losses, before the last backward pass. A GPU copies them while the host goes on."""
        values = torch.stack([loss.reshape(()) for loss in losses])
        self._losses = values.to("cpu", non_blocking=True)
        if values.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def send(
        self, stop: bool, leave: bool, due: bool, changed: list[float], own_times: list[float]
    ) -> None:
        """Send the losses, and this rank's wish to stop or to leave, without waiting for the others.

        `due`: true if this rank takes the checkpoints and one is due after this step. `own_times`: this rank's report;
        empty, on all ranks alike, in a step without reports. On a GPU, call this after the last backward pass is
        launched, so that the GPU has work while this call waits for the copy of the losses.
        """
        assert self._losses is not None
        if self._copied is not None:
            with WAITING:  # the GPU's queue may hold a collective that waits for other processes
                self._copied.synchronize()
        slots = [0.0] * self._count
        slots[self._own_micro_batches.start : self._own_micro_batches.stop] = self._losses.tolist()
        time_slots = [0.0] * (len(own_times) * self._world.size)
        time_slots[self._world.rank * len(own_times) : (self._world.rank + 1) * len(own_times)] = (
            own_times
        )
        self._per_rank = len(own_times)
        numbers = [float(stop), float(leave), float(due), *slots, *time_slots, *changed]
        vector = torch.tensor(numbers, dtype=torch.float64)
        self._vector = vector
        if self._sockets is not None and len(vector) <= MOST_NUMBERS:
            self._work = self._sockets.send(vector, [len(vector)] * self._world.size)
        elif self._world.size > 1:
            self._work = dist.all_reduce(vector, group=self._world.control, async_op=True)

    def receive(self) -> StepResult:
        """Wait for all ranks and return the result. Raises RuntimeError when a peer is gone or too late."""
        assert self._vector is not None
        total = self._vector
        if isinstance(self._work, Message):
            total = torch.stack(self._work.wait()).sum(dim=0)
        elif self._work is not None:
            self._work.wait()
        stop, leave, due, *rest = total.tolist()
        losses, rest = rest[: self._count], rest[self._count :]
        count, size = self._per_rank, self._world.size
        times = [rest[r * count : (r + 1) * count] for r in range(size if count else 0)]
        changed = rest[count * size :]
        loss = sum(losses) / self._count
        return StepResult(loss, stop > 0, leave > 0, due > 0, changed, times)
