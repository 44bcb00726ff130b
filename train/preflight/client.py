"""A client's part: find the head, tell it about this host, do as it says, hear the verdict.

Owns how long a client goes on without the head, what is made of who answers at the head's port, and what
a client says of that by itself.
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
from train.preflight.common import SILENT_S, Waiting, examined, is_bad, slack_s
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
)
from train.run.layout import node_directory

_AGAIN_S = 0.25
_SOON_S = 0.05  # at first: hosts that are started together come within a moment
_STORE_S = 3.0  # a run's store and no preflight for so long: the run is under way
_SURE_S = 5.0  # somebody else at the head's port for so long: the head will not come
_LINE = 1000  # characters of the head's words
_FAULTY_S = 6.0  # after the start, and …
_HEARD_S = 3.0  # … after its checks: so long a faulty host looks for the head to tell it
_ANSWER_S = 4.0
_REPLY_S = 1.0  # for the identity at the head's port
_STRANGERS = 64
_CONNECT_S = 1.5  # a second SYN goes out after 1 s
_PROGRAM = ("silent", "foreign", "broken")


async def join_head(
    settings: Settings, examine: Callable[[], Report], say: Callable[[str], None]
) -> PreflightResult:
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
        self._began = time.monotonic()
        self._hello = Hello.of(settings)
        self._search = Search(settings, self._hello)
        self._listener = Listener(self._answer, 2 * links.ALL_PAIRS + _STRANGERS)
        self._launch = ""  # the name of it, as soon as the head is found
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
            conn = await self._search.attempt()
            if conn is not None:
                outcome = await self._attend(conn)
                conn.close()
            else:
                outcome = self._end_alone()
            if outcome is not None:
                return outcome
            met = self._search
            self._waiting.tell(messages.waits_for_head(self._settings, met.address, met.trouble))
            young = time.monotonic() < self._began + 1
            await asyncio.sleep(_SOON_S if young else _AGAIN_S)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._listener.close()

    async def _listen(self) -> None:
        """Listen at the head's port too, so that a host that is led here in place of the head hears who this
        is. Leave the port to the head if the head is this very machine."""
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
        """Somebody has connected: a neighbour that probes, or a host that was led here by mistake."""
        conn.send("identity", **vars(self._hello))
        first = await conn.receive(_ANSWER_S)
        if first["kind"] == "probe":
            await links.serve(conn, self._launch, first)

    # --- without the head -------------------------------------------------------------------------

    def _end_alone(self) -> PreflightResult | None:
        """Whether, and how, this host ends without the head."""
        settings, search, now = self._settings, self._search, time.monotonic()
        bad = is_bad(settings, self._report.findings)
        # A head that is busy may be slow to answer, and passes for another program at first.
        sure = search.met_for_s >= _SURE_S + slack_s(settings.nodes)
        fault = search.fault if sure else None
        if fault or (bad and now >= max(self._began + _FAULTY_S, self._examined_at + _HEARD_S)):
            return self._outcome(fault)
        if search.trouble == "store" and self._joins() and not bad:
            return self._outcome(joined=True) if search.met_for_s >= _STORE_S else None
        if now >= self._began + settings.timeout_s:
            return self._outcome(messages.no_head(settings, search.address, search.trouble))
        return None

    def _joins(self) -> bool:
        """Whether a run under way at the head's port is meant for this host, and no stranger's."""
        elastic = self._settings.least < self._settings.nodes
        return elastic or (self._took_part.done() and self._took_part.result())

    def _has_taken_part(self) -> bool:
        settings = self._settings
        return os.path.exists(node_directory(settings.checkpoint_dir, settings.me) / "launch")

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
        """Do as the head says; None where it hangs up before it has let this host in: the hosts may have
        gathered without it."""
        assert self._search.head is not None
        self._launch = self._search.head.instance
        hello = replace(self._hello, clock=time.time())
        conn.send("hello", **vars(hello), report=asdict(self._report))
        admitted, probes = False, asyncio.create_task(asyncio.sleep(0))
        try:
            while True:
                message = await conn.receive(self._silent_s)
                kind = message["kind"]
                if kind == "wait":
                    admitted = True
                    self._waiting.tell(plain(str(message.get("text", "")), _LINE))
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
            address, silent_s = self._search.address, self._silent_s
            return self._outcome(messages.head_gone(self._settings, address, trouble, silent_s))
        finally:
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)

    async def _probe(self, conn: Conn, peers: Sequence[Peer]) -> None:
        source = self._report.address
        self._links = await links.probe(self._settings.me, source, peers, self._launch)
        conn.send("links", links=[vars(link) for link in self._links])


class Search:
    """Attempts at the head. `trouble`: what the last one met (a word of WireError, "store" for a run
    under way, "other" for another host of the job, "job" for the head of another one; "" for the
    head); `address`: where it went; `head`: who the head said it is."""

    def __init__(self, settings: Settings, hello: Hello) -> None:
        self._settings, self._hello = settings, hello
        self.trouble, self.address = "", ""
        self.head: Hello | None = None
        self._fault: Finding | None = None
        self._since = time.monotonic()
        self._told = False

    async def attempt(self) -> Conn | None:
        """One attempt: a connection to the head of this job, or None."""
        before, began = self._kind(), time.monotonic()
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
                self._since = began

    def _kind(self) -> str:
        return "program" if self.is_program else self.trouble

    @property
    def is_program(self) -> bool:
        """Whether something answers that is no preflight of this job, and no run under way."""
        return self.trouble in _PROGRAM

    @property
    def met_for_s(self) -> float:
        """For how many seconds it has been like that."""
        return time.monotonic() - self._since

    @property
    def fault(self) -> Finding | None:
        """What answers there, where it is not the head and will not become it."""
        if self.is_program:
            return messages.another_program(self._settings, self.address, self.trouble)
        return self._fault if self.trouble in ("other", "job") else None

    async def _at_port(self) -> Conn:
        """Raises WireError."""
        conn = await dial(self.address, self._settings.port, _CONNECT_S)
        try:
            there = parsed(Hello, await conn.receive(_REPLY_S + slack_s(self._settings.nodes)))
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

    def _made_of(self, there: Hello, conn: Conn) -> str:
        """The trouble with somebody's preflight that is not that of this job's head."""
        settings, met = self._settings, NamedHost(there.host, self.address)
        if there.job != settings.job:
            if there.role != "head":
                return "foreign"
            me = NamedHost(settings.me)
            self._fault = messages.other_job(me, settings.job, met, there.job, settings.port)
            if not self._told:  # so that it is said there as well
                conn.send("hello", **vars(self._hello))
            self._told = True
            return "job"
        if there.instance == self._hello.instance:
            return "refused"  # this very process: what to make of it the host's checks know
        if there.preflight != VERSION:
            self._fault = messages.another_bundle(settings, met)
        elif there.head != settings.head:
            theirs, ours = f"the head {there.head}", f"the head {settings.head}"
            self._fault = messages.disagree(settings, met, theirs, NamedHost(settings.me), ours)
        else:
            self._fault = messages.wrong_host(settings, met)
        return "other"
