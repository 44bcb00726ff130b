"""Probes between hosts: who probes whom, and what is made of peers that refuse, stall or are slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci import do_without
from tests.ports import free_port
from train.preflight import links
from train.preflight.links import Turns, neighbours, probe, serve
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


def test_a_healthy_link_has_a_round_trip_and_a_rate() -> None:
    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await serve(conn, TOKEN, await conn.receive(5), Turns())

    (link,) = _probed(answer)
    assert (link.host, link.peer, link.trouble) == ("a", "b", "")
    assert 0 < link.rtt_s < 1
    assert link.rate > 1e6


def test_a_peer_of_another_launch_is_no_peer() -> None:
    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await serve(conn, "another", await conn.receive(5), Turns())

    assert _probed(answer) == [Link("a", "b", "broken")]


def test_a_peer_that_refuses() -> None:
    made = asyncio.run(probe("a", "", [Peer("b", "127.0.0.1", free_port())], TOKEN, Turns()))
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
        await serve(conn, TOKEN, await conn.receive(5), Turns())

    assert [link.trouble for link in _probed(answer)] == [""]


def test_standing_still_oneself_says_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BUDGET_S", 2.0)

    async def run(port: int) -> list[Link]:
        asyncio.get_running_loop().call_soon(time.sleep, 2.5)
        return await probe("a", "", [Peer("b", "127.0.0.1", port)], TOKEN, Turns())

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
    """A peer that sees a burst only if it comes over a connection of small segments."""
    monkeypatch.setattr(links, "BUDGET_S", 60.0)
    small: list[bool] = []
    dial = links.dial

    async def dialled(*args: object) -> Conn:
        small.append(args[-1] == links.SEGMENT)
        return await dial(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(links, "dial", dialled)

    async def count(conn: Conn, size: int) -> None:
        if small[-1] and small_pass[small.count(True) - 1]:
            await links._count(conn, size, links._waited())
        await asyncio.sleep(60)

    began = time.monotonic()
    assert [link.trouble for link in _probed(_counting(count))] == [trouble]
    assert small == [False, True, False, True]
    assert time.monotonic() - began < 30


def test_a_peer_that_stands_still_during_a_burst_is_not_slow() -> None:
    bursts: list[int] = []

    async def count(conn: Conn, size: int) -> None:
        bursts.append(size)
        if bursts == [links._LARGE, links._BURST]:
            await asyncio.sleep(0.4)
        await links._count(conn, size, links._waited())

    (link,) = _probed(_counting(count))
    assert bursts[:3] == [links._LARGE, links._BURST, links._BURST]
    assert link.trouble == ""
    assert link.rate > 3e6


def test_what_has_come_while_this_process_stood_still_counts() -> None:
    class Standing:
        """A connection over which the receipts come in two parts, and this process awakes between."""

        def __init__(self) -> None:
            self.told = [links._LARGE // 2, links._LARGE]

        def send(self, kind: str, **words: object) -> None: ...
        def write(self, words: bytes) -> None: ...

        async def receive(self) -> dict[str, object]:
            time.sleep(2 * links._STALL_S)
            return {"kind": "counted", "bytes": self.told.pop(0), "waited": 0.0}

    conn: Any = Standing()
    assert asyncio.run(links._burst(conn, links._LARGE)) == (links._LARGE, 0.0)


@pytest.mark.parametrize("busy", [False, True])
def test_a_slow_peer_is_measured_as_slow_unless_it_waited_for_its_processor(busy: bool) -> None:
    async def count(conn: Conn, size: int) -> None:
        arrived, began = 0, time.monotonic()
        while arrived < size:
            arrived += len(await conn.read(4096, 5))
            await asyncio.sleep(0.01)
            waited = time.monotonic() - began if busy else 0.0
            conn.send("counted", bytes=arrived, waited=waited)

    (link,) = _probed(_counting(count))
    assert link.trouble == ""
    assert link.rate > 2e6 if busy else 1e5 < link.rate < 2e6


def test_this_threads_wait_for_a_processor_is_counted() -> None:
    counted = Path("/proc/thread-self/schedstat").exists()
    do_without("count of a thread's waits", "" if counted else "this kernel keeps no schedstat")
    before = links._waited()
    forever = [sys.executable, "-c", "while True: pass"]
    rivals = [subprocess.Popen(forever) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        deadline = time.monotonic() + 30
        while links._waited() - before < 0.1:  # busy as well, so that it has to wait
            assert time.monotonic() < deadline
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


def test_no_burst_begins_before_the_round_trips_to_all_peers_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow way out it would hold them up, and the way seem long."""
    monkeypatch.setattr(links, "_NEAR_S", 30.0)
    seen: list[str] = []

    def answering_after(pause_s: float) -> Answer:
        async def answer(conn: Conn) -> None:
            conn.send("identity")
            await conn.receive(5)
            await asyncio.sleep(pause_s)
            conn.send("ready")
            while (message := await conn.receive(5))["kind"] == "ping":
                seen.extend(["ping"] * (pause_s > 0))
                conn.send("pong")
            seen.append(message["kind"])

        return answer

    async def run() -> None:
        listeners = [Listener(answer, 8) for answer in (answering_after(0.0), answering_after(0.2))]
        peers = [
            Peer(name, "127.0.0.1", await listener.open(bind(0)))
            for name, listener in zip("bc", listeners, strict=True)
        ]
        try:
            await probe("a", "127.0.0.1", peers, TOKEN, Turns())
        finally:
            for listener in listeners:
                await listener.close()

    asyncio.run(run())
    assert seen[:3] == ["ping", "ping", "burst"]


def test_a_burst_of_any_size_that_a_stranger_likes_is_not_counted() -> None:
    with _served() as port, socket.create_connection(("127.0.0.1", port), 5) as sock:
        stream = sock.makefile("rwb")
        stream.readline()
        for message in ({"kind": "probe", "token": TOKEN}, {"kind": "burst", "bytes": 1 << 40}):
            stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()
        assert json.loads(stream.readline()) == {"kind": "ready"}
        assert stream.read() == b""


def _counting(count: Callable[[Conn, int], Awaitable[None]]) -> Answer:
    """A peer that does `count` at each burst."""

    async def answer(conn: Conn) -> None:
        conn.send("identity")
        await conn.receive(5)
        conn.send("ready")
        while True:
            message = await conn.receive(5)
            if message["kind"] == "ping":
                conn.send("pong")
            else:
                await count(conn, message["bytes"])

    return answer


def _probed(answer: Answer) -> list[Link]:
    async def run() -> list[Link]:
        listener = Listener(answer, 8)
        port = await listener.open(bind(0))
        try:
            return await probe("a", "127.0.0.1", [Peer("b", "127.0.0.1", port)], TOKEN, Turns())
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
            await serve(conn, TOKEN, await conn.receive(5), Turns())

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
