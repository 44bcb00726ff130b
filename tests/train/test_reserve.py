"""A free port for a launch: nobody else gets it, while whoever asks as torch does may listen there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from train import nic, reserve
from train.nic import NetworkError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """The script that a port is held for."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=10)


@pytest.fixture(scope="module")
def ports() -> range:
    """Ports that nobody uses, one run of them a process of the test run."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = 21000 + 50 * (process % 40)  # from 23000 on are those of tests.ports
    return range(begin, begin + 50)


def where(ports: Sequence[int], pid: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "train", "where", "--is-head", "--head=127.0.0.1",
               f"--any-port={ports[0]}-{ports[-1]}", f"--hold-for={pid}", *more]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def port_of(process: subprocess.Popen[str]) -> int:
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    _, address, port = said.split()
    assert address == "127.0.0.1"
    return int(port)


def until_free(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        found = reserve._bound(port)
        if found is not None:
            return found.close()
        assert time.monotonic() < deadline, f"port {port} is still held"
        time.sleep(0.05)  # whose end this is, is no child of ours


def test_twenty_at_once_get_twenty_ports_and_give_them_back_in_the_end(
    ports: range, holder: subprocess.Popen[bytes]
) -> None:
    started = [where(ports, holder.pid, "--start=4711") for _ in range(20)]
    found = [port_of(process) for process in started]
    assert len(set(found)) == 20
    assert set(found) <= set(ports)
    holder.kill()
    holder.wait(10)
    for port in found:
        until_free(port)


def test_the_search_begins_where_it_is_told_to_and_goes_around(ports: range) -> None:
    few = ports[-3:]
    # 4711 is 1 modulo 3.
    held = [reserve.reserve("127.0.0.1", few, 4711) for _ in few]
    assert [each.getsockname()[1] for each in held] == [few[1], few[2], few[0]]
    with pytest.raises(NetworkError, match=f"none of the ports {few[0]}-{few[-1]} of .* is free"):
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


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--any-port=20000-20009", "--is-head"], "--is-head and --hold-for=PID"),
        (["--any-port=20000-20009", "--hold-for=1"], "--is-head and --hold-for=PID"),
        (["--any-port=20009-20000", "--is-head", "--hold-for=1"], "no range of ports"),
        (["--any-port=20000-70000", "--is-head", "--hold-for=1"], "70000 is not a port"),
        (["--any-port=20000", "--port=20000"], "not allowed with"),
        ([], "one of the arguments --port --any-port is required"),
    ],
)
def test_wrong_arguments(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    from train.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(["where", "--head=127.0.0.1", *options])
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


def test_a_script_that_is_gone_holds_nothing(ports: range, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait(10)
    process = where(ports, holder.pid)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "there is no such process" in errors
