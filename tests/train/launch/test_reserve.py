"""A free port for a launch: nobody else gets it, while whoever asks as torch does may listen there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from train.base import nic
from train.base.nic import NetworkError
from train.launch import reserve

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ports() -> range:
    """Ports that nobody uses, one run of them a process of the test run."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = 21000 + 50 * (process % 40)  # from 23000 on are those of tests.ports
    return range(begin, begin + 50)


@pytest.mark.slow
def test_twenty_at_once_get_twenty_ports_and_give_them_back_in_the_end(ports: range) -> None:
    keep = (
        "import sys; from train.launch import reserve; "
        f"kept = reserve.reserve('127.0.0.1', range({ports[0]}, {ports[-1] + 1}), 4711); "
        "print(kept.getsockname()[1], flush=True); sys.stdin.read()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", keep], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(20)
    ]  # fmt: skip
    try:
        found = [int(each.stdout.readline()) for each in started if each.stdout]
    finally:
        for each in started:
            each.kill()
            each.communicate(timeout=30)
    assert len(set(found)) == 20
    assert set(found) <= set(ports)
    for port in found:
        freed = reserve._bound(port)
        assert freed is not None
        freed.close()


def test_the_search_begins_where_it_is_told_to_and_goes_around(ports: range) -> None:
    few = ports[-3:]
    # 4711 is 1 modulo 3.
    held = [reserve.reserve("127.0.0.1", few, 4711) for _ in few]
    assert [each.getsockname()[1] for each in held] == [few[1], few[2], few[0]]
    with pytest.raises(NetworkError, match=f"ports {few[0]}-{few[-1]} of .* is free"):
        reserve.reserve("127.0.0.1", few, 4711)
    for each in held:
        each.close()


def test_whoever_listens_already_keeps_the_port(ports: range) -> None:
    taken = socket.create_server(("127.0.0.1", ports[0]))
    with taken, reserve.reserve("127.0.0.1", ports, 0) as found:
        assert found.getsockname()[1] != ports[0]


def test_a_reserved_port_is_refused_to_others_and_open_to_what_asks_as_torch_does(
    ports: range,
) -> None:
    with reserve.reserve("127.0.0.1", ports, 0) as reserved:
        port = reserved.getsockname()[1]
        assert reserve._bound(port) is None
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        nic.check_port_free("127.0.0.1", port)
        # Nobody is taken for the one that is to come.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with socket.create_server(("", port)):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_torch_can_listen_on_it(ports: range) -> None:
    from torch.distributed import TCPStore

    with reserve.reserve("127.0.0.1", ports, 0) as reserved:
        port = reserved.getsockname()[1]
        for libuv in (True, False):
            store = TCPStore("127.0.0.1", port, 1, is_master=True, use_libuv=libuv)
            store.set("key", "value")
            assert store.get("key") == b"value"
            del store
