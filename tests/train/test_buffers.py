"""BatchNorm statistics and the like come out the same on any number of processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.train.world import in_world
from train.data import ranges
from train.parallel.buffers import Buffers
from train.parallel.gradients import join_levels
from train.parallel.process_group import World
from train.parallel.reduction import TreeReducer, plain_sum_is_the_tree

INPUTS = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1)) + torch.arange(6).view(
    6, 1, 1
)


class Mixed(torch.nn.Module):
    """A batch norm, a counter, a running maximum that only some micro-batches raise, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("highest", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        top = x.max(0).values.double()
        if (top > 3).any():
            self.highest.copy_(torch.maximum(self.highest, top))
        result: torch.Tensor = self.norm(x)
        return result


def after(
    shares: list[int], steps: int, build: Callable[[], torch.nn.Module] = Mixed
) -> list[dict[str, torch.Tensor]]:
    def body(world: World) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = build()
        all_ranges = ranges(shares)
        levels = join_levels(world, all_ranges)
        reducer = TreeReducer(levels, plain_sum_is_the_tree(all_ranges), world.device)
        mine = all_ranges[world.rank]
        buffers = Buffers(model, reducer, mine, len(INPUTS))
        for step in range(steps):
            buffers.begin()
            for v in mine:
                buffers.restore()
                model(INPUTS[v] + step)
                buffers.take(last=v == mine[-1])
            agreed = [
                sum(column) for column in zip(*world.all_gather(buffers.changed()), strict=True)
            ]
            buffers.combine(agreed)
        return {name: buffer.clone() for name, buffer in model.named_buffers()}

    return in_world(len(shares), body)


def test_the_values_are_the_mean_over_the_micro_batches() -> None:
    (got,) = after([6], 1)
    assert torch.allclose(got["norm.running_mean"], 0.1 * INPUTS.mean((0, 1)), atol=1e-6)
    assert got["norm.num_batches_tracked"] == 6
    assert got["seen"] == 24
    assert torch.equal(got["mask"], torch.full((3, 3), float("-inf")).triu(1))


@pytest.mark.parametrize("shares", [[3, 3], [2, 4], [2, 2, 2], [1, 2, 3], [2, 2, 1, 1]])
def test_any_number_of_processes_gives_the_same_bits(shares: list[int]) -> None:
    (expected,) = after([6], 3)
    for got in after(shares, 3):
        for name, value in expected.items():
            assert torch.equal(got[name], value), name


def test_a_buffer_that_is_replaced_is_named() -> None:
    class Replacing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> None:
            self.mean = x.mean(0)

    with pytest.raises(
        AssertionError, match=r"buffer 'mean' of Replacing was replaced .* write into it instead"
    ):
        after([6], 1, Replacing)


def test_a_changing_flag_cannot_be_averaged_and_is_named() -> None:
    class Flag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("on", torch.zeros((), dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> None:
            self.on.fill_(True)

    with pytest.raises(
        AssertionError, match=r"buffer 'on' of Flag changes .* is of type torch.bool"
    ):
        after([6], 1, Flag)
