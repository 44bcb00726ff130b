"""Small sums over the sockets of one host: the tree's bits, in order, and no hanging on a lost peer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.train.world import in_world
from train.base.errors import PeerGoneError, PeerLateError
from train.distributed.gradients import join_levels
from train.distributed.local_sockets import MOST_NUMBERS, LocalSockets, SocketReducer, connect
from train.distributed.process_group import World
from train.distributed.reduction import LocalSums, TreeReducer, flatten, plain_sum_is_the_tree
from train.distributed.step_exchange import StepExchange, StepResult
from train.training.data import ranges

LEAVES = 7
VALUES = torch.randn(LEAVES, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def sockets_of(world: World) -> LocalSockets:
    sockets = connect(world)
    assert sockets is not None
    return sockets


def partial_sums(mine: range, values: torch.Tensor) -> list[torch.Tensor]:
    sums = LocalSums(mine, len(values))
    for v in mine[:-1]:
        sums.push([values[v].clone()])
    last = [values[mine[-1]].clone()]
    return [flatten(row, last) for row in sums.finish([0], last)]


@pytest.mark.parametrize("shares", [[3, 4], [4, 3], [1, 2, 4], [2, 2, 2, 1]])
def test_the_sum_has_the_bits_of_the_tree(shares: list[int]) -> None:
    def body(world: World) -> bool:
        all_ranges = ranges(shares)
        shortcut = plain_sum_is_the_tree(all_ranges)
        by_tree = TreeReducer(join_levels(world, all_ranges), shortcut, world.device)
        by_sockets = SocketReducer(sockets_of(world), all_ranges, by_tree)
        totals = []
        for reducer in (by_tree, by_sockets):
            rows = partial_sums(all_ranges[world.rank], VALUES)
            totals.append(reducer.reduce(rows, rows[-1]).wait())
        return torch.equal(*totals)

    assert all(in_world(len(shares), body))


def test_what_is_large_goes_the_other_way() -> None:
    def body(world: World) -> tuple[float, float]:
        all_ranges = ranges([1, 1])
        other = TreeReducer(join_levels(world, all_ranges), True, world.device)
        reducer = SocketReducer(sockets_of(world), all_ranges, other)
        large = torch.ones(MOST_NUMBERS + 1, dtype=torch.float64)
        single = torch.ones(3)  # not doubles
        return (
            reducer.reduce([large], large).wait().sum().item(),
            reducer.reduce([single], single).wait().sum().item(),
        )

    assert in_world(2, body) == [(2.0 * (MOST_NUMBERS + 1), 6.0)] * 2


def test_messages_wait_for_one_another_however_they_are_read() -> None:
    def body(world: World) -> list[float]:
        sockets = sockets_of(world)
        # As many unread ones as a step and the next can leave, each as large as they get.
        sent = [
            sockets.send(
                torch.full((MOST_NUMBERS,), 10.0 * i + world.rank), [MOST_NUMBERS] * world.size
            )
            for i in range(4)
        ]
        world.barrier()
        return [part[-1].item() for message in reversed(sent) for part in message.wait()]

    assert in_world(3, body) == [[30, 31, 32, 20, 21, 22, 10, 11, 12, 0, 1, 2]] * 3


def answers(
    world: World,
    shares: Sequence[int],
    sockets: LocalSockets | None,
    *wishes: tuple[bool, bool, bool],
) -> list[StepResult]:
    mine = ranges(shares)[world.rank]
    exchange = StepExchange(world, mine, sum(shares), sockets)
    given = []
    for number, wish in enumerate(wishes):
        times = [10.0 * world.rank, float(number)] if number % 2 else []
        exchange.add_losses([torch.tensor(float(v)) for v in mine])
        exchange.send(*wish, [float(world.rank), 0.0], times)
        given.append(exchange.receive())
    return given


@pytest.mark.parametrize("shares", [[3], [1, 2], [3, 1, 2]])
def test_decisions_are_the_same_with_and_without_sockets(shares: list[int]) -> None:
    def body(world: World) -> list[StepResult]:
        last = world.rank == world.size - 1
        wishes = [
            (False, False, False), (last, False, False), (False, last, False), (False, False, last), (last, True, True),
        ]  # fmt: skip
        plain = answers(world, shares, None, *wishes)
        assert answers(world, shares, connect(world), *wishes) == plain
        return plain

    mean, ranks = (sum(shares) - 1) / 2, sum(range(len(shares)))
    decided = [
        (False, False, False), (True, False, False), (False, True, False), (False, False, True), (True, True, True),
    ]  # fmt: skip
    times = [[[10.0 * rank, n] for rank in range(len(shares))] if n % 2 else [] for n in range(5)]
    expected = [
        StepResult(mean, *all_three, [float(ranks), 0.0], told)
        for all_three, told in zip(decided, times, strict=True)
    ]
    assert in_world(len(shares), body) == [expected] * len(shares)


def test_a_lost_peer_is_named() -> None:
    def body(world: World) -> str:
        sockets = sockets_of(world)
        if world.rank == 1:
            for peer in sockets._peers.values():
                peer.close()
            return ""
        with pytest.raises(PeerGoneError) as caught:
            sockets.send(torch.ones(2), [2, 2]).wait()
        return str(caught.value)

    assert in_world(2, body)[0].startswith("the connection to rank 1 was ")


def test_a_silent_peer_is_waited_for_no_longer_than_the_collective_timeout() -> None:
    def body(world: World) -> str:
        sockets = sockets_of(world)
        message = ""
        for peer in sockets._peers.values():
            assert peer.gettimeout() == world.collective_timeout
            peer.settimeout(0.1)
        if world.rank == 0:
            with pytest.raises(PeerLateError) as caught:
                sockets.send(torch.ones(2), [2, 2]).wait()
            message = str(caught.value)
        world.barrier()
        return message

    assert in_world(2, body) == ["rank 1 did not answer in time", ""]


def test_one_rank_that_cannot_have_a_socket_makes_all_go_without(tmp_path: Path) -> None:
    def body(world: World) -> bool:
        # Longer than the name of a socket may be, as on some machines the user's own TMPDIR is.
        tempfile.tempdir = str(tmp_path / ("d" * 120))
        os.makedirs(tempfile.tempdir, exist_ok=True)
        without = connect(world) is None
        world.barrier()
        return without and not os.listdir(tempfile.tempdir)

    assert in_world(2, body) == [True, True]


def test_there_is_none_alone_or_between_hosts() -> None:
    assert in_world(1, lambda world: connect(world) is None) == [True]
    assert in_world(2, lambda world: connect(world) is None, [[0], [1]]) == [True, True]
