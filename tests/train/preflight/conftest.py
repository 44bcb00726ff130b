"""Launches of hosts on this machine, and what their messages say."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.train.preflight.launches import WAIT_S, Launch
from train.preflight.wire import Conn


@pytest.fixture
def launch() -> Iterator[Any]:
    made: list[Launch] = []

    def new(nodes: int, **common: Any) -> Launch:
        made.append(Launch(nodes, **common))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """heard(kind, words): waits until a host that is a thread has got such a message."""
    got: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    receive = Conn.receive

    async def received(conn: Conn, timeout_s: float | None = None) -> Any:
        message = await receive(conn, timeout_s)
        got.put(message)
        return message

    def heard(kind: str, **words: str) -> None:
        wanted = {"kind": kind, **words}
        while not wanted.items() <= got.get(timeout=WAIT_S).items():
            pass

    monkeypatch.setattr(Conn, "receive", received)
    return heard
