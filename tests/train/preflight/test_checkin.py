"""Hosts that meet, and those that do not: in any order, with the wrong rank, gone, stopped, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.train.preflight.launches import WAIT_S, Launch, causes, codes
from tests.train.preflight.stub_host import parse
from train.preflight import messages, ports, server
from train.preflight.checkin import meet
from train.preflight.client import Search
from train.preflight.common import Printer
from train.preflight.phrases import NamedHost
from train.preflight.report import Hello, Link, Peer, PreflightResult, Report, parsed
from train.preflight.server import Server
from train.preflight.wire import SEGMENT, Conn, WireError, bind, dial, is_store


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


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
            sock.listen()
        except OSError:
            return False
        return True


# --- all is well ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["abc", "cba"])
def test_all_hosts_meet_in_any_order_and_know_the_same(launch: Any, order: str) -> None:
    here = launch(3)
    outcomes = here.meet(order)
    assert [codes(each) for each in outcomes] == [[], [], []]
    assert {each.launch for each in outcomes} - {""} == {outcomes[0].launch}
    pairs = set(itertools.permutations("abc", 2))
    for each in outcomes:
        assert [report.host for report in each.reports] == ["a", "b", "c"]
        assert {(link.host, link.peer) for link in each.links if not link.trouble} == pairs
    assert _is_free(here.port)


def test_the_head_may_come_seconds_after_the_clients_who_say_whom_they_wait_for(
    launch: Any,
) -> None:
    here = launch(2)
    client = here.thread("b")
    here.until_said("b")
    head = here.thread("a")
    assert codes(head.result(WAIT_S)) == codes(client.result(WAIT_S)) == []
    (line,) = here.said["b"]
    assert f"port {here.port} of a (127.0.0.1): its host is up" in line


def test_everybody_says_who_is_missing(launch: Any) -> None:
    here = launch(3, addresses={"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"})
    early = [here.thread("a"), here.thread("b")]
    here.until_said("a", "b")
    late = here.thread("c")
    assert [codes(each.result(WAIT_S)) for each in (*early, late)] == [[], [], []]
    for name in "ab":
        (line,) = here.said[name]
        assert line.startswith("waiting for c (127.0.0.3): ")
    assert here.said["c"] == []


def test_the_hosts_try_the_address_that_the_processes_will_bind(launch: Any) -> None:
    job = launch(2)
    here, there = job.thread("a"), job.thread("b", first_address="192.0.2.1")
    troubled = [(link.host, link.peer) for link in here.result(WAIT_S).links if link.trouble]
    assert troubled == [("a", "b")]
    assert codes(there.result(WAIT_S)) == ["PORT005"]


def test_warnings_go_to_all_and_stop_nobody(launch: Any) -> None:
    here = launch(2)
    head, client = here.thread("a", judged=["VER002"]), here.thread("b", finds=["LIM003"])
    for outcome in (head.result(WAIT_S), client.result(WAIT_S)):
        assert codes(outcome) == ["VER002", "LIM003"]
        assert outcome.launch


# --- findings of the hosts and of the judge ------------------------------------------------------


@pytest.mark.parametrize("others", ["ac", "a"], ids=["all there", "one is late"])
def test_an_error_of_one_host_ends_the_launch_for_all_within_seconds(
    launch: Any, others: str
) -> None:
    here = launch(3)
    began = time.monotonic()
    started = [here.thread("b", finds=["NIC001"]), *(here.thread(name) for name in others)]
    assert {(*codes(each.result(WAIT_S)),) for each in started} == {("NIC001",)}
    assert time.monotonic() - began < 15


def test_the_head_shows_an_error_before_the_others_hear_of_it(launch: Any) -> None:
    """A scheduler that sees one host fail ends the others at once."""
    here = launch(2)
    heard = threading.Event()
    settings, stub = parse(here.given("a"))

    def tell(outcome: PreflightResult) -> None:
        here.told.append(outcome)
        assert not heard.wait(0.5)

    head = here.submit(meet, settings, lambda: stub.examine(settings), stub.judge, tell, print)
    client = here.thread("b", finds=["NIC001"])
    client.add_done_callback(lambda _: heard.set())
    assert codes(client.result(WAIT_S)) == ["NIC001"]
    assert client.result().shown
    assert head.result(WAIT_S).findings is here.told[0].findings


def test_what_is_ignored_does_not_end_the_launch(launch: Any) -> None:
    here = launch(2, ignore=["DIR003"])
    started = [here.thread("a"), here.thread("b", finds=["DIR003"])]
    for each in started:
        outcome = each.result(WAIT_S)
        assert codes(outcome) == ["DIR003"]
        assert len(outcome.links) == 2


def test_a_faulty_client_without_a_head_ends_by_itself(launch: Any) -> None:
    began = time.monotonic()
    assert codes(launch(2, timeout_s=60).meet("b", finds=["NIC002"])[0]) == ["NIC002"]
    assert time.monotonic() - began < 30


def test_checks_that_raise_end_the_exchange_with_what_they_raise(launch: Any) -> None:
    for name in "ab":
        with pytest.raises(KeyError):
            launch(2).meet(name, finds=["NOSUCH"])


def test_clocks_that_are_apart_are_told_with_how_much(launch: Any) -> None:
    here = launch(2)
    head, client = here.process("a"), here.process("b", clock_s=-42.0)
    for each in (head, client):
        (finding,) = each.outcome()["findings"]
        assert (finding["code"], finding["severity"]) == ("CLK001", "error")
        assert re.search(r"b \(127.0.0.2\) is (3\d|4[0-2]) s behind that of a", finding["cause"])


@pytest.mark.parametrize(
    ("ahead", "found"),
    [
        ((4.0, -4.0), []),
        ((5.5,), [("b", "warning")]),
        ((-8.5,), [("b", "warning")]),
        ((-9.5,), [("b", "error")]),
        ((20.0,), [("b", "error")]),
        ((6.0, 8.0), [("b", "warning"), ("c", "warning")]),
        ((6.0, -6.0), [("b", "error"), ("c", "error")]),
    ],
)
def test_clocks_so_far_apart_that_torchrun_takes_a_node_for_dead_are_an_error(
    ahead: tuple[float, ...], found: list[tuple[str, str]]
) -> None:
    each = dict(zip(map(NamedHost, "bc"), ahead, strict=False))
    assert [(f.host, f.severity) for f in messages.clocks("a", each)] == found


@pytest.mark.parametrize(("clock", "ahead"), [(-30, -20), (-9, 0), (-1, 0), (60, 60)])
def test_only_what_cannot_be_the_time_on_the_way_is_a_clock_apart(
    clock: float, ahead: float
) -> None:
    now = time.time()
    assert server._ahead_s(now + clock, now - 10) == pytest.approx(ahead, abs=1)


# --- ranks and jobs -------------------------------------------------------------------------------


SAME_RANK = "b (127.0.0.2) and c (127.0.0.3) were both started as node 1"


@pytest.mark.parametrize(
    ("others", "code", "cause"),
    [
        ([("b", {}), ("c", {"node_rank": 1})], "RANK001", SAME_RANK),
        ([("b", {}), ("b", {})], "RANK001", "b was started twice, as node 1"),
        ([("b", {"node_rank": 7})], "RANK002", "of 3 hosts the node ranks are 0 to 2"),
        ([("b", {"nodes": 4, "min_nodes": 4})], "RANK003", "b (127.0.0.2) was started for 4 hosts"),
        ([("b", {"world_size": 16})], "RANK003", "and 16 processes"),
    ],
)
def test_hosts_that_cannot_be_parts_of_one_launch_are_named(
    launch: Any, others: list[tuple[str, dict[str, int]]], code: str, cause: str
) -> None:
    here = launch(3)
    started = [here.thread("a"), *(here.thread(name, **changes) for name, changes in others)]
    outcomes = [each.result(WAIT_S) for each in started]
    assert [codes(each) for each in outcomes] == [[code]] * len(started)
    said = causes(outcomes[0])[0]
    assert cause in said or said == "c (127.0.0.3) and b (127.0.0.2) were both started as node 1"


def test_a_second_head_is_told_of_the_first_by_its_port(launch: Any) -> None:
    here = launch(2)
    first = here.thread("a")
    with _connected(here.port):  # it listens
        pass
    second = here.thread("a")
    assert codes(second.result(WAIT_S)) in (["PORT001"], ["PORT002"])
    assert codes(here.thread("b").result(WAIT_S)) == codes(first.result(WAIT_S)) == []


def test_a_client_with_the_rank_of_the_head(launch: Any) -> None:
    here = launch(2)
    head = here.thread("a")
    settings = here.given("b", node_rank=0)
    with _connected(here.port) as (send, receive):
        send("hello", **_hello(settings, role="client"))
        assert receive("verdict")["findings"][0]["code"] == "RANK001"
    assert causes(head.result(WAIT_S)) == [
        "a (127.0.0.1) and b (127.0.0.2) were both started as node 0"
    ]


def test_a_host_of_another_job_is_turned_away_and_disturbs_nobody(launch: Any) -> None:
    here = launch(2)
    head, stranger = here.thread("a"), here.thread("b", job="another")
    assert codes(stranger.result(WAIT_S)) == ["RANK004"]
    assert not stranger.result().shown  # its user reads another log
    assert codes(here.thread("b").result(WAIT_S)) == codes(head.result(WAIT_S)) == []
    assert [line for line in here.said["a"] if "the job another" in line]


def test_what_strangers_say_acts_upon_no_terminal(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.preflight.common._FIRST_LINE_S", 60.0)  # of nothing else
    here = launch(2)
    head = here.thread("a")
    with _connected(here.port) as (send, receive):
        send("hello", **(_hello(here.given("b")) | {"job": "x\x1b]0;y\x07\n" + "z" * 200}))
        assert receive("verdict")["findings"][0]["code"] == "RANK004"
    assert codes(here.thread("b").result(WAIT_S)) == codes(head.result(WAIT_S)) == []
    (line,) = here.said["a"]
    assert r"belongs to the job x\x1b]0;y\x07\nzzz" in line
    assert line.isprintable()
    assert len(line) < 250


def test_what_the_head_says_acts_upon_no_terminal(launch: Any) -> None:
    here = launch(2, timeout_s=8.0)
    client = here.thread("b")
    with _head(here) as (send, receive):
        receive("hello")
        for _ in range(7):
            send("wait", text="\x1b[2J" + "x" * 5000)
            time.sleep(1.0)
        send("verdict", go=False, findings=[])
        client.result(WAIT_S)
    (line,) = here.said["b"]
    assert line.startswith(r"\x1b[2Jxxx")
    assert len(line) < 1100


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "9" * 400, '"1"', "null"])
@pytest.mark.parametrize(
    ("read", "value", "name"),
    [
        (functools.partial(parsed, Hello), Hello("toy", "b", 1, 2, 2, "a", "i", "client"), "port"),
        (functools.partial(parsed, Hello), Hello("toy", "b", 1, 2, 2, "a", "i", "client"), "clock"),
        (functools.partial(parsed, Peer), Peer("b", "127.0.0.2", 1), "port"),
        (Report.from_json, Report("b", 1, 2, 2, 1, "a"), "prefix"),
    ],
)
def test_numbers_that_are_none_are_no_words_of_a_host(
    read: Any, value: Any, name: str, number: str
) -> None:
    assert read(asdict(value)) == value
    with pytest.raises(ValueError, match="no "):
        read(asdict(value) | {name: json.loads(number)})


# --- this host's terminal and its limits ----------------------------------------------------------


def test_a_terminal_that_is_paused_holds_up_nobody(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.preflight.common._FIRST_LINE_S", 0.0)
    resumed = threading.Event()
    settings, stub = parse(launch(3).given("a", timeout_s=4.0))
    began = time.monotonic()
    examine = functools.partial(stub.examine, settings)
    outcome = meet(settings, examine, stub.judge, print, lambda text: resumed.wait(60) and None)
    resumed.set()
    assert codes(outcome) == ["HOST001", "HOST001"]
    assert time.monotonic() - began < 30


def test_what_does_not_fit_into_the_printers_queue_is_dropped() -> None:
    said: list[str] = []
    resumed = threading.Event()
    printer = Printer(lambda text: said.append(text) if resumed.wait(60) else None)
    for number in range(100):
        printer.say(str(number))
    resumed.set()
    printer.end()
    assert 32 <= len(said) <= 33


def test_the_heads_own_limit_is_raised_after_it_was_looked_at(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, happened = [64, 4096], list[Any]()

    def raised(what: int, to: tuple[int, int]) -> None:
        limits[:] = to
        happened.append(to)

    monkeypatch.setattr("resource.getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr("resource.setrlimit", raised)
    here = launch(2)
    settings, stub = parse(here.given("a"))
    client = here.thread("b")

    def examine() -> Report:
        happened.append("look")
        return stub.examine(settings)

    assert (
        codes(meet(settings, examine, stub.judge, print, print))
        == codes(client.result(WAIT_S))
        == []
    )
    assert happened == ["look", (130, 4096)]


# --- hosts that leave, hang, or never come --------------------------------------------------------


def test_a_host_that_never_comes_is_named_at_the_end_of_patience(launch: Any) -> None:
    here = launch(3, timeout_s=3.0)
    began = time.monotonic()
    started = [here.thread("a"), here.thread("b")]
    assert [codes(each.result(WAIT_S)) for each in started] == [["HOST001"]] * 2
    assert causes(started[1].result())[0].startswith("c (127.0.0.3) has not checked in within 3 s")
    assert time.monotonic() - began < 15


def test_a_head_that_never_comes_is_named(launch: Any) -> None:
    (outcome,) = launch(2, timeout_s=2.0).meet("b")
    assert codes(outcome) == ["HOST001"]
    assert causes(outcome)[0].startswith("the head, a (127.0.0.1), has not checked in within 2 s")


def test_a_name_that_does_not_resolve_is_named_at_the_latest_at_the_end(launch: Any) -> None:
    (outcome,) = launch(2, timeout_s=2.0, head="no-such-host.invalid").meet("b")
    assert codes(outcome) == ["NAME001"]


@pytest.mark.parametrize(
    ("ended", "code", "cause"),
    [
        (signal.SIGKILL, "HOST003", "the script of b (127.0.0.2) ended before the verdict"),
        (signal.SIGSTOP, "HOST002", "b (127.0.0.2) stopped answering for 4 s"),
    ],
)
def test_a_client_that_ends_or_hangs_in_the_middle(
    launch: Any, heard: Any, ended: int, code: str, cause: str
) -> None:
    here = launch(3)
    head, victim = here.thread("a"), here.process("b")
    heard("hello", host="b")
    victim.popen.send_signal(ended)
    third = here.thread("c", takes_s=0.5)
    began = time.monotonic()
    for each in (head, third):
        outcome = each.result(WAIT_S)
        assert codes(outcome) == [code]
        assert causes(outcome)[0].startswith(cause)
        assert "it did last: " in causes(outcome)[0]
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("ended", "code", "cause"),
    [
        (signal.SIGKILL, "HOST003", "the script of a (127.0.0.1) ended before the verdict"),
        (signal.SIGSTOP, "HOST002", "a (127.0.0.1) stopped answering"),
    ],
)
def test_a_head_that_ends_or_hangs_in_the_middle(
    launch: Any, heard: Any, ended: int, code: str, cause: str
) -> None:
    here = launch(3)
    head, client = here.process("a"), here.thread("b")
    heard("wait")
    head.popen.send_signal(ended)
    began = time.monotonic()
    outcome = client.result(WAIT_S)
    assert codes(outcome) == [code]
    assert causes(outcome)[0].startswith(cause)
    assert time.monotonic() - began < 30


def test_a_stop_of_the_head_that_ends_soon_is_nobodys_fault(launch: Any, heard: Any) -> None:
    here = launch(3)
    head, client = here.process("a"), here.thread("b")
    heard("wait")
    head.popen.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    head.popen.send_signal(signal.SIGCONT)
    last = here.thread("c")
    assert [codes(client.result(WAIT_S)), codes(last.result(WAIT_S)), head.codes()] == [[], [], []]


def test_checks_that_never_end_are_told(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.preflight.common.EXAMINED_S", 1.0)
    here = launch(2)
    started = [here.thread("a"), here.thread("b", hangs=True)]
    assert [codes(each.result(WAIT_S)) for each in started] == [["HOST002"]] * 2
    assert "its own checks" in causes(started[0].result())[0]


@pytest.mark.parametrize(("stays", "code"), [(False, "HOST003"), (True, "HOST002")])
def test_nobody_goes_on_before_all_have_acknowledged(
    launch: Any, monkeypatch: pytest.MonkeyPatch, stays: bool, code: str
) -> None:
    async def probe(*rest: Any) -> list[Link]:
        return []

    monkeypatch.setattr("train.preflight.links.probe", probe)
    here = launch(3)
    started = [here.thread("a"), here.thread("b")]
    with _connected(here.port) as (send, receive):
        send("hello", **_hello(here.given("c")))
        receive("peers")
        send("links", links=[])
        assert receive("verdict")["go"] is True
        if stays:
            started[1].result(WAIT_S)
    for each in started:
        outcome = each.result(WAIT_S)
        assert codes(outcome) == [code]
        assert "c (127.0.0.3)" in causes(outcome)[0]


# --- strangers ------------------------------------------------------------------------------------


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
    with _dialled(here.port) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(words)
        client = here.thread("b")
        assert codes(head.result(WAIT_S)) == codes(client.result(WAIT_S)) == []


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad\r\n\r\n"])
def test_another_program_at_the_port_is_named(launch: Any, banner: bytes) -> None:
    here = launch(2, timeout_s=60.0)
    began = time.monotonic()
    with _program(here.port, banner):
        (outcome,) = here.meet("b")
    assert codes(outcome) == ["PORT006"]
    assert time.monotonic() - began < 35


def test_a_port_that_is_taken_on_the_head_is_told_by_each(launch: Any) -> None:
    here = launch(2)
    with _program(here.port, b""):
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
    with _program(here.port, b""):
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
    identity = {"kind": "identity", **_hello(here.given("c", head=head))}
    with _program(here.port, (json.dumps(identity) + "\n").encode()):
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


def test_an_elastic_host_that_comes_at_the_verdict_waits_for_the_run(
    launch: Any, run_under_way: Any, until_refused: Any
) -> None:
    here = launch(3, min_nodes=2)
    client = here.thread("b")
    with _head(here) as (_, receive):
        receive("hello")  # and hangs up
    until_refused(3)  # torch takes its time
    with run_under_way(here.port):
        assert client.result(WAIT_S).joined


# --- the head calls -------------------------------------------------------------------------------


@pytest.fixture
def one_way(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a launch whose clients cannot reach the head's port, while the head reaches theirs. (On one
    machine they cannot share it: a client listens elsewhere, and there the head's calls go.)"""

    def set_up(here: Launch, trouble: str) -> None:
        elsewhere = here.port + 2

        async def nowhere(address: str, port: int, *rest: Any) -> Conn:
            raise WireError(trouble)

        async def calls(address: str, port: int, *rest: Any) -> Conn:
            return await dial("127.0.0.1", elsewhere, 1.0)

        monkeypatch.setattr("train.preflight.client.dial", nowhere)
        monkeypatch.setattr("train.preflight.server.dial", calls)
        monkeypatch.setattr("train.preflight.client.is_own", lambda address: False)
        monkeypatch.setattr(
            "train.preflight.client.bind",
            lambda port, segment=SEGMENT: bind(elsewhere if port == here.port else port, segment),
        )

    return set_up


@pytest.mark.parametrize(
    ("trouble", "code", "how"),
    [
        ("timeout", "PORT003", "gets no answer"),
        ("refused", "PORT004", "is rejected"),
        ("unreachable", "PORT004", "is rejected"),
    ],
)
def test_a_client_that_the_head_reaches_but_not_the_other_way_round(
    launch: Any, one_way: Any, trouble: str, code: str, how: str
) -> None:
    here = launch(2)
    one_way(here, trouble)
    began = time.monotonic()
    outcomes = here.meet("ab")
    assert [codes(each) for each in outcomes] == [[code], [code]]
    (cause,) = causes(outcomes[1])
    assert f"b (127.0.0.2) sends to port {here.port} of a (127.0.0.1) {how}, " in cause
    assert time.monotonic() - began < 30


def test_a_program_at_the_port_is_told_by_the_head_alone_that_could_not_listen_there(
    launch: Any, one_way: Any
) -> None:
    here = launch(2)
    one_way(here, "foreign")
    with _program(here.port, b""):
        outcomes = here.meet("ab")
    assert {(*codes(each),) for each in outcomes} <= {("PORT001",), ("PORT002",)}


@pytest.mark.parametrize(("held", "severity"), [(["DIR004"], "note"), ([], "error")])
def test_a_check_beside_the_jobs_own_run_does_without_the_port(
    launch: Any, one_way: Any, monkeypatch: pytest.MonkeyPatch, held: list[str], severity: str
) -> None:
    monkeypatch.setattr(server, "_CALL_EVERY_S", 0.01)  # what the head asks outlasts its calls
    here = launch(2, check_only=True)
    one_way(here, "store")
    run = ports.Holder(1, "python -m train", "toy", is_own=True)
    monkeypatch.setattr(ports, "holder", lambda port: run)
    with _program(here.port, b""):
        outcomes = here.meet("ab", finds=held, severity="note")
    for outcome in outcomes:
        assert [(f.code, f.host) for f in outcome.findings if f.host == "a"] == [
            *((code, "a") for code in held), ("PORT002", "a"),
        ]  # fmt: skip
        assert {f.severity for f in outcome.findings} == {severity}
        assert len(outcome.reports) == 2
        assert bool(outcome.links) == bool(held)  # only a check that goes on tries them


def test_a_way_that_opens_before_the_head_has_called_is_taken(
    launch: Any, one_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the head called while the client's own attempt was still on its way."""
    here = launch(2)
    one_way(here, "timeout")
    called = threading.Event()
    elsewhere = server.dial

    async def call(address: str, port: int, *rest: Any) -> Conn:
        called.set()
        return await elsewhere(address, port, *rest)

    async def opening(address: str, port: int, *rest: Any) -> Conn:
        if called.is_set():
            return await dial(address, port, *rest)
        raise WireError("timeout")

    monkeypatch.setattr("train.preflight.server.dial", call)
    monkeypatch.setattr("train.preflight.client.dial", opening)
    assert [codes(each) for each in here.meet("ab")] == [[], []]
    assert called.is_set()


def test_of_an_elastic_job_only_the_filtered_host_fails(
    launch: Any, one_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.preflight.head._SETTLE_S", 8.0)
    here = launch(2, min_nodes=1)
    one_way(here, "timeout")
    outcomes = here.meet("ab")
    assert [_severities(each) for each in outcomes] == [
        [("PORT003", "warning")],
        [("PORT003", "error")],
    ]


def test_what_a_client_without_a_way_found_itself_is_told_at_the_head(
    launch: Any, one_way: Any
) -> None:
    here = launch(2)
    one_way(here, "unresolved")
    started = [here.thread("a"), here.thread("b", finds=["NAME001"])]
    assert [codes(each.result(WAIT_S)) for each in started] == [["NAME001"]] * 2


def test_hosts_that_answer_keep_no_others_from_being_called(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CALLS", 1)
    monkeypatch.setattr(server, "_FIRST_CALL_S", 0.0)
    settings, _ = parse(launch(4).given("a"))

    class Answering:
        """Another host's preflight, which then says nothing for long."""

        address = "127.0.0.9"

        def __init__(self) -> None:
            self.first: dict[str, Any] = asdict(Hello("toy", "x", 1, 4, 4, "a", "i", "client"))

        def send(self, kind: str, **content: Any) -> None: ...
        def close(self) -> None: ...

        async def receive(self, timeout_s: float) -> dict[str, Any]:
            if not self.first:
                await asyncio.sleep(60)
            first, self.first = self.first, {}
            return first

    dialling: list[int] = [0]  # how many at once, each time one begins or ends

    async def answering(*_: Any) -> Any:
        dialling.append(dialling[-1] + 1)
        await asyncio.sleep(0)
        dialling.append(dialling[-1] - 1)
        return Answering()

    async def run() -> None:
        head = Server(settings, Report.from_settings(settings, ()), print)
        calling = asyncio.create_task(head.call_missing())
        while set(head.contact_errors) != {1, 2, 3}:
            await asyncio.sleep(0.01)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert set(head.contact_errors.values()) == {""}

    monkeypatch.setattr(server, "dial", answering)
    asyncio.run(asyncio.wait_for(run(), 30))
    assert max(dialling) == 1


def test_a_name_that_leads_nowhere_is_no_firewall(
    launch: Any, one_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = launch(2, head="head-of-mine")
    one_way(here, "timeout")

    async def leads_nowhere(name: str) -> str:
        return "192.0.2.7"

    monkeypatch.setattr("train.preflight.client.resolve", leads_nowhere)
    outcomes = here.meet("ab")
    assert [codes(each) for each in outcomes] == [["NAME004"]] * 2
    assert "head-of-mine leads b to 192.0.2.7, " in causes(outcomes[0])[0]


# --- elastic jobs ---------------------------------------------------------------------------------


def test_an_elastic_job_goes_on_with_those_who_came(launch: Any) -> None:
    here = launch(4, min_nodes=2)
    began = time.monotonic()
    outcomes = here.meet("abd")
    assert [codes(each) for each in outcomes] == [[]] * 3
    assert [report.host for report in outcomes[0].reports] == ["a", "b", "d"]
    assert time.monotonic() - began < 15


def test_an_elastic_job_goes_on_without_a_faulty_host(launch: Any) -> None:
    here = launch(3, min_nodes=2)
    started = [here.thread("a"), here.thread("b"), here.thread("c", finds=["NIC001"])]
    outcomes = [each.result(WAIT_S) for each in started]
    assert [_severities(each) for each in outcomes] == [
        [("NIC001", "warning")],
        [("NIC001", "warning")],
        [("NIC001", "error")],
    ]


def test_an_elastic_job_goes_on_without_a_host_that_left(launch: Any, heard: Any) -> None:
    here = launch(3, min_nodes=2)
    started, victim = [here.thread("a")], here.process("c")
    heard("hello", host="c")  # before there are hosts enough to go on without it
    started.append(here.thread("b"))
    heard("hello", host="b")
    victim.popen.kill()
    assert [_severities(each.result(WAIT_S)) for each in started] == [[("HOST003", "warning")]] * 2


def test_an_elastic_job_with_too_few_hosts_fails_at_the_end_of_patience(launch: Any) -> None:
    here = launch(4, min_nodes=3, timeout_s=4.0)
    outcomes = here.meet("ab")
    assert [codes(each) for each in outcomes] == [["HOST001", "HOST001"]] * 2


def _severities(outcome: PreflightResult) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in outcome.findings]


# --- raw peers ------------------------------------------------------------------------------------


def _hello(given: dict[str, Any], role: str = "client") -> dict[str, Any]:
    counts = (given["node_rank"], given["nodes"], given["world_size"])
    hello = Hello(
        "toy", given["host_name"], *counts, given["head"], f"instance-{given['host_name']}", role
    )
    same = {name: given[name] for name in ("node_rank", "nodes", "world_size", "head", "address")}
    report = {"host": given["host_name"], "procs": 1, **same}
    return asdict(hello) | {"report": report, "port": 1, "clock": time.time()}


@contextlib.contextmanager
def _dialled(port: int) -> Iterator[socket.socket]:
    end = time.monotonic() + 10
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), 15)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)
    with sock:
        yield sock


@contextlib.contextmanager
def _connected(port: int) -> Iterator[Any]:
    with _dialled(port) as sock, _speaking(sock) as (send, receive):
        receive("identity")
        yield send, receive


@contextlib.contextmanager
def _speaking(sock: socket.socket) -> Iterator[Any]:
    with sock.makefile("rwb") as stream:

        def send(kind: str, **content: Any) -> None:
            stream.write(json.dumps({"kind": kind, **content}).encode() + b"\n")
            stream.flush()

        def receive(kind: str) -> dict[str, Any]:
            while (message := json.loads(stream.readline()))["kind"] != kind:
                pass
            return dict(message)

        yield send, receive


@contextlib.contextmanager
def _head(here: Launch) -> Iterator[Any]:
    """A head of whatever words, for one client at a time."""
    with socket.create_server(("127.0.0.1", here.port)) as server:
        sock = server.accept()[0]
    with sock, _speaking(sock) as (send, receive):
        send("identity", **_hello(here.given("a"), role="head"))
        yield send, receive


@contextlib.contextmanager
def _program(port: int, banner: bytes) -> Iterator[None]:
    """Something else that listens at the port, and says so much to everybody."""
    with socket.create_server(("127.0.0.1", port)) as server:
        conns: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    conns.append(server.accept()[0])
                    conns[-1].sendall(banner)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for conn in conns:
            conn.close()
