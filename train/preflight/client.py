"""A client's part: find the head, send it the report of this host, probe as it says, receive its verdict.

Owns how long a client looks for the head, and the findings of a client that does not reach it. Judges the program that
answers at the head's port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from train.base.console import plain
from train.base.nic import is_loopback
from train.preflight import links, messages
from train.preflight.common import REPLY_S, SILENT_S, Waiting, examined, is_bad, slack_s
from train.preflight.finding import Finding, ordered
from train.preflight.phrases import NamedHost
from train.preflight.report import (
    VERSION,
    Hello,
    Link,
    Peer,
    PreflightResult,
    Report,
    Verdict,
    parsed,
)
from train.preflight.settings import Settings
from train.preflight.wire import (
    Conn,
    Listener,
    WireError,
    background,
    bind,
    dial,
    is_own,
    is_store,
    resolve,
    within,
)
from train.run.layout import node_directory

# The pause between two attempts. In the first second it is _SOON_S, because hosts often start together.
_AGAIN_S = 0.25
_SOON_S = 0.05
# If a TCPStore answers at the head's port for this long, and no preflight does, a run is under way.
_STORE_S = 3.0
# If another program or host answers at the head's port for this long, the head will not come.
_SURE_S = 5.0
_LINE = 1000  # characters of a line from the head
# A faulty host looks for the head in order to report its fault. It gives up _FAULTY_S after the start or _HEARD_S after
# its checks, whichever is later.
_FAULTY_S = 6.0
_HEARD_S = 3.0
_ANSWER_S = 4.0
_STRANGERS = 64
_CONNECT_S = 1.5  # a second SYN goes out after 1 s
_PROGRAM = ("silent", "foreign", "broken")


async def join_head(
    settings: Settings, examine: Callable[[], Report], print_line: Callable[[str], None]
) -> PreflightResult:
    """Take part in a launch as a client, until the verdict comes or it is clear that none will come."""
    client = Client(settings, print_line)
    try:
        return await client.run(examine)
    finally:
        await client.close()


class Client:
    """One launch, seen from a host that is not its head."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings, self._waiting = settings, Waiting(say)
        self._began = time.monotonic()
        self._hello = Hello.from_settings(settings)
        self._search = Search(settings, self._hello)
        self._listener = Listener(self._answer, 2 * links.ALL_PAIRS + _STRANGERS)
        self._call: Conn | None = None
        self._head_listens = True
        self._called = asyncio.Event()
        self._attending = False
        self._launch = ""  # the launch's name, known once the head is found
        self._took_part = background(self._has_taken_part)
        self._silent_s = SILENT_S + slack_s(settings.nodes)
        self._verdict: Verdict | None = None
        self._links: Sequence[Link] = ()

    async def run(self, examine: Callable[[], Report]) -> PreflightResult:
        self._hello = replace(self._hello, port=await self._listener.open(bind(0, segment=0)))
        self._listening = asyncio.create_task(self._listen())
        self._report = await examined(self._settings, examine)
        self._examined_at = time.monotonic()
        while True:
            # Even if the head has called this host, try to connect to it, to see if that direction works.
            call = self._call
            conn = await self._search.attempt()
            if conn is None and call is not None and self._is_settled():
                conn = call
            if conn is not None:
                outcome = await self._attend(conn)
                conn.close()
                if call is not None:
                    call.close()
                    self._call = None
            else:
                outcome = self._end_alone()
            if outcome is not None:
                return outcome
            met = self._search
            self._waiting.print_if_due(
                messages.waits_for_head(self._settings, met.address, met.trouble)
            )
            await self._pause()

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._listener.close()

    async def _pause(self) -> None:
        """Wait before the next attempt. Do not wait if the head has just called."""
        young = time.monotonic() < self._began + 1
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._called.wait(), _SOON_S if young else _AGAIN_S)
        self._called.clear()

    async def _listen(self) -> None:
        """Listen on this host at `rendezvous.port`, where the head calls its clients. Do nothing on the head's machine."""
        with contextlib.suppress(WireError):
            if await self._is_heads_machine():
                return
        with contextlib.suppress(OSError, OverflowError):
            await self._listener.open(bind(self._settings.port))

    async def _is_heads_machine(self) -> bool:
        """True if the head runs on this machine.

        If the spec gives this host another address, the result is False: the head's name resolves to this machine by
        mistake.
        """
        head, own = self._settings.head, self._settings.own_address
        address = await resolve(head)
        if not is_own(address):
            return False
        meant = head in ("localhost", address) and is_loopback(address)
        return meant or not own or own == head or await resolve(own) == address

    async def _answer(self, conn: Conn) -> None:
        """Answer a connection. It may come from the head, from a neighbour that probes, or from another program."""
        conn.send("identity", **vars(self._hello))
        first = await conn.receive(_ANSWER_S)
        if first["kind"] == "probe":
            await links.serve(conn, self._launch, first)
        elif first["kind"] == "call" and self._call is None and not self._attending:
            with contextlib.suppress(ValueError):
                there = parsed(Hello, first)
                if (there.job, there.role) == (self._settings.job, "head"):
                    self._call, self._search.head = conn, there
                    self._head_listens = first.get("listens") is True
                    self._called.set()
                    await conn.until_closed()

    # --- without the head -------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        """True if the last attempt shows the reason why this host does not reach the head.

        A busy head may send no identity for a while. A program that has sent none for `_sure_s` is not the head.
        """
        met = self._search
        return not (self._head_listens and met.is_program and met.met_for_s < self._sure_s)

    @property
    def _sure_s(self) -> float:
        return _SURE_S + slack_s(self._settings.nodes)

    @property
    def _fault(self) -> Finding | None:
        """The fault that keeps this host from the head.

        A program at the head's port is a fault only after `_sure_s`. A head that finds its port taken calls this host and
        says so. Then the head reports the program, and this host does not.
        """
        met = self._search
        if met.is_program and not (self._head_listens and met.met_for_s >= self._sure_s):
            return None
        return met.fault

    def _end_alone(self) -> PreflightResult | None:
        """Return the outcome if this host ends without the head, or None if it goes on looking."""
        settings, search, now = self._settings, self._search, time.monotonic()
        bad = is_bad(settings, self._report.findings)
        if bad and now >= max(self._began + _FAULTY_S, self._examined_at + _HEARD_S):
            return self._outcome(self._fault)
        if self._fault and search.met_for_s >= self._sure_s:
            return self._outcome(self._fault)
        if search.trouble == "store" and not settings.check_only and self._joins() and not bad:
            return self._outcome(joined=True) if search.met_for_s >= _STORE_S else None
        if now >= self._began + settings.timeout_s:
            return self._outcome(messages.no_head(settings, search.address, search.trouble))
        return None

    def _joins(self) -> bool:
        """True if this host may join a run under way at the head's port: the job is elastic, or the host took part
        before."""
        elastic = self._settings.min_nodes < self._settings.nodes
        return elastic or (self._took_part.done() and self._took_part.result())

    def _has_taken_part(self) -> bool:
        settings = self._settings
        return os.path.exists(
            node_directory(settings.checkpoint_dir, settings.host_name) / "launch"
        )

    def _outcome(self, fault: Finding | None = None, joined: bool = False) -> PreflightResult:
        verdict = self._verdict or Verdict(False, ())
        findings = ordered([*verdict.findings, *self._report.findings, *filter(None, [fault])])
        reports = verdict.reports or [self._report]
        seen = verdict.links or self._links
        took = time.monotonic() - self._began
        return PreflightResult(
            findings, reports, seen, took, "" if joined else self._launch, joined, verdict.shown
        )

    # --- with the head ----------------------------------------------------------------------------

    async def _attend(self, conn: Conn) -> PreflightResult | None:
        """Do as the head says. If the other hosts have gathered without this host, the head hangs up. Return None then, so
        that the search goes on."""
        search, self._attending = self._search, True
        assert search.head is not None
        self._launch = search.head.instance
        own = ordered([*self._report.findings, *filter(None, [self._fault])])
        hello = replace(self._hello, way=search.trouble, to=search.address, clock=time.time())
        report = asdict(replace(self._report, findings=own))
        conn.send("hello", **vars(hello), report=report)
        admitted, probes = False, asyncio.create_task(asyncio.sleep(0))
        try:
            while True:
                message = await conn.receive(self._silent_s)
                kind = message["kind"]
                if kind == "wait":
                    admitted = True
                    self._waiting.print_if_due(plain(str(message.get("text", "")), _LINE))
                    conn.send("still")
                elif kind == "peers":
                    peers = [parsed(Peer, peer) for peer in message["peers"]]
                    probes = asyncio.create_task(self._probe(conn, peers))
                elif kind == "verdict":
                    self._verdict = Verdict.from_json(message)
                    conn.send("ack")
                    if not self._verdict.go:
                        return self._outcome()
                elif kind == "go" and self._verdict is not None:
                    return self._outcome()
        except (WireError, KeyError, ValueError, TypeError) as error:
            trouble = error.trouble if isinstance(error, WireError) else "foreign"
            if not admitted and trouble != "silent":
                return None
            self._verdict = None
            settings = self._settings
            return self._outcome(
                messages.head_gone(settings, search.address, trouble, self._silent_s)
            )
        finally:
            self._attending = False
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)

    async def _probe(self, conn: Conn, peers: Sequence[Peer]) -> None:
        source = self._report.address
        self._links = await links.probe(self._settings.host_name, source, peers, self._launch)
        conn.send("links", links=[vars(link) for link in self._links])


class Search:
    """Attempts to reach the head.

    `trouble`: the result of the last attempt. The head gives "", and a run under way gives "store". The head of another
    job gives "job". A preflight of this job that is not its head gives "other". WireError lists the other results.
    `address`: the address of that attempt.
    `head`: the identity that the head sent.
    """

    def __init__(self, settings: Settings, hello: Hello) -> None:
        self._settings, self._hello = settings, hello
        self.trouble, self.address = "", ""
        self.head: Hello | None = None
        self._fault: Finding | None = None
        self._since = time.monotonic()
        self._told = False

    async def attempt(self) -> Conn | None:
        """Try once to connect. Return the connection to the head of this job, or None."""
        before = self._kind()
        try:
            self.address = await resolve(self._settings.head)
            conn = await self._at_port()
            self.trouble = ""
            return conn
        except WireError as error:
            self.trouble = error.trouble
            return None
        finally:
            if self._kind() != before:
                self._since = time.monotonic()

    def _kind(self) -> str:
        return "program" if self.is_program else self.trouble

    @property
    def is_program(self) -> bool:
        """True if the last attempt met an unknown program."""
        return self.trouble in _PROGRAM

    @property
    def met_for_s(self) -> float:
        """Seconds for which the attempts have met the same trouble."""
        return time.monotonic() - self._since

    @property
    def fault(self) -> Finding | None:
        """The finding about a program, a host or another job that answers in place of the head; else None."""
        if self.is_program:
            return messages.another_program(self._settings, self.address, self.trouble)
        return self._fault if self.trouble in ("other", "job") else None

    async def _at_port(self) -> Conn:
        """Connect to the head. Raises WireError."""
        conn = await dial(self.address, self._settings.port, _CONNECT_S)
        try:
            there = parsed(Hello, await conn.receive(REPLY_S + slack_s(self._settings.nodes)))
        except (WireError, ValueError) as error:
            conn.abort()
            if await is_store(self.address, self._settings.port):
                raise WireError("store") from None
            raise error if isinstance(error, WireError) else WireError("foreign") from None
        if (there.job, there.preflight, there.role) == (self._settings.job, VERSION, "head"):
            self.head = there
            return conn
        try:
            raise WireError(self._made_of(there, conn))
        finally:
            conn.close()

    def _made_of(self, head_hello: Hello, conn: Conn) -> str:
        """Return the trouble for a preflight that is not this job's head, and keep its finding in `_fault`."""
        settings, met = self._settings, NamedHost(head_hello.host, self.address)
        if head_hello.job != settings.job:
            if head_hello.role != "head":
                return "foreign"
            me = NamedHost(settings.host_name)
            self._fault = messages.other_job(me, settings.job, met, head_hello.job, settings.port)
            if not self._told:  # so that the other job's head reports RANK004 as well
                conn.send("hello", **vars(self._hello))
            self._told = True
            return "job"
        if head_hello.instance == self._hello.instance:
            return "refused"  # this process has connected to its own port; NAME003 reports why the head's name leads to it
        if head_hello.preflight != VERSION:
            self._fault = messages.another_bundle(settings, met)
        elif head_hello.head != settings.head:
            head_told, head_here = f"the head {head_hello.head}", f"the head {settings.head}"
            self._fault = messages.disagree(
                settings, met, head_told, NamedHost(settings.host_name), head_here
            )
        else:
            head = NamedHost(settings.head, self.address)
            self._fault = messages.wrong_host(
                settings, settings.host_name, head, f"{met}, which is not the head"
            )
        return "other"
