"""Where clients check in: the head's conversations with them.

Owns who is let in, who is turned away and why, and who is at fault when a client leaves or falls
silent. When the gathering is over and what the verdict is, head.py decides. The messages are listed
in checkin.py.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from train.nic import is_loopback
from train.preflight import links, messages
from train.preflight.common import (
    SILENT_S,
    VERSION,
    Hello,
    Waiting,
    beat_s,
    is_bad,
    new_instance,
    printable,
    slack_s,
)
from train.preflight.finding import WARNING, Finding
from train.preflight.membership import Member, Membership
from train.preflight.report import Link, Report, number
from train.preflight.settings import Settings
from train.preflight.verdict import Verdict
from train.preflight.wire import Conn, Message, WireError, encode, is_own

GATHER, PROBE, TELL, OVER = range(4)
_HELLO_S = 4.0
_CLOCK = 1e12  # seconds, more than any clock shows
_TOLD = 32  # hosts that take no part
_RETURN_S = 2.0  # for a client whose connection broke


class Server:
    """What the head knows of a launch, and how it hears of it. `phase`: GATHER, PROBE, TELL, OVER;
    `listens`: at the port that the others try; `met`: what calling a missing host met, by rank;
    `unheard`: whose acknowledgement is awaited; `turned`: who is told the verdict but takes no part;
    `open`: all conversations; `lost`: hosts that left or fell silent; `changed`: set when there is something to decide."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings, self.say = settings, say
        self.elastic = settings.least < settings.nodes
        self.token = secrets.token_hex(8)
        self.hello = Hello.of(settings, new_instance(), 0)
        self.membership = Membership(settings)
        self.turns = links.Turns()
        self.phase = GATHER
        self.listens = True
        self.resolved = ""
        self.met: dict[int, str] = {}
        self.unheard: set[Conn] = set()
        self.turned: set[Conn] = set()
        self.open: set[Conn] = set()
        self.lost: set[str] = set()
        self.changed = asyncio.Event()
        self.failed_at: float | None = None
        self._faults: list[Finding] = []
        self._cut: dict[str, list[str]] = {}
        self._told: set[tuple[str, str]] = set()
        self._waiting = Waiting(say)

    def fail(self, *faults: Finding) -> None:
        """The launch will not go on."""
        self._faults += faults
        self.failed_at = self.failed_at or time.monotonic()
        self.changed.set()

    def faults(self) -> list[Finding]:
        """What went wrong while the hosts met; of one firewall all its victims in one finding."""
        cut = [
            messages.filtered(self.settings, sorted(hosts), way) for way, hosts in self._cut.items()
        ]
        ahead_s = {member.name: member.ahead_s for member in self.membership.in_order()}
        return [*self._faults, *cut, *messages.clocks(self.settings.me, ahead_s)]

    # --- conversations ----------------------------------------------------------------------------

    async def answer(self, conn: Conn) -> None:
        """Somebody has connected. Raises WireError when they are gone, or no preflight."""
        conn.send("identity", **self.hello.as_json())
        first = await conn.receive(_HELLO_S + slack_s(self.settings.nodes))
        if first["kind"] == "probe":
            await links.serve(conn, self.token, first, self.turns)
        elif first["kind"] == "hello":
            await self.converse(conn, first)

    async def converse(self, conn: Conn, first: Message) -> None:
        """Hear a client out, from its hello on. Raises WireError when it is gone."""
        try:
            hello = Hello.from_json(first)
        except ValueError:
            raise WireError("foreign") from None
        self.open.add(conn)
        try:
            self._admit(conn, hello)
            while True:
                message = await conn.receive()
                if message.get("token") == self.token:
                    self._take(conn, message)
        except (KeyError, ValueError, TypeError):
            raise WireError("foreign") from None
        finally:
            self._left(conn)

    def _admit(self, conn: Conn, hello: Hello) -> None:
        name = self.membership.name(conn, hello)
        here = messages.at(self.settings.me, self.settings.own_address)
        if hello.job != self.settings.job:
            port = self.settings.port
            finding = messages.other_job(name, hello.job, here, self.settings.job, port)
            self._refuse(conn, finding)
            self._say_once(hello.host, hello.job, finding)
        elif self.phase not in (GATHER, PROBE):
            conn.send("late")
        elif fault := self._wrong(conn, hello, name, here):
            self._turn_away(conn, fault)
        elif self.phase == PROBE:
            conn.send("late")
        else:
            self._greet(conn, hello)

    def _say_once(self, host: str, job: str, finding: Finding) -> None:
        """About a host that takes no part; anybody may pretend to be any number of them."""
        if (host, job) not in self._told and len(self._told) < _TOLD:
            self._told.add((host, job))
            self.say(f"preflight: {printable(finding.cause)}")

    def _wrong(self, conn: Conn, hello: Hello, name: str, here: str) -> Finding | None:
        """What keeps a client of this job from taking part."""
        settings = self.settings
        if hello.preflight != VERSION:
            return messages.another_bundle(settings, name)
        if (hello.nodes, hello.world_size) != (settings.nodes, settings.world_size):
            ours = f"{settings.nodes} hosts and {settings.world_size} processes"
            theirs = f"{hello.nodes} hosts and {hello.world_size} processes"
            return messages.disagree(settings, name, theirs, here, ours)
        if not 0 <= hello.rank < settings.nodes:
            return messages.bad_rank(settings, name, hello.rank)
        if hello.rank == settings.node_rank:
            return self._same_rank(self.hello, settings.own_address, hello, conn.address)
        old = self.membership.members.get(hello.rank)
        if old is not None and old.conn is not None and old.hello.instance != hello.instance:
            return self._same_rank(old.hello, old.address, hello, conn.address)
        return self._misled(conn, hello, name, here)

    def _same_rank(self, one: Hello, address: str, other: Hello, its_address: str) -> Finding:
        """Two names tell them apart; of one name only where each came from does."""
        if one.host != other.host:
            address = self.settings.addresses.get(one.host) or address
            its_address = self.settings.addresses.get(other.host) or its_address
        first, second = messages.at(one.host, address), messages.at(other.host, its_address)
        return messages.same_rank(self.settings, other.rank, first, second)

    def _misled(self, conn: Conn, hello: Hello, name: str, here: str) -> Finding | None:
        """What kept a client from finding the head, which had to call it."""
        if not hello.way:
            return None
        if hello.head != self.settings.head:
            return messages.disagree(
                self.settings, name, f"the head {hello.head}", here, self.settings.head
            )
        by_name = hello.to and hello.to != hello.head and not self._leads_to_itself(hello, conn)
        if by_name and hello.to != self.resolved and not is_own(hello.to):
            there = self.membership.at_address(hello.to)
            return messages.no_such_head(self.settings, hello.host, hello.head, hello.to, there)
        return None

    def _leads_to_itself(self, hello: Hello, conn: Conn) -> bool:
        if (
            not hello.to or hello.to == self.settings.head
        ):  # an address leads everybody to one place
            return False
        return is_loopback(hello.to) or hello.to == conn.address

    def _greet(self, conn: Conn, hello: Hello) -> None:
        member = self.membership.enter(conn, hello)
        conn.send("greet", token=self.token, every=beat_s(self.settings.nodes))
        met = hello.way in ("timeout", "refused", "unreachable")
        # A host that the name leads to itself has been nowhere else; its own checks say so.
        if met and self.listens and not self._leads_to_itself(hello, conn):
            self._cut_off(member)
        self.changed.set()

    def _cut_off(self, member: Member) -> None:
        way = "timeout" if member.hello.way == "timeout" else "refused"
        if self.elastic:
            assert member.conn is not None
            self._turn_away(member.conn, messages.filtered(self.settings, [member.name], way))
            return
        self._cut.setdefault(way, [])
        if member.name not in self._cut[way]:
            self._cut[way].append(member.name)
        self.fail()

    def _take(self, conn: Conn, message: Message) -> None:
        """Note what a client says. Raises KeyError, ValueError or TypeError for nonsense."""
        member = self.membership.at(conn)
        if member is None:
            return
        member.heard = time.monotonic()
        kind = message["kind"]
        if kind == "here":
            member.note_clock(number(message["clock"], -_CLOCK, _CLOCK))
        elif kind == "still":
            member.doing = str(message.get("doing", ""))[:100]
        elif kind == "report":
            self._reported(member, Report.from_json(message.get("report")))
        elif kind == "links":
            self.membership.has_linked(
                member, [Link.from_json(each) for each in message.get("links", ())]
            )
            self.changed.set()
        elif kind == "ack":
            self.unheard.discard(conn)
            self.changed.set()

    def _reported(self, member: Member, report: Report) -> None:
        self.membership.report(member, report)
        if is_bad(self.settings, report):
            if self.elastic and member.conn is not None:
                self._turn_away(member.conn, *report.findings)
            else:
                self.fail()
        self.changed.set()

    # --- those who do not take part ---------------------------------------------------------------

    def _refuse(self, conn: Conn, *findings: Finding) -> None:
        conn.send("verdict", **Verdict(False, findings).as_json())

    def _turn_away(self, conn: Conn, *faults: Finding) -> None:
        """This client cannot take part; where all are needed, nobody does."""
        if self.elastic:
            self._without(*faults)
            self._refuse(conn, *faults)
            if member := self.membership.at(conn):
                self.membership.forget(member)
            return
        self.turned.add(conn)
        self.fail(*faults)

    def _without(self, *faults: Finding) -> None:
        self._faults += [replace(fault, severity=WARNING) for fault in faults if fault.is_error]
        self.changed.set()

    def _left(self, conn: Conn) -> None:
        self.open.discard(conn)
        self.turned.discard(conn)
        self.unheard.discard(conn)
        self.changed.set()
        member = self.membership.at(conn)
        if member is None:
            return
        self.membership.hang_up(member)
        if self.phase == TELL:
            self.lose_left(member)  # the others are about to go on: there is no coming back
        else:
            asyncio.get_running_loop().call_later(_RETURN_S, self._gone, member)

    def _gone(self, member: Member) -> None:
        """A client has left, and did not come back. What it reported before may say why."""
        if member.conn is not None or self.membership.members.get(member.hello.rank) is not member:
            return
        if member.report is None or not is_bad(self.settings, member.report):
            self.lose_left(member)

    def _lose(self, member: Member, fault: Finding) -> None:
        if self.phase == OVER:
            return
        self.lost.add(member.hello.host)
        self.membership.pending.discard(member.hello.rank)
        if member.conn is not None:
            self.unheard.discard(member.conn)
        self.membership.hang_up(member)
        if self.elastic:
            self.membership.drop(member)
            self._without(fault)
        else:
            self.fail(fault)

    # --- heartbeats -------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Keep telling all that the head is there, and find out who no longer is."""
        every, last = beat_s(self.settings.nodes), time.monotonic()
        while True:
            await asyncio.sleep(every)
            now = time.monotonic()
            if now - last > every + 0.5:  # this process stood still: that is nobody's silence
                for member in self.membership.connected():
                    member.heard = now
            last = now
            text = self._waits_for()
            line = encode("wait", text=text)
            for conn in self.turned:
                conn.write(line)
            for member in self.membership.connected():
                if now - member.heard > SILENT_S * every:
                    self.lose_silent(member, SILENT_S * every)
                elif member.conn is not None:
                    member.conn.write(line)
            self._waiting.tell(text)
            self.changed.set()

    def lose_left(self, member: Member) -> None:
        """HOST003."""
        self._lose(member, messages.left(self.settings, member.name, member.doing))

    def lose_silent(self, member: Member, silent_s: float) -> None:
        """HOST002."""
        self._lose(member, messages.hangs(member.name, member.doing, silent_s))

    def _waits_for(self) -> str:
        if self.phase != GATHER or self.membership.is_full:
            return ""
        missing = {rank: self.met.get(rank) for rank in self.membership.missing()}
        return messages.waits_for(self.settings, missing)
