"""Buffers that change during training (BatchNorm statistics), combined like gradients.

Owns the rule. Every micro-batch of a step starts from the same buffer values. A floating buffer then becomes
start + mean over v of its change, summed in the step's tree; an integer buffer becomes start + sum of its changes.
So the values depend on no process count. Knows one fact of BatchNorm: its kernels write to buffers, and torch does
not count these writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.nn.modules.batchnorm import _NormBase

from train.base.errors import TrainError
from train.distributed.local_sockets import Reducer, Waitable
from train.distributed.reduction import LocalSums, flatten


class Buffers:
    """The buffers of one model.

    A step calls `begin` first. Each micro-batch calls `restore` before its forward pass and `record_changes` after it.
    After the last `record_changes` the step calls `changed`, and after the last backward pass `combine`.

    The buffers that are known to change are summed while the last backward pass runs. A buffer whose change is first
    seen in this step is combined after that pass, and is known from then on.
    """

    def __init__(
        self, model: torch.nn.Module, reducer: Reducer, own_micro_batches: range, leaves: int
    ) -> None:
        self._model = model
        self._names = _named_buffers(model)
        self._live = [_get(module, name) for module, name in self._names]
        self._start = [buffer.clone() for buffer in self._live]
        self._versions = [buffer._version for buffer in self._live]
        # A dict, because it keeps the order and every micro-batch looks up each buffer in it.
        self._known_to_change: dict[int, None] = {}
        self._new: set[int] = set()
        self._known_sums = LocalSums(own_micro_batches, leaves)
        self._new_sums = LocalSums(own_micro_batches, leaves)
        self._last_new: list[torch.Tensor | None] = []
        self._total: Waitable | None = None
        self._reducer, self._leaves = reducer, leaves
        self._steps = 0
        # Always take these buffers as written, because torch does not count the writes to them. A step may still leave
        # them alone, because the layer may be frozen.
        self._uncounted = {
            i for i, (module, _) in enumerate(self._names) if isinstance(module, _NormBase)
        }

    def assign(self, ranges: Sequence[range], rank: int) -> None:
        """From the next step on, the ranks have these micro-batches."""
        self._known_sums.assign(ranges[rank])
        self._new_sums.assign(ranges[rank])

    def begin(self) -> None:
        self._known_sums.reset()
        self._new_sums.reset()
        self._new.clear()
        self._total = None

    def restore(self) -> None:
        """Put back the values that the step started with."""
        for i in (*self._known_to_change, *self._new):
            self._put_back(i)

    def _put_back(self, i: int) -> None:
        self._live[i].copy_(self._start[i])
        self._versions[i] = self._live[i]._version

    def record_changes(self, last: bool) -> None:
        """After a forward pass: take in its changes. After the last one (`last`), start the sum over all ranks."""
        self._check_replaced()
        fresh = self._newly_changed()
        self._new.update(fresh)
        new: list[torch.Tensor | None] = [None] * len(self._live)
        for i in fresh:
            new[i] = self._change([i])
        if not last:
            self._known_sums.push([self._change(self._known_to_change)])
            self._new_sums.push(new)
            return
        self._last_new = new
        if self._known_to_change:
            self._total = self._sum(self._known_sums, [0], [self._change(self._known_to_change)])

    def changed(self) -> list[float]:
        """Return one number for each buffer: 1.0 if this rank saw the buffer change and did not know that, else 0.0.

        The sum over all ranks lets the ranks agree on the buffers to combine.
        """
        return [float(i in self._new) for i in range(len(self._live))]

    def combine(self, changed_somewhere: Sequence[float]) -> None:
        """After the last backward pass: give every rank the combined values of this step."""
        if self._total is not None:
            self._apply(self._known_to_change, self._total.wait())
        new = [i for i, n in enumerate(changed_somewhere) if n]
        if new:
            self._check_new(new)
            total = self._sum(self._new_sums, new, [self._last(i) for i in new])
            self._apply(new, total.wait())
            self._known_to_change = dict.fromkeys(sorted((*self._known_to_change, *new)))
        for i in self._known_to_change:
            self._put_back(i)
        self._steps += 1

    def _last(self, i: int) -> torch.Tensor:
        change = self._last_new[i]
        start = self._start[i]
        return start.new_zeros(start.numel(), dtype=torch.float64) if change is None else change

    def _newly_changed(self) -> list[int]:
        # Compare by value only in the first step, because that costs a pass over the buffers (and on a GPU a wait).
        return [
            i
            for i in range(len(self._live))
            if i not in self._known_to_change
            and (
                i in self._uncounted
                or self._live[i]._version != self._versions[i]
                or (self._steps == 0 and not torch.equal(self._live[i], self._start[i]))
            )
        ]

    def _check_replaced(self) -> None:
        for (module, name), live in zip(self._names, self._live, strict=True):
            if module._buffers[name] is not live:
                raise TrainError(
                    f"buffer {name!r} of {type(module).__name__} was replaced by a new tensor during "
                    "the forward pass; write into it instead (self.buffer.copy_(...)), so that the "
                    "processes can share it"
                )
        if self._steps == 0 and len(_named_buffers(self._model)) != len(self._names):
            known = {(id(m), n) for m, n in self._names}
            module, name = next(
                p for p in _named_buffers(self._model) if (id(p[0]), p[1]) not in known
            )
            raise TrainError(
                f"buffer {name!r} of {type(module).__name__} was created by the forward pass; create "
                "it with its final shape when the model is built"
            )

    def _check_new(self, new: list[int]) -> None:
        for i in new:
            if self._live[i].dtype == torch.bool or self._live[i].is_complex():
                reason = f"is of type {self._live[i].dtype}, and only real numbers can be combined"
            elif self._names[i][1] in self._names[i][0]._non_persistent_buffers_set:
                reason = "is not saved in checkpoints; register it with persistent=True"
            elif not torch.isfinite(self._start[i]).all():
                reason = (
                    "starts from a value that is not finite, so no change of it can be averaged"
                )
            else:
                continue
            raise TrainError(f"buffer {self._name(i)} changes during training, but it {reason}")

    def _name(self, i: int) -> str:
        module, name = self._names[i]
        return f"{name!r} of {type(module).__name__}"

    def _change(self, buffers: Collection[int]) -> torch.Tensor:
        """Return the changes of these buffers, flat, in double precision, so that integers stay exact."""
        if not buffers:
            return torch.zeros(0, dtype=torch.float64)
        self._check_new([i for i in buffers if i not in self._known_to_change])
        live = torch.cat([self._live[i].reshape(-1).double() for i in buffers])
        return live.sub_(torch.cat([self._start[i].reshape(-1).double() for i in buffers]))

    def _sum(self, sums: LocalSums, pick: list[int], last: list[torch.Tensor]) -> Waitable:
        rows = [flatten(row, last) for row in sums.finish(pick, last)]
        return self._reducer.reduce(rows, rows[-1])

    def _apply(self, buffers: Collection[int], total: torch.Tensor) -> None:
        """Add the summed changes to the start values."""
        sizes = [self._start[i].numel() for i in buffers]
        for i, change in zip(buffers, total.split(sizes), strict=True):
            start = self._start[i]
            if start.is_floating_point():
                start.copy_(start.double() + change.view_as(start) / self._leaves)
            else:
                start.add_(change.view_as(start).to(start.dtype))


def _named_buffers(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """Return the module and name of each buffer of the model; a tensor with several names is listed once."""
    seen: set[int] = set()
    buffers = []
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in seen:
                seen.add(id(buffer))
                buffers.append((module, name))
    return buffers


def _get(module: torch.nn.Module, name: str) -> torch.Tensor:
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer
