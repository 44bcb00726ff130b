"""The head's part, from the first client to the verdict: gather, probe the links, judge, tell all.

Owns when each of these is over. The conversations with the clients are the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from train.preflight import links, messages, ports
from train.preflight.calls import Calls
from train.preflight.common import EXAMINED_S, SILENT_S, examined, is_bad, slack_s
from train.preflight.finding import Finding, ordered
from train.preflight.report import Link, Report
from train.preflight.server import OVER, PROBE, TELL, Server
from train.preflight.settings import Settings
from train.preflight.verdict import Outcome, Verdict
from train.preflight.wire import Listener, background, bind, encode, within

_OTHERS_S = 1.0  # after a first error, for what else is wrong
_PROVES_S = 2.5  # … and for a host that was called, and tries its own way once more
_LATE_S = 4.0  # after the start: hosts that are started together come so much apart
_SETTLE_S = 3.0  # an elastic job begins so long after its last host came
_ACKNOWLEDGE_S = 2.0
_CLOSE_S = 1.0
_LOOK_S = 3.0  # for who has the port

Judge = Callable[[Sequence[Report], Sequence[Link]], list[Finding]]


async def receive_clients(
    settings: Settings, examine: Callable[[], Report], judge: Judge, say: Callable[[str], None]
) -> Outcome:
    """Be the head of a launch, until the verdict has been told to all who came."""
    head = Head(settings, judge, say)
    try:
        return await head.run(examine)
    finally:
        await head.close()


class Head:
    """One launch, seen from its head."""

    def __init__(self, settings: Settings, judge: Judge, say: Callable[[str], None]) -> None:
        self._settings, self._judge = settings, judge
        self._began = time.monotonic()
        self._server = Server(settings, say)
        self._listener = Listener(self._server.answer, 2 * settings.nodes + 64)
        self._report: Report | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, examine: Callable[[], Report]) -> Outcome:
        """The whole exchange."""
        parts = [self._look(examine), self._server.beat(), Calls(self._server).run()]
        await self._open()
        self._tasks = [asyncio.create_task(part) for part in parts]
        going = await self._gather()
        verdict = await self._conclude(await self._probe() if going else [])
        seconds = time.monotonic() - self._began
        verdict = await self._tell(verdict)
        known = (verdict.findings, verdict.reports, verdict.links)
        return Outcome(*known, seconds, self._server.token)

    async def close(self) -> None:
        """Stop listening: torchrun takes the port next."""
        self._server.phase = OVER
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.close()

    async def _open(self) -> None:
        """Listen for clients, and for probes with packets of normal size."""
        server, port = self._server, self._settings.port
        server.hello = replace(server.hello, port=await self._listener.open(bind(0, segment=0)))
        try:
            await self._listener.open(bind(port))
        except (OSError, OverflowError) as error:
            refused = error if isinstance(error, OSError) else OSError(0, str(error))
            server.listens = False
            server.fail(await self._blamed(refused))

    async def _blamed(self, refused: OSError) -> Finding:
        """Who has the port. Nobody else is heard meanwhile, and a process may not let itself be read."""
        try:
            return await within(
                background(lambda: ports.listen_finding(self._settings, refused)), _LOOK_S
            )
        except asyncio.TimeoutError:
            return ports.listen_finding(self._settings, refused, proc=None)

    async def _look(self, examine: Callable[[], Report]) -> None:
        report = self._report = await examined(self._settings, examine)
        self._server.resolved = report.resolved
        self._server.membership.pending.discard(self._settings.node_rank)
        if is_bad(self._settings, report):
            self._server.fail()

    # --- gather -----------------------------------------------------------------------------------

    async def _gather(self) -> bool:
        """Wait for the others; whether those who came can go on."""
        look, end = self._tasks[0], self._began + self._settings.timeout_s
        look.add_done_callback(lambda _: self._server.changed.set())
        while True:
            if look.done():
                look.result()  # an exception in the host's own checks ends everything
            now = time.monotonic()
            if self._is_ready(now):
                return self._server.failed_at is None
            last = end + (EXAMINED_S if self._has_those_it_needs() else 0.0)
            if now >= last:
                return self._give_up()
            await self._until_changed(min(last, self._next_look(now)) - now)

    def _is_ready(self, now: float) -> bool:
        membership, failed_at = self._server.membership, self._server.failed_at
        if (
            membership.is_full
            and not membership.pending
            and (failed_at is not None or membership.is_steady)
        ):
            return True
        if failed_at is not None:
            return now >= self._last_chance(failed_at)
        settled = now >= membership.last_arrival + _SETTLE_S and not membership.pending
        enough = self._server.elastic and settled and membership.ready() >= self._settings.least
        return enough and membership.is_steady

    def _has_those_it_needs(self) -> bool:
        """Whether the only thing missing is what some of the hosts find at home, or their return."""
        membership = self._server.membership
        came = len(membership.members) + 1
        return came >= self._settings.least and (
            bool(membership.pending) or not membership.is_steady
        )

    def _last_chance(self, failed_at: float) -> float:
        server = self._server
        # Who has come since then is heard out, too; but somebody may come again and again.
        arrived = (
            min(max(failed_at, server.membership.last_arrival), failed_at + _LATE_S) + _OTHERS_S
        )
        if server.membership.is_full:
            return arrived
        proving = any(server.met.get(rank) == "" for rank in server.membership.missing())
        proved = failed_at + (_PROVES_S if proving else _OTHERS_S)
        return max(proved, arrived, self._began + _LATE_S)

    def _next_look(self, now: float) -> float:
        failed_at = self._server.failed_at
        if failed_at is not None:
            return self._last_chance(failed_at)
        settled = self._server.membership.last_arrival + _SETTLE_S
        return settled if settled > now else now + _SETTLE_S

    def _give_up(self) -> bool:
        """At the end of all patience."""
        server = self._server
        for gone in [m for m in server.membership.in_order() if m.conn is None]:
            server.lose_left(gone)
        if (
            server.elastic
            and not server.membership.pending
            and server.membership.ready() >= self._settings.least
        ):
            return server.failed_at is None
        if len(server.membership.members) + 1 < self._settings.least:
            for rank in server.membership.missing():
                server.fail(messages.absent(self._settings, rank, server.met.get(rank)))
            return False
        for rank in sorted(server.membership.pending):
            member = server.membership.members.get(rank)
            name = (
                member.name
                if member
                else messages.at(self._settings.me, self._settings.own_address)
            )
            server.fail(messages.hangs(name, "its own checks", EXAMINED_S))
        return False

    async def _until_changed(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._server.changed.wait(), max(0.001, timeout_s))
        self._server.changed.clear()

    async def _until_none(self, left: Collection[object], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while left and (now := time.monotonic()) < end:
            await self._until_changed(end - now)

    # --- probe ------------------------------------------------------------------------------------

    async def _probe(self) -> list[Link]:
        """Have each host probe its neighbours."""
        server, settings, report = self._server, self._settings, self._report
        assert report is not None
        server.phase = PROBE
        members = server.membership.in_order()
        server.membership.owing = {member.hello.rank for member in members}
        own = links.Peer(settings.me, report.address or settings.head, server.hello.port)
        peers = [own, *(links.Peer(m.hello.host, m.reached, m.hello.port) for m in members)]
        plan = [[peers[i] for i in row] for row in links.neighbours(len(peers))]
        for member, row in zip(members, plan[1:]):
            if member.conn is not None:
                member.conn.send("probe", peers=[vars(peer) for peer in row])
        seen = await links.probe(settings.me, report.address, plan[0], server.token, server.turns)
        await self._until_probed(links.BUDGET_S + SILENT_S + slack_s(settings.nodes))
        for member in server.membership.in_order():
            seen += member.links or ()
        # What is said of a host that is gone says nothing of the network.
        here = {settings.me, *server.membership.hosts()} - server.lost
        return [link for link in seen if link.host in here and link.peer in here]

    async def _until_probed(self, timeout_s: float) -> None:
        server, end = self._server, time.monotonic() + timeout_s
        while server.membership.owing and server.failed_at is None:
            if (now := time.monotonic()) >= end:
                for member in [server.membership.members[rank] for rank in server.membership.owing]:
                    server.lose_silent(member, timeout_s)
                return
            await self._until_changed(end - now)

    # --- tell -------------------------------------------------------------------------------------

    async def _conclude(self, seen: Sequence[Link]) -> Verdict:
        """The verdict, from all that is known."""
        reports = [self._report] if self._report else []
        reports += [m.report for m in self._server.membership.in_order() if m.report]
        # Of thousands of reports it takes a while; the heartbeats must go on.
        judged = await background(lambda: self._judge(reports, seen))
        return self._weighed(judged, reports, seen)

    def _weighed(
        self, judged: Sequence[Finding], reports: Sequence[Report], seen: Sequence[Link]
    ) -> Verdict:
        each = [finding for report in reports for finding in report.findings]
        findings = ordered([*self._server.faults(), *each, *judged])
        bad = any(f.is_error and f.code not in self._settings.ignore for f in findings)
        return Verdict(not bad and self._server.failed_at is None, findings, reports, seen)

    async def _tell(self, verdict: Verdict) -> Verdict:
        """Tell all. Nobody goes on before everybody has acknowledged: else one that is gone by then
        would leave the others hanging in the rendezvous. The verdict as it was told at last."""
        server = self._server
        server.phase = TELL
        if verdict.go:
            for member in [m for m in server.membership.in_order() if m.conn is None]:
                server.lose_left(member)
            self._send(verdict)
            await self._until_none(server.unheard, SILENT_S + slack_s(self._settings.nodes))
            for member in [m for m in server.membership.connected() if m.conn in server.unheard]:
                server.lose_silent(member, SILENT_S)
            verdict = self._weighed(verdict.findings, verdict.reports, verdict.links)
        server.phase = OVER
        if verdict.go:
            for member in server.membership.connected():
                if member.conn is not None:
                    member.conn.send("go")
        else:
            self._send(verdict)
            await self._until_none(server.unheard, _ACKNOWLEDGE_S)
        # They close first: then it is not this host's port that waits for stray packets.
        await self._until_none(server.open, _CLOSE_S)
        return verdict

    def _send(self, verdict: Verdict) -> None:
        line = encode("verdict", **verdict.as_json())
        server = self._server
        clients = [
            member.conn for member in server.membership.connected() if member.conn is not None
        ]
        for conn in [*clients, *server.turned]:
            server.unheard.add(conn)
            conn.write(line)
