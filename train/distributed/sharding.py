"""`train.shard: optimizer`: each rank keeps the optimizer's state of its own parameters, and updates these alone.

Owns the choice of the parameters of each rank, the exchange of the updated parameters, and the collection of all state
on rank 0 for a checkpoint. The gradients are reduced and clipped in full, so the update of a parameter has the same
bits on any rank. Knows nothing of models, steps or the files of a checkpoint.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from train.base.console import say
from train.base.errors import TrainError
from train.distributed.process_group import World
from train.distributed.reduction import exchange_groups, share
from train.health.phase import WAITING

# The classes of torch.optim that update each parameter by its own gradient and state alone.
ONE_BY_ONE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor",
    "Muon",
)  # fmt: skip
# The memory of an exchange: docs/performance.md has the times of other sizes.
BUCKET_BYTES = 1 << 22
# Every tensor begins at a multiple of this, which suits every dtype.
_ALIGNMENT = 64


def shard(
    optimizers: Sequence[torch.optim.Optimizer], world: World, directory: Path
) -> tuple[torch.optim.Optimizer, ...]:
    """Return these optimizers with their state spread over the ranks. `directory`: for rank 0's temporary file.

    Raises TrainError if one of them cannot be sharded. Every rank has to call this.
    """
    for optimizer in optimizers:
        _check(optimizer)
    if world.size == 1:
        return tuple(optimizers)
    parameters = [p for each in optimizers for p in trained(each)]
    # A frozen parameter may have state as well: from Adagrad, or from a start that trained it.
    owner = owners(_frozen(optimizers), world.size) | owners(parameters, world.size)
    if world.rank == 0:
        loads = [0] * world.size
        for p in parameters:
            loads[owner[id(p)]] += p.numel() * p.element_size()
        part = max(loads) / max(sum(loads), 1)
        say(f"shard: optimizer, a rank keeps the state of at most {part:.0%} of the parameters")
    exchange = Gather(world)
    sharded = (ShardedOptimizer(each, world, directory, exchange, owner) for each in optimizers)
    return cast("tuple[torch.optim.Optimizer, ...]", tuple(sharded))


def _check(optimizer: torch.optim.Optimizer) -> None:
    kind, remedy = type(optimizer), "write shard: none"
    if not kind.__module__.startswith("torch.optim") or kind.__name__ not in ONE_BY_ONE:
        raise TrainError(
            f"train.shard: optimizer takes {', '.join(ONE_BY_ONE)} of torch.optim, which update each parameter by its "
            f"own gradient and state alone, and not {kind.__module__}.{kind.__name__}; take one of these, or {remedy}"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise TrainError(
            f"train.shard: optimizer: a step hook of {kind.__name__} would see the parameters of one rank updated, and "
            f"not those of the others; take the hook out, or {remedy}"
        )
    for p in trained(optimizer):
        if not torch.ops.aten.is_non_overlapping_and_dense(p):
            raise TrainError(
                f"train.shard: optimizer: a parameter of shape {tuple(p.shape)} has gaps in memory (strides "
                f"{p.stride()}); make it contiguous(), or {remedy}"
            )


def trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters that the optimizer updates, in torch's own order."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _frozen(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    groups = chain.from_iterable(each.param_groups for each in optimizers)
    return [p for group in groups for p in group["params"] if not p.requires_grad]


def owners(parameters: Sequence[torch.Tensor], size: int) -> dict[int, int]:
    """Return the rank of each parameter by its id(): the largest first, each to the rank with the fewest bytes.

    Parameters that overlap in memory are tied, so they have the same rank.
    """
    begins: dict[int, int] = {}
    begin = end = 0
    for p in sorted(parameters, key=torch.Tensor.data_ptr):
        if p.data_ptr() >= end:
            begin = p.data_ptr()
        begins[id(p)], end = begin, max(end, p.data_ptr() + p.nbytes)
    sizes: dict[int, int] = {}
    for p in parameters:
        begin = begins[id(p)]
        sizes[begin] = max(sizes.get(begin, 0), p.data_ptr() + p.nbytes - begin)
    loads, rank_of = [0] * size, dict[int, int]()
    for begin, count in sorted(sizes.items(), key=lambda item: -item[1]):
        rank_of[begin] = rank = loads.index(min(loads))
        loads[rank] += count
    return {key: rank_of[begin] for key, begin in begins.items()}


class Collected(dict[int, Any]):
    """The state of all parameters of an optimizer, in memory that no step changes."""


class ShardedOptimizer:
    """This rank's part of an optimizer, with the methods of torch.optim.Optimizer that a run uses.

    `param_groups` are whole, so schedules, the gradient scaler and checkpoints see all parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        world: World,
        directory: Path,
        exchange: Gather,
        owner: Mapping[int, int],
    ) -> None:
        """`owner`: the rank of each parameter by its id()."""
        self._optimizer, self._world, self._directory = optimizer, world, directory
        self._exchange, self._collected = exchange, dict[str, Any]()
        self._own = {key for key, rank in owner.items() if rank == world.rank}
        self._of_ranks = [
            [p for p in trained(optimizer) if owner[id(p)] == rank] for rank in range(world.size)
        ]
        # The gradient scaler hands its scale to a fused optimizer, which makes its state even in a step that overflows.
        self._step_supports_amp_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)
        # Adagrad makes the state of all parameters when it is built.
        for p in [p for p in optimizer.state if id(p) not in self._own]:
            del optimizer.state[p]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def step(self) -> None:
        """Update this rank's parameters, and begin to exchange them: call `settle` before anybody reads them."""
        for name in self.__dict__.keys() & {"grad_scale", "found_inf"}:
            setattr(self._optimizer, name, getattr(self, name))
        groups = self.param_groups
        whole = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) in self._own]
        try:
            self._optimizer.step()
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters
        self._exchange.start(self._of_ranks)

    def settle(self) -> None:
        """Wait until this rank has the parameters of all ranks. Raises RuntimeError when a peer is gone or too late."""
        self._exchange.wait()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole optimizer's state. The values may lie in a file's memory."""
        everything = chain.from_iterable(group["params"] for group in self.param_groups)
        own = {i for i, p in enumerate(everything) if id(p) in self._own}
        state = {i: _map(values, torch.clone) for i, values in saved["state"].items() if i in own}
        self._optimizer.load_state_dict({**saved, "state": state})

    def state_dict(self) -> dict[str, Any]:
        """Return the whole optimizer's state on rank 0, once after each `collect`."""
        if not self._collected:
            raise RuntimeError("the state of a sharded optimizer is not collected")
        collected, self._collected = self._collected, {}
        return collected

    def collect(self) -> None:
        """Bring the state of all ranks to rank 0, bucket by bucket. Every rank has to call this between two steps.

        Rank 0 holds it in a file without a name, which the system can write back and drop from memory.
        """
        self.settle()
        world, content, tensors = self._world, self._optimizer.state_dict(), list[torch.Tensor]()

        def put_aside(tensor: torch.Tensor) -> _Form:
            if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
                tensor = tensor.clone()
            tensors.append(tensor)
            return _Form(tuple(tensor.shape), tensor.stride(), tensor.dtype)

        own = {i: _map(values, put_aside) for i, values in content["state"].items()}
        states: list[dict[int, dict[str, Any]]] = world.all_gather(own)
        layouts = [
            _Layout([form.numel * form.dtype.itemsize for form in _forms(state)])
            for state in states
        ]
        memory = self._send_to_first(tensors, layouts)
        if memory is None:
            return
        state = Collected()
        starts = accumulate((layout.end for layout in layouts), initial=0)
        for start, layout, of_rank in zip(starts, layouts, states, strict=False):
            state.update(_filled(of_rank, memory, [start + offset for offset in layout.offsets]))
        groups = [{sys.intern(k): v for k, v in group.items()} for group in content["param_groups"]]
        whole = {"state": Collected(sorted(state.items())), "param_groups": groups}
        self._collected = {name: whole.get(name, content[name]) for name in content}

    def _send_to_first(
        self, tensors: Sequence[torch.Tensor], layouts: Sequence[_Layout]
    ) -> mmap.mmap | None:
        """Send this rank's tensors to rank 0. Returns the memory with those of all ranks there, None elsewhere."""
        world, own = self._world, layouts[self._world.rank]
        starts = [0, *accumulate(layout.end for layout in layouts)]
        memory = None if world.rank else _memory(self._directory, starts[-1])
        buckets = _buckets(tensors, own)
        if memory is not None:
            flat = torch.frombuffer(memory, dtype=torch.uint8)
            for i, part, place in own.cut(0, own.end):
                flat[place].copy_(_bytes(tensors[i])[part])
        for begin in range(0, max(layout.end for layout in layouts[1:]), BUCKET_BYTES):
            if memory is None and begin < own.end:
                dist.send(next(buckets), 0, group=world.control)
            for rank in range(1, world.size) if memory is not None else ():
                bucket = flat[starts[rank] : starts[rank + 1]][begin : begin + BUCKET_BYTES]
                if len(bucket):
                    dist.recv(bucket, rank, world.control)
            world.barrier()  # keeps all ranks within one bucket of each other, so that each wait is short
        return memory


# --- tensors as bytes -----------------------------------------------------------------------------


class _Form(NamedTuple):
    """Stands for a tensor that travels apart from the state that it belongs to."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


def _map(values: Mapping[str, Any], change: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Return a parameter's state with every tensor changed. The classes of ONE_BY_ONE do not nest it."""
    return {k: change(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def _forms(state: Mapping[int, Mapping[str, Any]]) -> Iterator[_Form]:
    for values in state.values():
        yield from (value for value in values.values() if isinstance(value, _Form))


class _Layout:
    """Tensors one after the other, as bytes. `offsets`: their beginnings. `end`: the end of the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        aligned = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        *self.offsets, self.end = accumulate(aligned, initial=0)
        self._sizes = sizes

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield the tensors between two offsets: number, the part of its bytes, the place of this part from `begin` on."""
        first = max(0, bisect_right(self.offsets, begin) - 1)
        for i in range(first, bisect_right(self.offsets, end - 1)):
            start = self.offsets[i]
            low, high = max(start, begin), min(start + self._sizes[i], end)
            if low < high:
                yield i, slice(low - start, high - start), slice(low - begin, high - begin)


def _buckets(tensors: Sequence[torch.Tensor], layout: _Layout) -> Iterator[torch.Tensor]:
    """Yield this layout's bytes in buckets. Each uses the memory of the one before."""
    memory = torch.zeros(min(BUCKET_BYTES, layout.end), dtype=torch.uint8)
    for begin in range(0, layout.end, BUCKET_BYTES):
        bucket = memory[: layout.end - begin]
        for i, part, place in layout.cut(begin, begin + len(bucket)):
            bucket[place].copy_(_bytes(tensors[i])[part])
        yield bucket


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's memory, in its own order."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _filled(
    state: Mapping[int, Mapping[str, Any]], memory: mmap.mmap, offsets: Sequence[int]
) -> dict[int, Any]:
    """Return a state with the tensors at these offsets of the memory in the places of the forms."""
    remaining = iter(offsets)

    def fill(value: Any) -> Any:
        if not isinstance(value, _Form):
            return value
        begin = next(remaining)
        if not value.numel:
            return torch.empty_strided(value.shape, value.strides, dtype=value.dtype)
        flat = torch.frombuffer(memory, dtype=value.dtype, count=value.numel, offset=begin)
        return flat.as_strided(value.shape, value.strides)

    # A pickle writes each object once, so equal names have to be one object, as in the state of one process.
    return {i: {sys.intern(k): fill(v) for k, v in values.items()} for i, values in state.items()}


def _memory(directory: Path, size: int) -> mmap.mmap:
    """Return memory backed by a file without a name in `directory`; by none if it has no room for the file."""
    size = max(size, 1)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # A hole in the file would end the process when the disk is full.
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except (OSError, AttributeError):  # macOS has no posix_fallocate
        return mmap.mmap(-1, size)


# --- the exchange of the updated parameters -------------------------------------------------------


class Stage(NamedTuple):
    """Ranks that give each other what each of them has.

    `positions`: the first position and the end of each member's part in a bucket.
    """

    ranks: tuple[int, ...]
    positions: tuple[tuple[int, int], ...]


def plan_gather(layout: Sequence[Sequence[int]]) -> tuple[list[int], list[Stage]]:
    """Return the ranks in the order of their parts in a bucket, and the stages of all ranks.

    Hosts exchange first, so that the network carries each part once for each host.
    """
    hosts, across = exchange_groups(layout)
    size = len(hosts)
    between = [
        Stage(ranks, tuple((n * size + i, n * size + i + 1) for i in range(size)))
        for n, ranks in enumerate(across)
    ]
    within = [
        Stage(ranks, tuple((i * size, (i + 1) * size) for i in range(len(ranks))))
        for ranks in hosts
    ]
    stages = [stage for stage in (*between, *within) if len(stage.ranks) > 1]
    return list(chain.from_iterable(across)), stages


class Gather:
    """Gives every rank the parameters that another rank has updated, bucket by bucket. Every rank has to build it.

    On the CPU a thread does it while the rank records the step and fetches the next batch. On a GPU with NCCL the
    calls return at once.
    """

    def __init__(self, world: World) -> None:
        self._rank, (self._order, stages) = world.rank, plan_gather(world.layout)
        groups = [(world.new_group(stage.ranks), stage) for stage in stages]
        self._stages = [(group, stage) for group, stage in groups if world.rank in stage.ranks]
        self._part_bytes = max(_ALIGNMENT, BUCKET_BYTES // world.size)
        device = world.device if world.backend == "nccl" else torch.device("cpu")
        size = self._part_bytes * world.size
        self._bucket = torch.zeros(size, dtype=torch.uint8, device=device)
        self._in_thread = world.device.type == "cpu"
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, of_ranks: Sequence[Sequence[torch.Tensor]]) -> None:
        """Begin to exchange these parameters of each rank, after all that is under way."""
        self.wait()
        if self._in_thread:
            self._thread = threading.Thread(
                target=self._work, args=(of_ranks,), name="gather", daemon=True
            )
            self._thread.start()
        else:
            self._run(of_ranks)

    def wait(self) -> None:
        """Wait for the exchange under way. Raises RuntimeError when a peer is gone or too late."""
        if self._thread is not None:
            with WAITING:
                self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _work(self, of_ranks: Sequence[Sequence[torch.Tensor]]) -> None:
        try:
            self._run(of_ranks)
        except Exception as error:  # noqa: BLE001 - raised in wait()
            self._error = error

    def _run(self, of_ranks: Sequence[Sequence[torch.Tensor]]) -> None:
        # Look up the memory in each step, because a model may move its parameters.
        flat = [[_bytes(p) for p in parameters] for parameters in of_ranks]
        layouts = [_Layout([len(each) for each in parameters]) for parameters in flat]
        for begin in range(0, max(layout.end for layout in layouts), self._part_bytes):
            lengths = [min(max(layouts[r].end - begin, 0), self._part_bytes) for r in self._order]
            bounds = [0, *accumulate(lengths)]
            received: list[tuple[torch.Tensor, torch.Tensor]] = []
            for rank, first, end in zip(self._order, bounds, bounds[1:], strict=False):
                for i, part, place in layouts[rank].cut(begin, begin + end - first):
                    in_bucket, parameter = self._bucket[first:end][place], flat[rank][i][part]
                    if rank == self._rank:
                        in_bucket.copy_(parameter)
                    else:
                        received.append((parameter, in_bucket))
            for group, (ranks, positions) in self._stages:
                chunks = [slice(bounds[a], bounds[b]) for a, b in positions]
                share(self._bucket, chunks, ranks.index(self._rank), ranks, group)
            for parameter, in_bucket in received:
                parameter.copy_(in_bucket)
