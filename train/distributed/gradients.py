"""DDP, set up so that a step's gradient is the one the spec asks for.

Owns the wrapping of the model, the communication hooks, and the handling of the gradients of all micro-batches before
the last. Knows nothing of data, optimizers or files.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from train.base.console import say
from train.base.errors import TrainError
from train.distributed.lean import without_compiler
from train.distributed.process_group import World
from train.distributed.reduction import (
    Level,
    LocalSums,
    ThroughHostMemory,
    TreeReducer,
    plain_sum_is_the_tree,
    plan_stages,
    tree_hook,
)
from train.distributed.timing import StepClock
from train.run.config import RunConfig


def wrap(
    model: torch.nn.Module, world: World, config: RunConfig, broadcast_buffers: bool
) -> DistributedDataParallel:
    """Return the model under DDP. Raises TrainError when it has nothing to train."""
    if not any(p.requires_grad for p in model.parameters()):
        raise TrainError("the workload's model has no parameter that requires a gradient")
    # torch 2.13 has renamed broadcast_buffers to forward_sync_buffers and warns of the old name.
    names = inspect.signature(DistributedDataParallel).parameters
    new = "forward_sync_buffers" in names
    sync: dict[str, Any] = {
        "forward_sync_buffers" if new else "broadcast_buffers": broadcast_buffers
    }
    with without_compiler():
        return DistributedDataParallel(
            model,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            **sync,
            # The reduced bucket is the gradient, which saves half of the copies.
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_cap_mb,
            find_unused_parameters=config.find_unused_parameters,
        )


class TreeGradients:
    """`reduction: tree` sums grad(v) over all v in one fixed binary tree, on any number of processes.

    The caller multiplies each loss by `weight` = 1/V before its backward pass, so that the sum needs no division. The
    factor is the same for every process count, and it costs no pass over the gradients.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        world: World,
        config: RunConfig,
        ranges: Sequence[range],
        clock: StepClock,
    ) -> None:
        self.weight = 1.0 / config.micro_batches
        self._named_parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._parameters = [p for _, p in self._named_parameters]
        _refuse_sparse(model)
        self._zeros = config.find_unused_parameters
        self._layout = world.layout
        self._sums = LocalSums(ranges[world.rank], config.micro_batches)
        self.reducer = connect_reducer(world, ranges)
        self.ddp = wrap(model, world, config, broadcast_buffers=False)
        hook = tree_hook(self.reducer, self._sums, self._parameters, clock.ready)
        self.ddp.register_comm_hook(None, hook)

    def assign(self, ranges: Sequence[range], rank: int) -> None:
        """From the next step on, the ranks have these micro-batches."""
        self._sums.assign(ranges[rank])
        if len(ranges) > 1:
            stages = [stage for _, stage in plan_stages(ranges, self._layout, rank)]
            self.reducer.assign(stages, plain_sum_is_the_tree(ranges))

    def begin(self) -> None:
        """Prepare for the first micro-batch of a step."""
        self._sums.reset()
        self._clear()

    def add_micro_batch(self) -> None:
        """Take the gradients of a micro-batch that is not the last, after its backward pass."""
        gradients: list[torch.Tensor | None] = []
        memory: set[int] = set()
        for p in self._parameters:
            g = p.grad
            # Autograd may give two parameters views of one tensor; each sum needs memory of its own.
            if g is not None and g.untyped_storage().data_ptr() in memory:
                g = g.clone()
            if g is not None:
                memory.add(g.untyped_storage().data_ptr())
            gradients.append(g)
        self._sums.push(gradients)
        self._clear()

    def missing(self) -> list[str]:
        """After the last backward pass, return the parameters without a gradient, which DDP did not reduce."""
        return [name for name, p in self._named_parameters if p.grad is None]

    def _clear(self) -> None:
        for p in self._parameters:
            # With find_unused_parameters DDP wants a gradient of every parameter, also if the last micro-batch did not
            # use it. Start every micro-batch from zeros, so that every rank adds the same.
            p.grad = torch.zeros_like(p) if self._zeros else None

    def close(self) -> None:
        """Close the reducer, after the last step."""
        self.reducer.close()


def _refuse_sparse(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise TrainError(
                f"{name} ({type(module).__name__}) has sparse gradients, which cannot be summed in a "
                "fixed tree; build it with sparse=False, or set reduction: allreduce"
            )


def connect_reducer(world: World, ranges: Sequence[range]) -> TreeReducer:
    """Return the reduction of a job whose ranks have these micro-batches. Every rank has to call it."""
    levels, shortcut = join_levels(world, ranges), plain_sum_is_the_tree(ranges)
    if levels and world.device.type == "cuda" and world.backend == "gloo":
        return ThroughHostMemory(levels, shortcut, world.device)
    return TreeReducer(levels, shortcut, world.device)


def join_levels(world: World, ranges: Sequence[range]) -> list[Level]:
    """Make the process groups that all ranks' exchanges need, and return this rank's own levels."""
    if world.size == 1:
        return []
    stages = [plan_stages(ranges, world.layout, rank) for rank in range(world.size)]
    groups = {}
    for members in sorted({ranks for plan in stages for ranks, _ in plan}):
        groups[members] = world.new_group(members)
    return [
        Level(groups[ranks], ranks, ranks.index(world.rank), stage)
        for ranks, stage in stages[world.rank]
    ]


NOT_EXACT = (
    "warning: comm_hook powersgd keeps on each rank what it has not sent yet, and no checkpoint has "
    "it: after a restart the weights are not those of an undisturbed run"
)


class AllReduceGradients:
    """`reduction: allreduce` is DDP's own path, with its communication hooks.

    A resume is exact on the same number of processes, and not on another number. With powersgd no resume is exact,
    because each rank keeps the rest that it has not sent yet, and no checkpoint has these rests.
    """

    def __init__(
        self, model: torch.nn.Module, world: World, config: RunConfig, clock: StepClock
    ) -> None:
        # DDP divides by the world size: undo that.
        self.weight = world.size / config.micro_batches
        self.ddp = wrap(model, world, config, broadcast_buffers=True)
        _register_hook(self.ddp, config.comm_hook, world.backend)
        if config.comm_hook == "powersgd" and world.rank == 0:
            say(NOT_EXACT)
        self._named_parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._tolerant = config.find_unused_parameters
        self._arrived: set[int] = set()

        def arrived(p: torch.Tensor) -> None:
            self._arrived.add(id(p))
            if self._tolerant or len(self._arrived) == len(self._named_parameters):
                clock.ready()  # the last call counts

        for _, p in self._named_parameters:
            p.register_post_accumulate_grad_hook(arrived)

    def begin(self) -> None:
        self.ddp.zero_grad(set_to_none=True)
        self._arrived.clear()

    def add_micro_batch(self) -> None:
        """DDP accumulates by itself inside no_sync()."""
        self._arrived.clear()

    def missing(self) -> list[str]:
        if self._tolerant:
            return []
        return [name for name, p in self._named_parameters if id(p) not in self._arrived]

    def close(self) -> None:
        """There is nothing to close."""


Gradients = TreeGradients | AllReduceGradients


def _register_hook(ddp: DistributedDataParallel, name: str, backend: str) -> None:
    if name == "none":
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif backend != "nccl":
        raise TrainError(f"comm_hook {name} needs the nccl backend; on gloo use none or fp16")
    elif name == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    else:
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
