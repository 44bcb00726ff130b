"""Buffers that change during training (BatchNorm statistics), combined like gradients.

Owns the rule: every micro-batch of a step starts from the same buffer values; a floating buffer
then becomes start + mean over v of its change, summed in the step's tree, an integer buffer
start + sum of its changes. So the values depend on no process count. Knows nothing of BatchNorm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _NormBase

from train.dist import World
from train.errors import TrainError
from train.reduce import LocalSums, TreeReducer, flatten


class Buffers:
    """The buffers of one model. Call in order, every step: begin, (restore, changed, keep) for each
    micro-batch, combine."""

    def __init__(
        self, model: torch.nn.Module, world: World, reducer: TreeReducer, mine: range, leaves: int
    ) -> None:
        self._names = [name for name, _ in model.named_buffers()]
        self._live = [buffer for _, buffer in model.named_buffers()]
        self._start = [buffer.clone() for buffer in self._live]
        self._versions = [buffer._version for buffer in self._live]
        # torch counts the writes to a tensor, but its batch norm kernels write uncounted.
        self._silent = set(_norm_statistics(model))
        self._first_step = True
        self._model, self._world, self._reducer = model, world, reducer
        self._sums, self._leaves = LocalSums(mine, leaves), leaves

    def __len__(self) -> int:
        return len(self._names)

    def begin(self) -> None:
        self._sums.reset()

    def restore(self) -> None:
        """Put back the values the step started with, where a forward pass has changed them."""
        for i in self._changed():
            self._live[i].copy_(self._start[i])
            self._versions[i] = self._live[i]._version

    def changed(self) -> list[float]:
        """1.0 for each buffer the forward pass wrote to: what the ranks agree on by adding up."""
        current = [buffer for _, buffer in self._model.named_buffers()]
        for name, was, now in zip(self._names, self._live, current, strict=True):
            if was is not now:
                raise TrainError(
                    f"buffer {name!r} was replaced by a new tensor during the forward pass; write "
                    "into it instead (self.buffer.copy_(...)), so that the processes can share it"
                )
        changed = set(self._changed())
        return [float(i in changed) for i in range(len(self._names))]

    def _changed(self) -> list[int]:
        if self._first_step:
            # By value as well, once: another kernel may write uncounted too.
            pairs = enumerate(zip(self._live, self._start, strict=True))
            self._silent |= {i for i, (b, start) in pairs if not torch.equal(b, start)}
        return [
            i
            for i, b in enumerate(self._live)
            if i in self._silent or b._version != self._versions[i]
        ]

    def keep(self) -> None:
        """After a micro-batch that is not the last: take its changes into the local sums."""
        self._sums.push(self._deltas())

    def _deltas(self) -> list[torch.Tensor | None]:
        deltas: list[torch.Tensor | None] = [None] * len(self._names)
        for i in self._changed():
            live, start = self._live[i], self._start[i]
            if live.dtype == torch.bool or live.is_complex():
                raise TrainError(
                    f"buffer {self._names[i]!r} of type {live.dtype} changes during training; only "
                    "real and integer buffers can be combined over micro-batches"
                )
            deltas[i] = live - start
        return deltas

    def combine(self, changed_somewhere: Sequence[float]) -> None:
        """After the last micro-batch: give every rank the combined values of this step."""
        picked = [i for i, n in enumerate(changed_somewhere) if n]
        last = self._deltas()
        for floating in (True, False):
            # One exchange for each type, as parts of one flat tensor have to be of one type.
            for dtype in sorted({self._live[i].dtype for i in picked}, key=str):
                if dtype.is_floating_point == floating:
                    self._combine([i for i in picked if self._live[i].dtype == dtype], last)
        for i in picked:
            self._live[i].copy_(self._start[i])
            self._versions[i] = self._live[i]._version
        self._first_step = False

    def _combine(self, pick: list[int], last: list[torch.Tensor | None]) -> None:
        shapes = [self._live[i] for i in pick]
        final = [torch.zeros_like(self._live[i]) if last[i] is None else last[i] for i in pick]
        rows = [flatten(row, shapes) for row in self._sums.finish(pick, final)]  # type: ignore[arg-type]
        total = rows[-1]
        if shapes[0].is_floating_point():
            self._reducer.reduce(rows, total).wait()
            total.div_(self._leaves)
        else:
            for row in rows[:-1]:
                total.add_(row)
            if self._world.size > 1:
                exact = total.cpu()  # integers add up the same in any order
                dist.all_reduce(exact, group=self._world.control)
                total.copy_(exact)
        for i, delta in zip(pick, total.split([s.numel() for s in shapes]), strict=True):
            self._start[i].add_(delta.view_as(self._start[i]))


def _norm_statistics(model: torch.nn.Module) -> list[int]:
    """Numbers, among the model's buffers, of the statistics of batch and instance norms."""
    owned = {
        id(buffer)
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in module.buffers(recurse=False)
    }
    return [i for i, buffer in enumerate(model.buffers()) if id(buffer) in owned]
