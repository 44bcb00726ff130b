"""Hosts that meet, in any order, and what they are told: findings, ranks, other jobs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import socket
import threading
import time
from dataclasses import asdict
from typing import Any

import pytest

from tests.train.preflight.launches import WAIT_S, causes, codes
from tests.train.preflight.raw_peers import a_head, connected, hello
from tests.train.preflight.stub_host import parse
from train.preflight import messages, server
from train.preflight.checkin import meet
from train.preflight.common import Printer
from train.preflight.phrases import NamedHost
from train.preflight.report import Hello, Peer, PreflightResult, Report, parsed


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


# --- findings of the hosts and of the judge -------------------------------------------------------


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
    with connected(here.port):  # it listens
        pass
    second = here.thread("a")
    assert codes(second.result(WAIT_S)) in (["PORT001"], ["PORT002"])
    assert codes(here.thread("b").result(WAIT_S)) == codes(first.result(WAIT_S)) == []


def test_a_client_with_the_rank_of_the_head(launch: Any) -> None:
    here = launch(2)
    head = here.thread("a")
    settings = here.given("b", node_rank=0)
    with connected(here.port) as (send, receive):
        send("hello", **hello(settings, role="client"))
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
    with connected(here.port) as (send, receive):
        send("hello", **(hello(here.given("b")) | {"job": "x\x1b]0;y\x07\n" + "z" * 200}))
        assert receive("verdict")["findings"][0]["code"] == "RANK004"
    assert codes(here.thread("b").result(WAIT_S)) == codes(head.result(WAIT_S)) == []
    (line,) = here.said["a"]
    assert r"belongs to the job x\x1b]0;y\x07\nzzz" in line
    assert line.isprintable()
    assert len(line) < 250


def test_what_the_head_says_acts_upon_no_terminal(launch: Any) -> None:
    here = launch(2, timeout_s=8.0)
    client = here.thread("b")
    with a_head(here) as (send, receive):
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
