"""Other programs and other runs at the head's port."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.preflight.launches import WAIT_S, causes, codes
from tests.train.preflight.raw_peers import a_head, a_program, dialled, hello
from train.preflight import ports
from train.preflight.client import Search
from train.preflight.wire import Conn, is_store


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b'{"kind":"hello","jo',
        b"x" * 1_000_000,
        b"[" * 100_000 + b"\n",
        b'{"kind":"hello","job":7}\n',
        b'{"kind":"probe","token":"guessed"}\n',
        b"\xff\xfe\n",
    ],
    ids=["http", "ssh", "half", "megabyte", "nested", "types", "probe", "bytes"],
)
def test_whoever_speaks_otherwise_is_hung_up_on_without_harm(launch: Any, words: bytes) -> None:
    here = launch(2)
    head = here.thread("a")
    with dialled(here.port) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(words)
        client = here.thread("b")
        assert codes(head.result(WAIT_S)) == codes(client.result(WAIT_S)) == []


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad\r\n\r\n"])
def test_another_program_at_the_port_is_named(launch: Any, banner: bytes) -> None:
    here = launch(2, timeout_s=60.0)
    began = time.monotonic()
    with a_program(here.port, banner):
        (outcome,) = here.meet("b")
    assert codes(outcome) == ["PORT006"]
    assert time.monotonic() - began < 35


def test_a_port_that_is_taken_on_the_head_is_told_by_each(launch: Any) -> None:
    here = launch(2)
    with a_program(here.port, b""):
        client, head = here.thread("b"), here.thread("a")
        assert codes(head.result(WAIT_S)) in (["PORT001"], ["PORT002"])
        assert codes(client.result(WAIT_S)) == ["PORT006"]


def test_who_has_the_port_is_not_looked_for_without_end(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Event()
    monkeypatch.setattr(ports, "holder", lambda port: found.wait(60) and None)
    monkeypatch.setattr("train.preflight.head._LOOK_S", 0.2)
    here = launch(2)
    began = time.monotonic()
    with a_program(here.port, b""):
        (outcome,) = here.meet("a")
    found.set()
    assert codes(outcome) == ["PORT001"]
    assert "this user cannot see" in causes(outcome)[0]
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("head", "code", "cause"),
    [
        ("127.0.0.1", "NAME004", "leads b to c (127.0.0.1), which is not the head"),
        (
            "192.0.2.1",
            "RANK003",
            "c (127.0.0.1) was started for the head 192.0.2.1, b for the head",
        ),
    ],
)
def test_a_host_that_meets_another_host_at_the_heads_name(
    launch: Any, head: str, code: str, cause: str
) -> None:
    here = launch(3)
    identity = {"kind": "identity", **hello(here.given("c", head=head))}
    with a_program(here.port, (json.dumps(identity) + "\n").encode()):
        (outcome,) = here.meet("b")
    assert codes(outcome) == [code]
    assert cause in causes(outcome)[0]


# Makes torchrun's store listen at each port that it is told, and no more when it is told again.
STORES = """
import sys
from torch.distributed import TCPStore
print("imported", flush=True)
made = {}
for line in sys.stdin:
    port = int(line)
    if port in made:
        del made[port]
    else:
        made[port] = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    print("so it is", flush=True)
"""


@pytest.fixture(scope="module")
def switch_store() -> Iterator[Callable[[int], None]]:
    """Have a store listen at a port, or end it."""
    with subprocess.Popen([sys.executable, "-c", STORES], stdin=-1, stdout=-1, text=True) as stores:
        write, read = stores.stdin, stores.stdout
        assert write is not None
        assert read is not None
        # Before any host begins to wait: the import may take longer than its patience.
        assert read.readline() == "imported\n"

        def switch(port: int) -> None:
            print(port, file=write, flush=True)
            assert read.readline() == "so it is\n"

        yield switch
        write.close()


@pytest.fixture
def run_under_way(switch_store: Callable[[int], None]) -> Any:
    """A run's store at a port, from here on and to the end of the block."""

    @contextlib.contextmanager
    def under_way(port: int) -> Iterator[None]:
        switch_store(port)
        yield
        switch_store(port)

    return under_way


@pytest.fixture
def until_refused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """until_refused(times): waits until a client's attempts have been refused so often."""
    met: queue.SimpleQueue[str] = queue.SimpleQueue()
    attempt = Search.attempt

    async def knocks(search: Search) -> Conn | None:
        conn = await attempt(search)
        met.put(search.trouble)
        return conn

    def until(times: int) -> None:
        while times:
            times -= met.get(timeout=WAIT_S) == "refused"

    monkeypatch.setattr(Search, "attempt", knocks)
    return until


def test_a_late_host_joins_a_run_under_way(
    launch: Any, run_under_way: Any, until_refused: Any
) -> None:
    here = launch(3, min_nodes=2)
    client = here.thread("b", finds=["LIM003"])
    until_refused(1)  # torchrun has not bound the port yet
    with run_under_way(here.port):
        outcome = client.result(WAIT_S)
    assert outcome.joined
    assert codes(outcome) == ["LIM003"]


def test_a_host_that_took_part_before_joins_its_run(
    launch: Any, run_under_way: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # the checkpoints' directory
    (tmp_path / "nodes/b").mkdir(parents=True)
    (tmp_path / "nodes/b/launch").write_text("1 a-launch\n")
    here = launch(2)
    with run_under_way(here.port):
        assert here.thread("b").result(WAIT_S).joined


@pytest.mark.slow
def test_a_run_of_strangers_is_not_joined(
    launch: Any, run_under_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.preflight.common._FIRST_LINE_S", 2.0)
    patient = functools.partial(is_store, timeout_s=20.0)
    monkeypatch.setattr("train.preflight.client.is_store", patient)
    here = launch(2, timeout_s=6.0)
    with run_under_way(here.port):
        outcome = here.thread("b").result(WAIT_S)
    assert not outcome.joined
    assert codes(outcome) == ["PORT006"]
    (line,) = here.said["b"]
    assert f"port {here.port} of a (127.0.0.1): it is held by " in line


@pytest.mark.slow
def test_an_elastic_host_that_comes_at_the_verdict_waits_for_the_run(
    launch: Any, run_under_way: Any, until_refused: Any
) -> None:
    here = launch(3, min_nodes=2)
    client = here.thread("b")
    with a_head(here) as (_, receive):
        receive("hello")  # and hangs up
    until_refused(3)  # torch takes its time
    with run_under_way(here.port):
        assert client.result(WAIT_S).joined
