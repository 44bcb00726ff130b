"""The head's part, from the first client to the verdict: gather, probe the links, judge, tell all.

Decides when each of these phases ends. server.py has the conversations with the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from train.preflight import links, messages, ports
from train.preflight.common import SILENT_S, examined, is_bad, slack_s
from train.preflight.finding import Finding, eased, ordered
from train.preflight.report import Link, Peer, PreflightResult, Report, Verdict
from train.preflight.server import OVER, PROBE, TELL, Server
from train.preflight.settings import Settings
from train.preflight.wire import Listener, background, bind, encode, within

_OTHERS_S = 1.0  # after the first error, so that more hosts can report their faults
_PROVES_S = (
    2.5  # instead, if the head has called a missing host, which now looks for the head once more
)
# Seconds from the start. By then, a host that was started together with this one has done its checks.
_LATE_S = 6.5
_SETTLE_S = 3.0  # from the last host's arrival to the beginning of an elastic job
_ACKNOWLEDGE_S = 2.0
_CLOSE_S = 1.0
_SHOW_S = 2.5  # to show the verdict: a terminal may be paused, a file server may not answer
_LOOK_S = 3.0  # for the search of the port's holder
_POLL_S = 0.25
_OTHER_FILES = 128  # open in addition to the clients' connections

Judge = Callable[[Sequence[Report], Sequence[Link]], "list[Finding]"]
Publish = Callable[[PreflightResult], object]


async def receive_clients(
    settings: Settings,
    examine: Callable[[], Report],
    judge: Judge,
    publish: Publish,
    print_line: Callable[[str], None],
) -> PreflightResult:
    """Take part in a launch as its head, until all hosts that came have the verdict."""
    began = time.monotonic()
    report = await examined(settings, examine)
    # Raise the limit on open files only now, because the checks report the one that this process was started with.
    _allow_files(settings.nodes + _OTHER_FILES)
    head = Head(settings, report, judge, publish, print_line, began)
    try:
        return await head.run()
    finally:
        await head.close()


def _allow_files(count: int) -> None:
    """Raise the soft limit to `count` open files, or as far as the hard limit allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        count = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class Head:
    """One launch, seen from its head."""

    def __init__(
        self,
        settings: Settings,
        report: Report,
        judge: Judge,
        publish: Publish,
        print_line: Callable[[str], None],
        started_at: float,
    ) -> None:
        self._settings, self._report, self._judge = settings, report, judge
        self._publish = publish
        self._started_at = started_at
        self._server = Server(settings, report, print_line)
        self._listener = Listener(self._server.answer, 2 * settings.nodes + 64)
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> PreflightResult:
        server = self._server
        await self._open()
        self._tasks = [asyncio.create_task(part) for part in (server.beat(), server.call_missing())]
        if is_bad(self._settings, self._report.findings):
            server.fail()
        going = await self._gather()
        verdict = await self._conclude(await self._probe() if going else [])
        self._seconds = time.monotonic() - self._started_at
        return self._outcome(await self._send_verdict(verdict))

    def _outcome(self, verdict: Verdict) -> PreflightResult:
        known = (verdict.findings, verdict.reports, verdict.links)
        return PreflightResult(
            *known, self._seconds, self._server.hello.instance, shown=not verdict.go
        )

    async def close(self) -> None:
        """Stop listening, because torchrun takes the port next."""
        self._server.phase = OVER
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.close()

    async def _open(self) -> None:
        """Listen at the head's port for clients, with small packets, and at a free one for probes, with normal packets."""
        server, port = self._server, self._settings.port
        server.hello = replace(server.hello, port=await self._listener.open(bind(0, segment=0)))
        try:
            await self._listener.open(bind(port))
        except (OSError, OverflowError) as error:
            server.listens = False
            taken = ports.listen_finding(self._settings, error, await self._holder())
            *_, taken = eased([*self._report.findings, taken], self._settings.check_only)
            server.fail(taken) if taken.is_error else server.note(taken)

    async def _holder(self) -> ports.Holder | None:
        """The process that holds the port; None if it is not found in time, because reading a process may hang."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await within(background(lambda: ports.holder(self._settings.port)), _LOOK_S)
        return None

    # --- gather -----------------------------------------------------------------------------------

    async def _gather(self) -> bool:
        """Wait for the others. Return True if the hosts that came can go on."""
        server, end = self._server, self._started_at + self._settings.timeout_s
        while not self._is_ready(time.monotonic()):
            if (left := end - time.monotonic()) <= 0:
                return self._give_up()
            await self._until_changed(min(left, _POLL_S))
        return server.failed_at is None

    def _is_ready(self, now: float) -> bool:
        server = self._server
        if len(server.members) + 1 == self._settings.nodes:
            return True
        if server.failed_at is not None:
            came = len(server.clients) + len(server.lost_hosts) + 1
            return came >= self._settings.nodes or now >= self._last_chance(server.failed_at)
        return self._has_enough() and now >= server.last_arrival + _SETTLE_S

    def _has_enough(self) -> bool:
        server = self._server
        return server.elastic and len(server.members) + 1 >= self._settings.min_nodes

    def _last_chance(self, failed_at: float) -> float:
        """The time until which hosts may come after the first error, so that the verdict has their faults, too."""
        server = self._server
        proving = any(server.contact_errors.get(rank) == "" for rank in server.missing())
        after_s = _PROVES_S if proving else _OTHERS_S
        return max(failed_at + after_s, self._started_at + _LATE_S)

    def _give_up(self) -> bool:
        """At the end of rendezvous.timeout, report the missing hosts unless enough came. Return True to go on."""
        server = self._server
        if not self._has_enough():
            for rank in server.missing():
                server.fail(messages.absent(self._settings, rank, server.contact_errors.get(rank)))
        return server.failed_at is None

    async def _until_changed(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._server.changed.wait(), timeout_s)
        self._server.changed.clear()

    async def _until(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not is_over() and time.monotonic() < end:
            await self._until_changed(_POLL_S)

    # --- probe ------------------------------------------------------------------------------------

    async def _probe(self) -> list[Link]:
        """Have each host probe its neighbours, and return the probed links."""
        server, settings, report = self._server, self._settings, self._report
        server.phase = PROBE
        members = server.in_order()
        own = Peer(settings.host_name, report.first_address or settings.head, server.hello.port)
        peers = [own, *(m.peer for m in members)]
        plan = [[peers[i] for i in row] for row in links.neighbours(len(peers))]
        for member, row in zip(members, plan[1:]):
            member.doing = "it probed the other hosts"
            member.conn.send("peers", peers=[vars(peer) for peer in row])
        seen = await links.probe(settings.host_name, report.address, plan[0], server.hello.instance)
        patience_s = links.BUDGET_S + SILENT_S + slack_s(settings.nodes)
        await self._until(self._is_probed, patience_s)
        for member in server.in_order():
            if member.links is None and server.failed_at is None:
                server.lose_silent(member, patience_s)
            seen += member.links or ()
        # A failed probe of a host that is gone says nothing about the network.
        here = {settings.host_name, *(m.hello.host for m in server.in_order())} - server.lost_hosts
        return [link for link in seen if link.host in here and link.peer in here]

    def _is_probed(self) -> bool:
        server = self._server
        return server.failed_at is not None or all(
            member.links is not None for member in server.members.values()
        )

    # --- tell -------------------------------------------------------------------------------------

    async def _conclude(self, seen: Sequence[Link]) -> Verdict:
        """The verdict, from the reports and the probed links."""
        reports = [self._report, *(member.report for member in self._server.in_order())]
        # In a thread, because thousands of reports take a while and the heartbeats must go on.
        judged = await background(lambda: self._judge(reports, seen))
        return self._weighed(judged, reports, seen)

    def _weighed(
        self, findings: Sequence[Finding], reports: Sequence[Report], links: Sequence[Link]
    ) -> Verdict:
        each = [finding for report in reports for finding in report.findings]
        findings = ordered([*self._server.faults(), *each, *findings])
        goes = self._server.failed_at is None and not is_bad(self._settings, findings)
        return Verdict(goes, findings, reports, links, shown=True)

    async def _send_verdict(self, verdict: Verdict) -> Verdict:
        """Send the verdict to all clients. Return the verdict with the faults of clients that did not acknowledge it.

        No host goes on before all have acknowledged, because the others would hang in the rendezvous if a host were
        gone by then.
        """
        server = self._server
        server.phase = TELL
        if verdict.go:
            self._send(verdict)
            silent_s = SILENT_S + slack_s(self._settings.nodes)
            await self._until(lambda: not server.unheard, silent_s)
            for member in server.in_order():
                if member.conn in server.unheard:
                    server.lose_silent(member, silent_s)
            verdict = self._weighed(verdict.findings, verdict.reports, verdict.links)
        server.phase = OVER
        if verdict.go:
            for conn in server.clients:
                conn.send("go")
        else:
            # Tell the user first: a host that ends with an error may make the scheduler end this one.
            with contextlib.suppress(asyncio.TimeoutError):
                await within(background(lambda: self._publish(self._outcome(verdict))), _SHOW_S)
            self._send(verdict)
            await self._until(lambda: not server.unheard, _ACKNOWLEDGE_S)
        # Let the clients close first, so that TIME_WAIT is on their side and this host's port is free.
        await self._until(lambda: not server.clients, _CLOSE_S)
        return verdict

    def _send(self, verdict: Verdict) -> None:
        line = encode("verdict", **verdict.as_json())
        for conn in self._server.clients:
            self._server.unheard.add(conn)
            conn.write(line)
