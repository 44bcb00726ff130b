"""The head's conversations with the clients that check in, and its calls to the hosts that have not come.

Owns the decision to admit a client or to turn it away, and the finding about a client that leaves or falls silent. The
end of the gathering and the verdict are decided in head.py. The messages are listed in checkin.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from train.base.console import plain
from train.base.nic import is_loopback
from train.preflight import links, messages
from train.preflight.common import REPLY_S, SILENT_S, Waiting, is_bad, slack_s
from train.preflight.finding import WARNING, Finding
from train.preflight.phrases import NamedHost
from train.preflight.report import VERSION, Hello, Link, Peer, Report, Verdict, parsed
from train.preflight.settings import Settings
from train.preflight.wire import Conn, Message, WireError, dial, encode, is_own, resolve

GATHER, PROBE, TELL, OVER = range(4)
BEAT_S = 1.0
_HELLO_S = 4.0
_FIRST_CALL_S = 1.0  # hosts that are started together have come by then
_CALL_EVERY_S = 1.0
_CALLS = 64  # at once: each takes a file descriptor
_CONNECT_S = 1.5
_LINE = 200  # characters of a stranger's words
# A called host answers only after its own checks and one more attempt to connect to the head.
_CALLED_S = 10.0
# The results of a connection to the head that a firewall may cause (Hello.way), each with its word in Member.cut.
_FILTERED = {"timeout": "timeout", "refused": "refused", "unreachable": "refused"}


@dataclass
class Member:
    """A client that takes part.

    `ahead_s`: the smallest difference of its clock from the head's, in seconds; negative if it is behind. `cut`:
    "timeout" or "refused" if the head had to call the client and a firewall may be the reason; else "". `heard_at`:
    monotonic seconds.
    """

    hello: Hello
    host: NamedHost
    conn: Conn
    report: Report
    ahead_s: float
    cut: str = ""
    doing: str = "it checked in"
    links: Sequence[Link] | None = None
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def reached(self) -> str:
        """The address at which the others reach the host."""
        return self.report.address or self.conn.address

    @property
    def peer(self) -> Peer:
        """The host as the others probe it."""
        return Peer(self.hello.host, self.report.first_address or self.reached, self.hello.port)


class Server:
    """The state of a launch on its head, and the conversations that change it.

    `report`: the head's own. `phase`: GATHER, PROBE, TELL or OVER. `listens`: True if the head listens at the port to
    which the clients connect. `members`: by node rank. `contact_errors`: by node rank, the error of the last call to a
    missing host; "" if it answered. `clients`: the connections that get the verdict: the members', and in a job that
    needs all hosts those of clients turned away. `unheard`: the clients that have not acknowledged the verdict yet.
    `lost_hosts`: hosts that left or fell silent. `changed`: set when there is something to decide.
    """

    def __init__(
        self, settings: Settings, report: Report, print_line: Callable[[str], None]
    ) -> None:
        self.settings, self.report, self.print_line = settings, report, print_line
        self.elastic = settings.min_nodes < settings.nodes
        self.hello = Hello.from_settings(settings)
        self.phase = GATHER
        self.listens = True
        self.members: dict[int, Member] = {}
        self.contact_errors: dict[int, str] = {}
        self.clients: set[Conn] = set()
        self.unheard: set[Conn] = set()
        self.lost_hosts: set[str] = set()
        self.last_arrival = time.monotonic()
        self.changed = asyncio.Event()
        self.failed_at: float | None = None
        self._faults: list[Finding] = []
        self._waiting = Waiting(print_line)

    def missing(self) -> Iterator[int]:
        """The node ranks that have not come."""
        here = self.members.keys() | {self.settings.node_rank}
        return (rank for rank in range(self.settings.nodes) if rank not in here)

    def in_order(self) -> list[Member]:
        """The members by node rank."""
        return [self.members[rank] for rank in sorted(self.members)]

    def fail(self, *faults: Finding) -> None:
        """Note faults that end the launch."""
        self._faults += faults
        self.failed_at = self.failed_at or time.monotonic()
        self.changed.set()

    def note(self, finding: Finding) -> None:
        """Add a finding to the verdict; the launch goes on."""
        self._faults.append(finding)

    def faults(self) -> list[Finding]:
        """Return the findings about the gathering. Hosts that are cut off in the same way share one."""
        cut: dict[str, list[NamedHost]] = {}
        for member in self.in_order():
            if member.cut:
                cut.setdefault(member.cut, []).append(member.host)
        filtered = [messages.filtered(self.settings, hosts, way) for way, hosts in cut.items()]
        ahead_s = {member.host: member.ahead_s for member in self.in_order()}
        return [*self._faults, *filtered, *messages.clocks(self.settings.host_name, ahead_s)]

    # --- conversations ----------------------------------------------------------------------------

    async def answer(self, conn: Conn) -> None:
        """Answer a connection. Raises WireError if the other side is gone, silent or too late, or is not a preflight."""
        started_at = time.time()
        conn.send("identity", **vars(self.hello))
        first = await conn.receive(_HELLO_S + slack_s(self.settings.nodes))
        if first["kind"] == "probe":
            await links.serve(conn, self.hello.instance, first)
        elif first["kind"] == "hello":
            await self._converse(conn, first, started_at)

    async def _converse(self, conn: Conn, first: Message, started_at: float) -> None:
        """Converse with a client, from its hello on, until it is gone; then raise WireError. `started_at`: a time of
        this host's clock before the hello was sent, in seconds."""
        member = None
        try:
            member = self._admit(conn, first, started_at)
            while True:
                self._handle_message(conn, member, await conn.receive())
        except (KeyError, ValueError, TypeError):
            raise WireError("foreign") from None
        finally:
            self.clients.discard(conn)
            self.unheard.discard(conn)
            self.changed.set()
            if member is not None:
                self._lose(member, messages.departed(self.settings, member.host, member.doing))

    def _admit(self, conn: Conn, first: Message, started_at: float) -> Member | None:
        """Admit the client as a member, or return None if it may not take part. Raises ValueError or TypeError for an
        invalid message, and WireError for a client that comes too late."""
        hello = parsed(Hello, first)
        host = NamedHost(hello.host, self.settings.addresses.get(hello.host) or conn.address)
        if hello.job != self.settings.job:
            self._meet_stranger(conn, hello, host)
            return None
        if self.phase in (TELL, OVER):
            raise WireError("late")
        if fault := self._wrong(conn, hello, host):
            self._turn_away(conn, fault)
            return None
        if self.phase == PROBE:
            raise WireError("late")
        report = Report.from_json(first.get("report"))
        member = Member(hello, host, conn, report, _ahead_s(hello.clock, started_at))
        faults = report.findings if is_bad(self.settings, report.findings) else ()
        # If the head's name resolves to the client itself there, the attempt never left that host and shows no firewall.
        # The client's own checks report the name.
        if self.listens and not self._leads_to_itself(member.hello, conn):
            member.cut = _FILTERED.get(hello.way, "")
        if self.elastic and (faults or member.cut):
            cut = [messages.filtered(self.settings, [host], member.cut)] if member.cut else []
            self._turn_away(conn, *faults, *cut)
            return None
        self.members[hello.rank] = member
        self.clients.add(conn)
        self.last_arrival = time.monotonic()
        self.changed.set()
        if faults or member.cut:
            self.fail(*faults)
        conn.send("wait", text="")
        return member

    def _handle_message(self, conn: Conn, member: Member | None, message: Message) -> None:
        """Note a client's message. Raises ValueError or TypeError if it is invalid."""
        if message["kind"] == "ack":
            self.unheard.discard(conn)
            self.changed.set()
        if member is None:
            return
        member.heard_at = time.monotonic()
        if message["kind"] == "links":
            member.links = [parsed(Link, each) for each in message.get("links", ())]
            member.doing = "it told how it reaches the other hosts"
            self.changed.set()

    # --- those who do not take part ---------------------------------------------------------------

    def _meet_stranger(self, conn: Conn, hello: Hello, host: NamedHost) -> None:
        here, port = messages.this_host(self.settings), self.settings.port
        finding = messages.other_job(host, hello.job, here, self.settings.job, port)
        self._refuse(conn, finding)
        self.print_line(f"preflight: {plain(finding.cause, _LINE)}")

    def _wrong(self, conn: Conn, hello: Hello, host: NamedHost) -> Finding | None:
        """The finding that keeps a client of this job from taking part, or None."""
        settings, here = self.settings, messages.this_host(self.settings)
        if hello.preflight != VERSION:
            return messages.another_bundle(settings, host)
        if (hello.nodes, hello.world_size) != (settings.nodes, settings.world_size):
            ours = f"{settings.nodes} hosts and {settings.world_size} processes"
            theirs = f"{hello.nodes} hosts and {hello.world_size} processes"
            return messages.disagree(settings, host, theirs, here, ours)
        if not 0 <= hello.rank < settings.nodes:
            return messages.bad_rank(settings, host, hello.rank)
        if hello.rank == settings.node_rank:
            return self._same_rank(here, here.address, host, conn, hello.rank)
        if other := self.members.get(hello.rank):
            return self._same_rank(other.host, other.conn.address, host, conn, hello.rank)
        return self._misled(conn, hello, host) if hello.way else None

    def _same_rank(
        self, first: NamedHost, came_from: str, second: NamedHost, conn: Conn, rank: int
    ) -> Finding:
        """RANK001. If both hosts have the same name, name each with the address it came from."""
        if first.name == second.name:
            first, second = NamedHost(first.name, came_from), NamedHost(second.name, conn.address)
        return messages.same_rank(self.settings, rank, first, second)

    def _misled(self, conn: Conn, hello: Hello, host: NamedHost) -> Finding | None:
        """Return why a client that the head had to call has not found the head; None if nothing is known."""
        settings = self.settings
        if hello.head != settings.head:
            head = f"the head {hello.head}"
            return messages.disagree(
                settings, host, head, messages.this_host(settings), settings.head
            )
        by_name = hello.to not in ("", hello.head) and not self._leads_to_itself(hello, conn)
        if by_name and hello.to != self.report.resolved and not is_own(hello.to):
            there = self._at_address(hello.to)
            whose = f"{there}'s and " if there else ""
            where = f"{hello.to}, which is {whose}no address of {settings.host_name}"
            return messages.wrong_host(settings, hello.host, NamedHost(hello.head), where)
        return None

    def _leads_to_itself(self, hello: Hello, conn: Conn) -> bool:
        if hello.to in ("", self.settings.head):  # an address means the same host everywhere
            return False
        return is_loopback(hello.to) or hello.to == conn.address

    def _at_address(self, address: str) -> str:
        """Return the host at `address`, from the spec or the hosts that have checked in; "" if no host is known there."""
        listed = (name for name, at in self.settings.addresses.items() if at == address)
        came = (m.hello.host for m in self.members.values() if m.reached == address)
        return next(listed, next(came, ""))

    def _turn_away(self, conn: Conn, *faults: Finding) -> None:
        """Exclude this client. If the job needs every host, the launch fails."""
        if self.elastic:
            self._without(*faults)
            self._refuse(conn, *faults)
        else:
            self.clients.add(conn)
            self.fail(*faults)

    def _refuse(self, conn: Conn, *findings: Finding) -> None:
        conn.send("verdict", **Verdict(False, findings).as_json())

    def _without(self, *faults: Finding) -> None:
        self._faults += [replace(fault, severity=WARNING) for fault in faults if fault.is_error]
        self.changed.set()

    def _lose(self, member: Member, fault: Finding) -> None:
        """Drop a member that left or fell silent, without a message to it."""
        if self.phase == OVER or self.members.get(member.hello.rank) is not member:
            return
        del self.members[member.hello.rank]
        self.lost_hosts.add(member.hello.host)
        member.conn.abort()
        if self.elastic:
            self._without(fault)
        elif is_bad(self.settings, member.report.findings):
            self.changed.set()  # its own report has the reason
        else:
            self.fail(fault)

    def lose_silent(self, member: Member, silent_s: float) -> None:
        self._lose(member, messages.hangs(member.host, member.doing, silent_s))

    # --- heartbeats -------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Send all clients a sign of life every second, and drop clients that fell silent."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            if now - last > BEAT_S + 0.5:  # this process stood still; the clients were not silent
                for member in self.members.values():
                    member.heard_at = now
            last = now
            for member in self.in_order():
                if now - member.heard_at > SILENT_S:
                    self.lose_silent(member, SILENT_S)
            text = self._waits_for()
            line = encode("wait", text=text)
            for conn in self.clients:
                conn.write(line)
            self._waiting.print_if_due(text)

    def _waits_for(self) -> str:
        missing = {rank: self.contact_errors.get(rank) for rank in self.missing()}
        if self.phase != GATHER or self.failed_at is not None or not missing:
            return ""
        return messages.waits_for(self.settings, missing)

    # --- calls ------------------------------------------------------------------------------------

    async def call_missing(self) -> None:
        """Call each missing host that has an address, while the hosts gather.

        So the head also hears a client that cannot connect to it. A call that succeeds shows that only the direction from
        the client to the head is closed.
        """
        calls: dict[int, asyncio.Task[None]] = {}
        dialling = asyncio.Semaphore(_CALLS)
        try:
            # Many hosts need longer to come; do not call them meanwhile.
            await asyncio.sleep(_FIRST_CALL_S + self.settings.nodes / 200)
            while self.phase == GATHER:
                for rank in self.missing():
                    if messages.named_host(self.settings, rank).address and rank not in calls:
                        calls[rank] = asyncio.create_task(self._call(rank, dialling))
                await asyncio.sleep(_CALL_EVERY_S)
                calls = {rank: call for rank, call in calls.items() if not call.done()}
            # Keep the calls, because the conversation with a called host goes on in its call.
            await asyncio.gather(*calls.values())
        finally:
            for call in calls.values():
                call.cancel()
            await asyncio.gather(*calls.values(), return_exceptions=True)

    async def _call(self, rank: int, dialling: asyncio.Semaphore) -> None:
        try:
            async with dialling:
                address = await resolve(messages.named_host(self.settings, rank).address)
                conn = await dial(address, self.settings.port, _CONNECT_S)
            try:
                there = parsed(Hello, await conn.receive(REPLY_S))
                self.contact_errors[rank] = ""
                await self._speak(conn, there)
            finally:
                conn.close()
        except WireError as error:
            self.contact_errors[rank] = error.trouble
        except ValueError:
            self.contact_errors[rank] = "foreign"

    async def _speak(self, conn: Conn, there: Hello) -> None:
        """Converse with the host that answered a call, if it is a client of this launch. Raises WireError."""
        if there.instance == self.hello.instance or there.job != self.settings.job:
            return
        if there.role == "head":
            if not is_own(conn.address):  # if it is, the finding about the taken port says more
                found = NamedHost(there.host, conn.address)
                here = messages.this_host(self.settings)
                self.fail(messages.same_rank(self.settings, there.rank, here, found))
            return
        started_at = time.time()
        conn.send("call", listens=self.listens, **vars(self.hello))
        await self._converse(conn, await conn.receive(_CALLED_S), started_at)


def _ahead_s(clock: float, started_at: float) -> float:
    """Return the smallest possible difference between `clock`, read at a time between `started_at` and now, and this
    host's clock, in seconds; negative if `clock` is behind."""
    return clock - min(max(clock, started_at), time.time())
