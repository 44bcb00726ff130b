"""The head's part, from the first guest to the verdict: gather, probe the links, judge, tell all.

Owns when each of these is over. The conversations with the guests are the desk's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from train.preflight import blame, links, ports
from train.preflight.asked import Asked
from train.preflight.calls import Calls
from train.preflight.desk import OVER, PROBE, TELL, Desk
from train.preflight.finding import Finding, ordered
from train.preflight.outcome import Outcome
from train.preflight.own import EXAMINED_S, SILENT_S, examined, is_bad, slack_s
from train.preflight.report import Link, Report
from train.preflight.verdict import Verdict
from train.preflight.wire import Door, background, bind, encode, within

_OTHERS_S = 1.0  # after a first error, for what else is wrong
_PROVES_S = 2.5  # … and for a host that was called, and tries its own way once more
_LATE_S = 4.0  # after the start: hosts that are started together come so much apart
_SETTLE_S = 3.0  # an elastic job begins so long after its last host came
_ACKNOWLEDGE_S = 2.0
_CLOSE_S = 1.0
_LOOK_S = 3.0  # for who has the port

Judge = Callable[[Sequence[Report], Sequence[Link]], list[Finding]]


async def receive_guests(
    asked: Asked, examine: Callable[[], Report], judge: Judge, say: Callable[[str], None]
) -> Outcome:
    """Be the head of a launch, until the verdict has been told to all who came."""
    head = Head(asked, judge, say)
    try:
        return await head.run(examine)
    finally:
        await head.close()


class Head:
    """One launch, seen from its head."""

    def __init__(self, asked: Asked, judge: Judge, say: Callable[[str], None]) -> None:
        self._asked, self._judge = asked, judge
        self._began = time.monotonic()
        self._desk = Desk(asked, say)
        self._door = Door(self._desk.answer, 2 * asked.nodes + 64)
        self._report: Report | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, examine: Callable[[], Report]) -> Outcome:
        """The whole exchange."""
        parts = [self._look(examine), self._desk.beat(), Calls(self._desk).run()]
        await self._open()
        self._tasks = [asyncio.create_task(part) for part in parts]
        going = await self._gather()
        verdict = await self._conclude(await self._probe() if going else [])
        seconds = time.monotonic() - self._began
        verdict = await self._tell(verdict)
        known = (verdict.findings, verdict.reports, verdict.links)
        return Outcome(*known, seconds, self._desk.token)

    async def close(self) -> None:
        """Stop listening: torchrun takes the port next."""
        self._desk.phase = OVER
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._door.close()

    async def _open(self) -> None:
        """Listen for guests, and for probes with packets of normal size."""
        desk, port = self._desk, self._asked.port
        desk.hello = replace(desk.hello, port=await self._door.open(bind(0, segment=0)))
        try:
            await self._door.open(bind(port))
        except (OSError, OverflowError) as error:
            refused = error if isinstance(error, OSError) else OSError(0, str(error))
            desk.listens = False
            desk.fail(await self._blamed(refused))

    async def _blamed(self, refused: OSError) -> Finding:
        """Who has the port. Nobody else is heard meanwhile, and a process may not let itself be read."""
        try:
            return await within(
                background(lambda: ports.listen_finding(self._asked, refused)), _LOOK_S
            )
        except asyncio.TimeoutError:
            return ports.listen_finding(self._asked, refused, proc=None)

    async def _look(self, examine: Callable[[], Report]) -> None:
        report = self._report = await examined(self._asked, examine)
        self._desk.resolved = report.resolved
        self._desk.roll.pending.discard(self._asked.node_rank)
        if is_bad(self._asked, report):
            self._desk.fail()

    # --- gather -----------------------------------------------------------------------------------

    async def _gather(self) -> bool:
        """Wait for the others; whether those who came can go on."""
        look, end = self._tasks[0], self._began + self._asked.patience_s
        look.add_done_callback(lambda _: self._desk.changed.set())
        while True:
            if look.done():
                look.result()  # an exception in the host's own checks ends everything
            now = time.monotonic()
            if self._is_ready(now):
                return self._desk.failed_at is None
            last = end + (EXAMINED_S if self._has_those_it_needs() else 0.0)
            if now >= last:
                return self._give_up()
            await self._until_changed(min(last, self._next_look(now)) - now)

    def _is_ready(self, now: float) -> bool:
        roll, failed_at = self._desk.roll, self._desk.failed_at
        if roll.is_full and not roll.pending and (failed_at is not None or roll.is_steady):
            return True
        if failed_at is not None:
            return now >= self._last_chance(failed_at)
        settled = now >= roll.last_arrival + _SETTLE_S and not roll.pending
        enough = self._desk.elastic and settled and roll.ready() >= self._asked.least
        return enough and roll.is_steady

    def _has_those_it_needs(self) -> bool:
        """Whether the only thing missing is what some of the hosts find at home, or their return."""
        roll = self._desk.roll
        came = len(roll.members) + 1
        return came >= self._asked.least and (bool(roll.pending) or not roll.is_steady)

    def _last_chance(self, failed_at: float) -> float:
        desk = self._desk
        # Who has come since then is heard out, too; but somebody may come again and again.
        arrived = min(max(failed_at, desk.roll.last_arrival), failed_at + _LATE_S) + _OTHERS_S
        if desk.roll.is_full:
            return arrived
        proving = any(desk.met.get(rank) == "" for rank in desk.roll.missing())
        proved = failed_at + (_PROVES_S if proving else _OTHERS_S)
        return max(proved, arrived, self._began + _LATE_S)

    def _next_look(self, now: float) -> float:
        failed_at = self._desk.failed_at
        if failed_at is not None:
            return self._last_chance(failed_at)
        settled = self._desk.roll.last_arrival + _SETTLE_S
        return settled if settled > now else now + _SETTLE_S

    def _give_up(self) -> bool:
        """At the end of all patience."""
        desk = self._desk
        for gone in [m for m in desk.roll.in_order() if m.conn is None]:
            desk.lose_left(gone)
        if desk.elastic and not desk.roll.pending and desk.roll.ready() >= self._asked.least:
            return desk.failed_at is None
        if len(desk.roll.members) + 1 < self._asked.least:
            for rank in desk.roll.missing():
                desk.fail(blame.absent(self._asked, rank, desk.met.get(rank)))
            return False
        for rank in sorted(desk.roll.pending):
            member = desk.roll.members.get(rank)
            name = member.name if member else blame.at(self._asked.me, self._asked.own_address)
            desk.fail(blame.hangs(name, "its own checks", EXAMINED_S))
        return False

    async def _until_changed(self, patience_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._desk.changed.wait(), max(0.001, patience_s))
        self._desk.changed.clear()

    async def _until_none(self, left: Collection[object], patience_s: float) -> None:
        end = time.monotonic() + patience_s
        while left and (now := time.monotonic()) < end:
            await self._until_changed(end - now)

    # --- probe ------------------------------------------------------------------------------------

    async def _probe(self) -> list[Link]:
        """Have each host probe its neighbours."""
        desk, asked, report = self._desk, self._asked, self._report
        assert report is not None
        desk.phase = PROBE
        members = desk.roll.in_order()
        desk.roll.owing = {member.hello.rank for member in members}
        own = links.Peer(asked.me, report.address or asked.head, desk.hello.port)
        peers = [own, *(links.Peer(m.hello.host, m.reached, m.hello.port) for m in members)]
        plan = [[peers[i] for i in row] for row in links.neighbours(len(peers))]
        for member, row in zip(members, plan[1:]):
            if member.conn is not None:
                member.conn.send("probe", peers=[vars(peer) for peer in row])
        seen = await links.probe(asked.me, report.address, plan[0], desk.token, desk.turns)
        await self._until_probed(links.BUDGET_S + SILENT_S + slack_s(asked.nodes))
        for member in desk.roll.in_order():
            seen += member.links or ()
        # What is said of a host that is gone says nothing of the network.
        here = {asked.me, *desk.roll.hosts()} - desk.lost
        return [link for link in seen if link.host in here and link.peer in here]

    async def _until_probed(self, patience_s: float) -> None:
        desk, end = self._desk, time.monotonic() + patience_s
        while desk.roll.owing and desk.failed_at is None:
            if (now := time.monotonic()) >= end:
                for member in [desk.roll.members[rank] for rank in desk.roll.owing]:
                    desk.lose_silent(member, patience_s)
                return
            await self._until_changed(end - now)

    # --- tell -------------------------------------------------------------------------------------

    async def _conclude(self, seen: Sequence[Link]) -> Verdict:
        """The verdict, from all that is known."""
        reports = [self._report] if self._report else []
        reports += [m.report for m in self._desk.roll.in_order() if m.report]
        # Of thousands of reports it takes a while; the heartbeats must go on.
        judged = await background(lambda: self._judge(reports, seen))
        return self._weighed(judged, reports, seen)

    def _weighed(
        self, judged: Sequence[Finding], reports: Sequence[Report], seen: Sequence[Link]
    ) -> Verdict:
        each = [finding for report in reports for finding in report.findings]
        findings = ordered([*self._desk.faults(), *each, *judged])
        bad = any(f.is_error and f.code not in self._asked.ignore for f in findings)
        return Verdict(not bad and self._desk.failed_at is None, findings, reports, seen)

    async def _tell(self, verdict: Verdict) -> Verdict:
        """Tell all. Nobody goes on before everybody has acknowledged: else one that is gone by then
        would leave the others hanging in the rendezvous. The verdict as it was told at last."""
        desk = self._desk
        desk.phase = TELL
        if verdict.go:
            for member in [m for m in desk.roll.in_order() if m.conn is None]:
                desk.lose_left(member)
            self._send(verdict)
            await self._until_none(desk.unheard, SILENT_S + slack_s(self._asked.nodes))
            for member in [m for m in desk.roll.connected() if m.conn in desk.unheard]:
                desk.lose_silent(member, SILENT_S)
            verdict = self._weighed(verdict.findings, verdict.reports, verdict.links)
        desk.phase = OVER
        if verdict.go:
            for member in desk.roll.connected():
                if member.conn is not None:
                    member.conn.send("go")
        else:
            self._send(verdict)
            await self._until_none(desk.unheard, _ACKNOWLEDGE_S)
        # They close first: then it is not this host's port that waits for stray packets.
        await self._until_none(desk.open, _CLOSE_S)
        return verdict

    def _send(self, verdict: Verdict) -> None:
        line = encode("verdict", **verdict.as_json())
        desk = self._desk
        guests = [member.conn for member in desk.roll.connected() if member.conn is not None]
        for conn in [*guests, *desk.turned]:
            desk.unheard.add(conn)
            conn.write(line)
