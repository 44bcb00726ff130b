"""The reduction between real processes gives the bits that one process computes alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.train.world import in_world
from train.distributed.gradients import join_levels
from train.distributed.process_group import World
from train.distributed.reduction import (
    LocalSums,
    TreeReducer,
    flatten,
    plain_sum_is_the_tree,
    plan_stages,
)
from train.training.data import ranges


def leaves(count: int, size: int) -> list[torch.Tensor]:
    """Numbers of very different size: any other order of addition gives other bits."""
    generator = torch.Generator().manual_seed(7)
    scale = torch.logspace(-6, 6, count)
    return [torch.randn(size, generator=generator) * s for s in scale]


def tree_sum(values: list[torch.Tensor]) -> torch.Tensor:
    sums = LocalSums(range(len(values)), len(values))
    for value in values[:-1]:
        sums.push([value.clone()])
    last = values[-1].clone()
    sums.finish([0], [last])
    return last


def reduced_by(
    shares: list[int], size: int, layout: list[list[int]] | None = None
) -> list[torch.Tensor]:
    def body(world: World) -> torch.Tensor:
        torch.manual_seed(world.rank)  # nothing here may depend on it
        values = leaves(sum(shares), size)
        mine = ranges(shares)[world.rank]
        reducer = TreeReducer(
            join_levels(world, ranges(shares)), plain_sum_is_the_tree(ranges(shares)), world.device
        )
        sums = LocalSums(mine, len(values))
        for v in mine[:-1]:
            sums.push([values[v].clone()])
        last = values[mine[-1]].clone()
        rows = [flatten(row, [last]) for row in sums.finish([0], [last])[:-1]]
        reducer.reduce([*rows, last], last).wait()
        return last

    return in_world(len(shares), body, layout)


@pytest.mark.parametrize(
    "shares", [[8], [4, 4], [5, 3], [7, 1], [3, 3, 2], [2, 2, 2, 2], [1] * 8, [1, 2, 3], [3, 4]]
)
@pytest.mark.parametrize("size", [1, 1001])
def test_any_shares_give_the_bits_of_one_process(shares: list[int], size: int) -> None:
    expected = tree_sum(leaves(sum(shares), size))
    for got in reduced_by(shares, size):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("shares", "layout"),
    [
        ([2, 2, 2, 2], [[0, 1], [2, 3]]),
        ([3, 1, 2, 2], [[0, 1], [2, 3]]),
        ([1, 2, 3, 1, 1, 1], [[0, 1], [2, 3], [4, 5]]),
        ([2, 3, 3], [[0, 1], [2]]),
    ],
)
def test_through_several_hosts_the_bits_stay(shares: list[int], layout: list[list[int]]) -> None:
    expected = tree_sum(leaves(sum(shares), 103))
    for got in reduced_by(shares, 103, layout):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("layout", [[[0, 1], [2, 3]], [[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_ranges_that_change_between_two_sums_keep_the_groups_and_the_bits(
    layout: list[list[int]],
) -> None:
    splits = [[2, 2, 2, 2], [5, 1, 1, 1], [1, 2, 2, 3], [2, 2, 2, 2]]

    def body(world: World) -> list[torch.Tensor]:
        first = ranges(splits[0])
        reducer = TreeReducer(join_levels(world, first), plain_sum_is_the_tree(first), world.device)
        totals = []
        for split in map(ranges, splits):
            stages = [stage for _, stage in plan_stages(split, world.layout, world.rank)]
            reducer.assign(stages, plain_sum_is_the_tree(split))
            values, sums = leaves(8, 103), LocalSums(split[world.rank], 8)
            for v in split[world.rank][:-1]:
                sums.push([values[v].clone()])
            last = values[split[world.rank][-1]].clone()
            rows = [flatten(row, [last]) for row in sums.finish([0], [last])[:-1]]
            totals.append(reducer.reduce([*rows, last], last).wait())
        return totals

    expected = tree_sum(leaves(8, 103))
    assert all(torch.equal(total, expected) for each in in_world(4, body, layout) for total in each)


def test_the_order_matters_at_all() -> None:
    values = leaves(8, 1001)
    in_line = values[0].clone()
    for value in values[1:]:
        in_line += value
    assert not torch.equal(in_line, tree_sum(values))


def test_buckets_finish_one_by_one_and_missing_gradients_count_as_zero() -> None:
    sums = LocalSums(range(3), 4)
    a, b = torch.tensor([1.0]), torch.tensor([-0.0])
    sums.push([a.clone(), None])
    sums.push([None, b.clone()])
    first, second = torch.tensor([4.0]), torch.tensor([8.0])
    assert flatten(sums.finish([0], [first])[0], [first]).tolist() == [1.0]
    rows = sums.finish([1], [second])
    assert [flatten(row, [second]).tolist() for row in rows] == [[0.0], [8.0]]
    # -0.0 + nothing is +0.0, as it is where the missing gradient was written down as a zero.
    assert not torch.signbit(rows[0][0]).item()  # type: ignore[arg-type]


@pytest.mark.skipif(
    torch.__version__ < "2.6", reason="one timeout ends all of its gloo connections"
)
@pytest.mark.parametrize("shares", [[1, 1], [1, 2]])
def test_a_sum_that_lacks_a_rank_is_an_error(shares: list[int]) -> None:
    def body(world: World) -> str:
        all_ranges = ranges(shares)
        levels = join_levels(world, all_ranges)
        for level in levels:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2), level.group)
        reducer = TreeReducer(levels, plain_sum_is_the_tree(all_ranges), world.device)
        if world.rank == 1:
            return ""
        mine = torch.ones(3)
        with pytest.raises(RuntimeError) as caught:
            reducer.reduce([mine], mine).wait()
        return str(caught.value)

    assert in_world(2, body)[0]
