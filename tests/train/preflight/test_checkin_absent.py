"""Hosts that leave, hang, never come or cannot reach the head, and elastic jobs that go on without them."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from dataclasses import asdict
from typing import Any

import pytest

from tests.train.preflight.launches import WAIT_S, Launch, causes, codes, severities
from tests.train.preflight.raw_peers import a_program, connected, hello
from tests.train.preflight.stub_host import parse
from train.preflight import ports, server
from train.preflight.report import Hello, Link, Report
from train.preflight.server import Server
from train.preflight.wire import SEGMENT, Conn, WireError, bind, dial

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
    with connected(here.port) as (send, receive):
        send("hello", **hello(here.given("c")))
        receive("peers")
        send("links", links=[])
        assert receive("verdict")["go"] is True
        if stays:
            started[1].result(WAIT_S)
    for each in started:
        outcome = each.result(WAIT_S)
        assert codes(outcome) == [code]
        assert "c (127.0.0.3)" in causes(outcome)[0]


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
    with a_program(here.port, b""):
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
    with a_program(here.port, b""):
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
    assert [severities(each) for each in outcomes] == [
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
    assert [severities(each) for each in outcomes] == [
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
    assert [severities(each.result(WAIT_S)) for each in started] == [[("HOST003", "warning")]] * 2


def test_an_elastic_job_with_too_few_hosts_fails_at_the_end_of_patience(launch: Any) -> None:
    here = launch(4, min_nodes=3, timeout_s=4.0)
    outcomes = here.meet("ab")
    assert [codes(each) for each in outcomes] == [["HOST001", "HOST001"]] * 2
