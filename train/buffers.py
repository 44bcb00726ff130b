"""Buffers that change during training (BatchNorm statistics), combined like gradients.

Owns the rule: every micro-batch of a step starts from the same buffer values; a floating buffer
then becomes start + mean over v of its change, summed in the step's tree, an integer buffer
start + sum of its changes. So the values depend on no process count. Knows nothing of BatchNorm,
but for one fact: its kernels write to buffers without torch counting the write.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _NormBase

from train.errors import TrainError
from train.reduce import LocalSums, TreeReducer, flatten


class Buffers:
    """The buffers of one model.

    Called in this order, every step: begin; for each micro-batch restore, the forward pass, changed,
    and keep after its backward pass (the last one: launch before it); combine.

    Those known to change are summed while the last backward pass runs. One that is first seen to
    change is combined after it, and known from then on.
    """

    def __init__(
        self, model: torch.nn.Module, reducer: TreeReducer, mine: range, leaves: int
    ) -> None:
        places = [(m, n) for m in model.modules() for n, b in m.named_buffers(recurse=False)]
        unique = {id(m._buffers[n]): (m, n) for m, n in reversed(places)}
        self._places = list(reversed(unique.values()))
        self._live = [_get(module, name) for module, name in self._places]
        self._start = [buffer.clone() for buffer in self._live]
        self._versions = [buffer._version for buffer in self._live]
        self._known: list[int] = []
        self._known_sums, self._new_sums = LocalSums(mine, leaves), LocalSums(mine, leaves)
        self._total: torch.futures.Future[torch.Tensor] | None = None
        self._reducer, self._leaves = reducer, leaves
        # Writes that torch does not count are found by value, in the first step; batch norm's are
        # expected even if a step has none, because such a layer may be frozen at first.
        self._by_value = True
        self._uncounted = {
            i for i, (module, _) in enumerate(self._places) if isinstance(module, _NormBase)
        }

    def begin(self) -> None:
        self._known_sums.reset()
        self._new_sums.reset()

    def restore(self) -> None:
        """Put back the values the step started with."""
        for i in (*self._known, *self._newly_changed()):
            self._put_back(i)

    def _put_back(self, i: int) -> None:
        self._live[i].copy_(self._start[i])
        self._versions[i] = self._live[i]._version

    def changed(self) -> list[float]:
        """1.0 for each buffer, not known yet, that has changed: the ranks add these up to agree."""
        for (module, name), live in zip(self._places, self._live, strict=True):
            if module._buffers[name] is not live:
                raise TrainError(
                    f"buffer {name!r} of {type(module).__name__} was replaced by a new tensor during "
                    "the forward pass; write into it instead (self.buffer.copy_(...)), so that the "
                    "processes can share it"
                )
        new = set(self._newly_changed())
        return [float(i in new) for i in range(len(self._live))]

    def _newly_changed(self) -> list[int]:
        known = set(self._known)
        return [i for i in range(len(self._live)) if i not in known and self._differs(i)]

    def _differs(self, i: int) -> bool:
        live, start = self._live[i], self._start[i]
        return (
            live._version != self._versions[i]
            or i in self._uncounted
            or (self._by_value and not torch.equal(live, start))
        )

    def keep(self) -> None:
        """After a micro-batch that is not the last: take its changes into the local sums."""
        self._known_sums.push([self._change(self._known)])
        new: list[torch.Tensor | None] = [None] * len(self._live)
        for i in self._newly_changed():
            new[i] = self._change([i])
        self._new_sums.push(new)

    def _change(self, which: list[int]) -> torch.Tensor:
        """What these buffers have changed by, flat, in double precision: integers stay exact."""
        if not which:
            return torch.zeros(0, dtype=torch.float64)
        for i in which:
            if self._live[i].dtype == torch.bool or self._live[i].is_complex():
                raise TrainError(
                    f"buffer {self._places[i][1]!r} of type {self._live[i].dtype} changes during "
                    "training; only real and integer buffers can be combined over micro-batches"
                )
        live = torch.cat([self._live[i].reshape(-1).double() for i in which])
        return live.sub_(torch.cat([self._start[i].reshape(-1).double() for i in which]))

    def launch(self) -> None:
        """After the last forward pass: start to sum over the ranks what is known to change."""
        self._total = None
        if self._known:
            self._total = self._sum(self._known_sums, [0], [self._change(self._known)])

    def _sum(
        self, sums: LocalSums, pick: list[int], last: list[torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        rows = [flatten(row, last) for row in sums.finish(pick, last)]
        return self._reducer.reduce(rows, rows[-1])

    def combine(self, changed_somewhere: Sequence[float]) -> None:
        """After the last backward pass: give every rank the combined values of this step."""
        if self._total is not None:
            self._apply(self._known, self._total.wait())
        new = [i for i, n in enumerate(changed_somewhere) if n]
        if new:
            total = self._sum(self._new_sums, new, [self._change([i]) for i in new])
            self._apply(new, total.wait())
            self._known = sorted((*self._known, *new))
        for i in self._known:
            self._put_back(i)
        self._by_value = False

    def _apply(self, which: list[int], total: torch.Tensor) -> None:
        """Move the start values on by the summed changes."""
        sizes = [self._start[i].numel() for i in which]
        for i, change in zip(which, total.split(sizes), strict=True):
            start = self._start[i]
            if start.is_floating_point():
                start.copy_(start.double() + change.view_as(start) / self._leaves)
            else:
                start.add_(change.view_as(start).to(start.dtype))


def _get(module: torch.nn.Module, name: str) -> torch.Tensor:
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer
