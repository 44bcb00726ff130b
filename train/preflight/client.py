"""A client's part: find the head, tell it about this host, do as it says, hear the verdict.

Owns how long a client goes on without the head, and what it says of that by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from train.layout import node_directory
from train.nic import is_loopback
from train.preflight import links, messages
from train.preflight.common import (
    SILENT_S,
    Hello,
    Waiting,
    examined,
    is_bad,
    new_instance,
    printable,
    slack_s,
)
from train.preflight.finding import Finding, ordered
from train.preflight.report import Link, Report, number
from train.preflight.search import Search
from train.preflight.settings import Settings
from train.preflight.verdict import Outcome, Verdict
from train.preflight.wire import (
    Conn,
    Listener,
    Message,
    WireError,
    background,
    bind,
    is_own,
    resolve,
    within,
)

_AGAIN_S = 0.25
_SOON_S = 0.05  # at first: hosts that are started together come within a moment
_STORE_S = 3.0  # a run's store and no preflight for so long: the run is under way
_PROGRAM_S = 5.0
_JOB_S = 2.0
_LOST_S = 3.0  # to find the head again
_EVERY_S = (0.5, 60.0)  # between heartbeats
_LINE = 1000  # characters of the head's words
_FAULTY_S = 6.0  # after the start, and …
_HEARD_S = 3.0  # … after its checks: so long a faulty host looks for the head to tell it
_ANSWER_S = 4.0
_STRANGERS = 64


async def join_head(
    settings: Settings, examine: Callable[[], Report], say: Callable[[str], None]
) -> Outcome:
    """Be a client of a launch, until the verdict is there or it is clear that none will come."""
    client = Client(settings, say)
    try:
        return await client.run(examine)
    finally:
        await client.close()


class Client:
    """One launch, seen from a host that is not its head."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings, self._waiting = settings, Waiting(say)
        self._began = self._since = time.monotonic()  # since: from when on patience counts
        self._hello = Hello.of(settings, new_instance(), 0)
        self._search = Search(settings, self._hello)
        self._listener = Listener(self._answer, 2 * links.ALL_PAIRS + _STRANGERS)
        self._own: list[Finding] = []
        self._turns = links.Turns()
        self._call: Conn | None = None
        self._head_listens = False
        self._called = asyncio.Event()
        self._token, self._doing = "", "it checked in"
        self._lost: tuple[str, float] | None = None  # the trouble, and when
        self._late = False
        self._took_part = background(self._has_taken_part)
        self._tasks: list[asyncio.Task[None]] = []
        self._report: asyncio.Task[Report] | None = None
        self._reported_at = 0.0
        self._silent_s = SILENT_S + slack_s(settings.nodes)
        self._attending = False
        self._verdict: Verdict | None = None
        self._links: Sequence[Link] = ()

    async def run(self, examine: Callable[[], Report]) -> Outcome:
        """The whole exchange."""
        self._report = asyncio.create_task(examined(self._settings, examine))
        self._report.add_done_callback(self._note_report)
        self._hello = replace(self._hello, port=await self._listener.open(bind(0, segment=0)))
        self._tasks.append(asyncio.create_task(self._listen()))
        while True:
            found = await self._find()
            if isinstance(found, Outcome):
                return found
            outcome = await self._attend(found)
            found.close()
            outcome = outcome or self._end_alone()
            if outcome is not None:
                return outcome
            await asyncio.sleep(_AGAIN_S)

    async def close(self) -> None:
        """Stop listening."""
        tasks = [*self._tasks, *([self._report] if self._report else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.close()

    def _note_report(self, task: asyncio.Task[Report]) -> None:
        self._reported_at = time.monotonic()

    async def _listen(self) -> None:
        """At the head's port, too: the head calls there. Not where the head is this very machine."""
        with contextlib.suppress(WireError):
            if await self._is_heads_machine():
                return
        with contextlib.suppress(OSError, OverflowError):
            await self._listener.open(bind(self._settings.port))

    async def _is_heads_machine(self) -> bool:
        """Whether the head is to listen here; a name that only leads astray says no such thing."""
        head, own = self._settings.head, self._settings.own_address
        address = await resolve(head)
        if not is_own(address):
            return False
        meant = head in ("localhost", address) and is_loopback(address)
        return meant or not own or own == head or await resolve(own) == address

    async def _answer(self, conn: Conn) -> None:
        """Somebody has connected: the head, a neighbour that probes, or who knows."""
        conn.send("identity", **self._hello.as_json())
        first = await conn.receive(_ANSWER_S)
        if first["kind"] == "probe":
            await links.serve(conn, self._token, first, self._turns)
        elif first["kind"] == "call" and self._call is None and not self._attending:
            with contextlib.suppress(ValueError):
                there = Hello.from_json(first)
                if (there.job, there.role) == (self._settings.job, "head"):
                    self._call, self._head_listens = conn, first.get("listens") is True
                    self._called.set()
                    await conn.until_closed()

    # --- finding the head -------------------------------------------------------------------------

    async def _find(self) -> Conn | Outcome:
        """A connection to the head, or how it ended without one."""
        while True:
            if conn := await self._search.attempt():
                return conn
            self._note_faults()
            if call := self._call:
                return await self._prove(call)
            if (outcome := self._end_alone()) is not None:
                return outcome
            self._waiting.tell(self._waits_for())
            with contextlib.suppress(asyncio.TimeoutError):
                young = time.monotonic() < self._began + 1
                await within(self._called.wait(), _SOON_S if young else _AGAIN_S)

    def _waits_for(self) -> str:
        settings, met = self._settings, self._search
        if self._late:
            return messages.waits_for_run(settings)
        return messages.waits_for_head(settings, met.address, met.trouble)

    async def _prove(self, call: Conn) -> Conn:
        """The head has called, so it listens: try once more whether this host can reach it."""
        self._called.clear()
        conn = None
        if not self._own and self._search.trouble != "unresolved":
            conn = await self._search.attempt_again()
        self._call = None
        if conn is None:
            if self._search.is_program and self._head_listens and not self._own:
                self._blame_program()
            return call
        call.close()
        return conn

    def _note_faults(self) -> None:
        search = self._search
        if search.fault is not None and search.trouble == "other" and not self._own:
            self._own.append(search.fault)
        timeout_s = _PROGRAM_S + slack_s(self._settings.nodes)
        if search.is_program and not self._own and search.met_for_s >= timeout_s:
            self._blame_program()

    def _blame_program(self) -> None:
        met = self._search
        self._own.append(messages.another_program(self._settings, met.address, met.trouble))

    def _end_alone(self) -> Outcome | None:
        """Whether, and how, this host ends without the head."""
        settings, search, now = self._settings, self._search, time.monotonic()
        joins = search.trouble == "store" and self._joins()
        if self._lost and now >= self._lost[1] + _LOST_S and not joins:
            return self._without_head(self._lost_head())
        if search.trouble == "job" and search.fault and search.met_for_s >= _JOB_S:
            return self._without_head(search.fault)
        report = self._known_report()
        if report is not None and (self._own or is_bad(settings, report)):
            if now >= max(self._began + _FAULTY_S, self._reported_at + _HEARD_S):
                return self._without_head()
        elif report is not None and joins:
            return self._outcome(joined=True) if search.met_for_s >= _STORE_S else None
        elif now >= self._since + settings.timeout_s:
            none = messages.no_head(settings, search.address, search.trouble)
            return self._without_head(self._lost_head() if self._lost else none)
        return None

    def _joins(self) -> bool:
        """Whether a run under way at the head's port is meant for this host, and no stranger's."""
        elastic = self._settings.least < self._settings.nodes
        return elastic or (self._took_part.done() and self._took_part.result())

    def _has_taken_part(self) -> bool:
        settings = self._settings
        return os.path.exists(node_directory(settings.checkpoint_dir, settings.me) / "launch")

    def _known_report(self) -> Report | None:
        """This host's, once it is there. Raises what its checks raised."""
        return self._report.result() if self._report and self._report.done() else None

    def _lost_head(self) -> Finding:
        assert self._lost is not None
        name = messages.at(messages.head_name(self._settings), self._search.address)
        # Where its host still answers, it is not the network.
        if self._lost[0] == "broken" and self._search.trouble != "timeout":
            return messages.left(self._settings, name, "it gathered the hosts")
        return messages.hangs(name, "it gathered the hosts", SILENT_S)

    def _without_head(self, *faults: Finding) -> Outcome:
        return self._outcome([*self._own, *faults])

    def _outcome(self, findings: Sequence[Finding] = (), joined: bool = False) -> Outcome:
        report = self._known_report()
        own = report.findings if report else ()
        verdict = self._verdict
        reports = (verdict.reports if verdict else ()) or ([report] if report else [])
        seen = (verdict.links if verdict else ()) or self._links
        told = verdict.findings if verdict else ()
        took = time.monotonic() - self._began
        every = ordered([*told, *own, *findings])
        return Outcome(every, reports, seen, took, "" if joined else self._token, joined)

    # --- with the head ----------------------------------------------------------------------------

    async def _attend(self, conn: Conn) -> Outcome | None:
        """Do as the head says; None when it is gone before the verdict, or is through already."""
        met, self._attending = self._search, True
        way = replace(self._hello, way=met.trouble, to=met.address)
        conn.send("hello", **way.as_json())
        jobs: list[asyncio.Task[None]] = []
        try:
            while True:
                message = await conn.receive(self._silent_s)
                self._known_report()
                if message["kind"] == "late":
                    self._be_late()
                    return None
                if self._obey(conn, message, jobs):
                    return self._outcome()
        except (WireError, KeyError, ValueError, TypeError) as error:
            return self._break(error.trouble if isinstance(error, WireError) else "foreign")
        finally:
            self._attending = False
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def _be_late(self) -> None:
        """The hosts have gathered without this one: it joins their run, if they can do without it."""
        if self._settings.least == self._settings.nodes:
            self._lose("broken")
            return
        if not self._late:
            self._since = time.monotonic()
        self._late, self._token, self._lost = True, "", None

    def _break(self, trouble: str) -> Outcome | None:
        # Whom the head has not greeted, it may have had no time for.
        if self._token or trouble == "silent":
            self._lose(trouble)
        self._verdict = None
        return self._without_head(self._lost_head()) if trouble == "silent" else None

    def _lose(self, trouble: str) -> None:
        if self._lost is None:
            self._since = time.monotonic()
        self._lost = (trouble, self._since)

    def _obey(self, conn: Conn, message: Message, jobs: list[asyncio.Task[None]]) -> bool:
        """Whether that was the last word. Raises KeyError, ValueError or TypeError for nonsense."""
        kind = message["kind"]
        if kind == "wait":
            self._waiting.tell(printable(str(message.get("text", "")), _LINE))
            conn.send("still", token=self._token, doing=self._doing)
        elif kind == "greet":
            self._silent_s = SILENT_S * number(message["every"], *_EVERY_S)
            self._token, self._lost = str(message["token"]), None
            self._late = False
            conn.send("here", token=self._token, clock=time.time())
            jobs.append(asyncio.create_task(self._send_report(conn)))
        elif kind == "probe":
            peers = [links.Peer.from_json(peer) for peer in message["peers"]]
            jobs.append(asyncio.create_task(self._probe(conn, peers)))
        elif kind == "verdict":
            self._verdict = Verdict.from_json(message)
            self._doing = "it heard the verdict"
            conn.send("ack", token=self._token)
            return not self._verdict.go
        return kind == "go" and self._verdict is not None

    async def _send_report(self, conn: Conn) -> None:
        assert self._report is not None
        self._doing = "its own checks"
        report = await asyncio.shield(self._report)
        self._doing = "it reported its own checks"
        own = tuple(ordered([*report.findings, *self._own]))
        conn.send("report", token=self._token, report=replace(report, findings=own).as_json())

    async def _probe(self, conn: Conn, peers: Sequence[links.Peer]) -> None:
        assert self._report is not None
        self._doing = "it probed the other hosts"
        source = self._report.result().address
        self._links = await links.probe(self._settings.me, source, peers, self._token, self._turns)
        conn.send("links", token=self._token, links=[link.as_json() for link in self._links])
        self._doing = "it told how it reaches the other hosts"
