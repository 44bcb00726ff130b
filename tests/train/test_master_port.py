"""The port of a start is rank 0's from its first moment, and its store's from then on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.ports import free_port
from train import worker
from train.parallel import master_port
from train.parallel.process_group import Place, _store

ALONE = Place(0, 1, 0, 1, launched=True)


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What torchrun's c10d rendezvous gives rank 0."""
    given = {
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    yield given
    if (left := master_port.take()) is not None:
        os.close(left)


def is_free(port: str) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("", int(port))):
        return True
    return False


def test_it_is_nobody_elses_until_the_store_listens_there(env: dict[str, str]) -> None:
    master_port.hold(env)
    assert not is_free(env["MASTER_PORT"])
    with pytest.raises(ConnectionRefusedError):  # who is let in waits for torch without an end
        socket.create_connection(("127.0.0.1", int(env["MASTER_PORT"])), timeout=10)
    store = _store(ALONE, timedelta(seconds=30))
    other = dist.TCPStore(
        "127.0.0.1", int(env["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=30)
    )
    other.set("said", "heard")
    assert store.get("said") == b"heard"


@pytest.mark.parametrize(
    "change",
    [
        {"RANK": "1"},
        {"TORCHELASTIC_RUN_ID": ""},
        {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        {"MASTER_PORT": "none"},
        {"MASTER_PORT": "65536"},
    ],
)
def test_where_there_is_nothing_to_hold_torch_looks_after_it(
    env: dict[str, str], change: dict[str, str]
) -> None:
    master_port.hold(env | change)
    assert is_free(env["MASTER_PORT"])
    assert master_port.take() is None


def test_a_port_that_is_taken_by_now_is_for_torch_to_tell(env: dict[str, str]) -> None:
    with socket.create_server(("", int(env["MASTER_PORT"]))):
        master_port.hold(env)
        assert master_port.take() is None
        with pytest.raises(RuntimeError, match=r"EADDRINUSE|address already in use"):
            _store(ALONE, timedelta(seconds=10))


def test_a_torch_that_takes_no_socket_over_gets_the_port_back(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("train.parallel.process_group.TCPStore", refuse)
    master_port.hold(env)
    store = _store(ALONE, timedelta(seconds=30))
    store.set("said", "heard")
    assert store.get("said") == b"heard"


def test_a_worker_has_it_before_anything_else(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        worker, "parse", lambda _: seen.append(is_free(env["MASTER_PORT"])) or 1 / 0
    )
    monkeypatch.setattr(worker.processes, "die_with_parent", lambda _: None)
    with pytest.raises(ZeroDivisionError):
        worker.main([])
    assert seen == [False]
