"""Probes between hosts: who probes whom, and what is made of peers that refuse or stall."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.ports import free_port
from train.preflight import links
from train.preflight.links import neighbours, probe, serve
from train.preflight.report import Link, Peer
from train.preflight.wire import Conn, Listener, WireError, bind

TOKEN = "a-token"
Answer = Callable[[Conn], Awaitable[None]]


@pytest.mark.parametrize("count", [2, 3, 16])
def test_few_hosts_probe_every_other(count: int) -> None:
    assert [sorted(row) for row in neighbours(count)] == [
        [other for other in range(count) if other != i] for i in range(count)
    ]


@pytest.mark.parametrize("count", [17, 100, 1000, 1024])
def test_many_hosts_probe_few_and_yet_reach_all(count: int) -> None:
    plan = neighbours(count)
    assert max(len(row) for row in plan) <= count.bit_length() + 1
    for i, row in enumerate(plan):
        assert i not in row
        assert {(i + 1) % count, (i - 1) % count} <= set(row)
    reached, new = {0}, {0}
    while new:
        new = {other for i in new for other in plan[i]} - reached
        reached |= new
    assert reached == set(range(count))


def test_a_healthy_link_has_no_trouble() -> None:
    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await serve(conn, TOKEN, await conn.receive(5))

    assert _probed(answer) == [Link("a", "b")]


def test_a_peer_of_another_launch_is_no_peer() -> None:
    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await serve(conn, "another", await conn.receive(5))

    assert _probed(answer) == [Link("a", "b", "broken")]


def test_a_peer_that_refuses() -> None:
    made = asyncio.run(probe("a", "", [Peer("b", "127.0.0.1", free_port())], TOKEN))
    assert made == [Link("a", "b", "refused")]


def test_a_peer_that_takes_connections_and_says_nothing_is_tried_again_and_not_for_long() -> None:
    came: list[Conn] = []

    async def answer(conn: Conn) -> None:
        came.append(conn)
        await conn.receive(30)

    began = time.monotonic()
    assert _probed(answer) == [Link("a", "b", "timeout")]
    assert len(came) >= 2
    assert time.monotonic() - began < links.BUDGET_S + 20


def test_a_peer_that_stands_still_for_seconds_is_only_busy() -> None:
    """Its system takes the connections meanwhile."""
    came: list[Conn] = []

    async def answer(conn: Conn) -> None:
        came.append(conn)
        if len(came) < 4:
            await conn.receive(30)
        conn.send("identity")
        await serve(conn, TOKEN, await conn.receive(5))

    assert [link.trouble for link in _probed(answer)] == [""]


def test_standing_still_oneself_says_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BUDGET_S", 2.0)

    async def run(port: int) -> list[Link]:
        asyncio.get_running_loop().call_soon(time.sleep, 2.5)
        return await probe("a", "", [Peer("b", "127.0.0.1", port)], TOKEN)

    with _served() as port:
        assert [link.trouble for link in asyncio.run(run(port))] == [""]


@pytest.mark.parametrize(
    ("small_pass", "trouble"),
    # What was proven once stays so: the second time the peer may have been busy.
    [([True, True], "large"), ([False, False], "timeout"), ([True, False], "large")],
)
def test_large_packets_get_lost_only_where_small_ones_pass(
    small_pass: list[bool], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that sees a large message only if it comes over a connection of small segments."""
    monkeypatch.setattr(links, "BUDGET_S", 60.0)
    small: list[bool] = []
    dial = links.dial

    async def dialled(*args: object) -> Conn:
        small.append(args[-1] == links.SEGMENT)
        return await dial(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(links, "dial", dialled)

    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await conn.receive(5)
        conn.send("ready")
        await conn.receive(5)
        if small[-1] and small_pass[small.count(True) - 1]:
            conn.send("arrived")
        await asyncio.sleep(60)

    began = time.monotonic()
    assert [link.trouble for link in _probed(answer)] == [trouble]
    assert small == [False, True, False, True]
    assert time.monotonic() - began < 30


def _probed(answer: Answer) -> list[Link]:
    async def run() -> list[Link]:
        listener = Listener(answer, 8)
        port = await listener.open(bind(0))
        try:
            return await probe("a", "127.0.0.1", [Peer("b", "127.0.0.1", port)], TOKEN)
        finally:
            await listener.close()

    return asyncio.run(run())


@contextlib.contextmanager
def _served() -> Iterator[int]:
    """A host that serves probes, in a thread; its port."""
    ready, ports = threading.Event(), []
    ending: list[Callable[[], None]] = []

    async def answer(conn: Conn) -> None:
        conn.send("identity")
        with contextlib.suppress(WireError):
            await serve(conn, TOKEN, await conn.receive(5))

    async def run() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        listener = Listener(answer, 8)
        ports.append(await listener.open(bind(0)))
        ending.append(lambda: loop.call_soon_threadsafe(end.set) and None)
        ready.set()
        await end.wait()
        await listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(30)
    try:
        yield ports[0]
    finally:
        ending[0]()
        thread.join(30)
