"""The head's membership list: which client has come, over which connection, and what it has said so far.

Owns one member for each node rank, and the sums that must not cost a walk over thousands of hosts.
Sends nothing and decides nothing: head.py does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from train.preflight import messages
from train.preflight.common import Hello
from train.preflight.report import Link, Report
from train.preflight.settings import Settings
from train.preflight.wire import Conn


@dataclass
class Member:
    """A client. `heard`, `arrived`: monotonic seconds; `greeted`: by this host's clock; `ahead_s`: how
    far the client's clock is ahead of it at least."""

    hello: Hello
    name: str
    conn: Conn | None
    address: str
    doing: str = "it checked in"
    heard: float = field(default_factory=time.monotonic)
    greeted: float = field(default_factory=time.time)
    ahead_s: float = 0.0
    report: Report | None = None
    links: Sequence[Link] | None = None

    @property
    def reached(self) -> str:
        """By which address the others reach it."""
        return (self.report.address if self.report else "") or self.address

    def note_clock(self, clock: float) -> None:
        """The client sent its clock between our greeting and now; only what lies outside is a fault."""
        if clock < self.greeted:
            self.ahead_s = clock - self.greeted
        elif clock > (now := time.time()):
            self.ahead_s = clock - now


class Membership:
    """`members` by node rank, without the head; `pending`: ranks, the head's too, whose report is
    still to come; `owing`: whose links are."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.members: dict[int, Member] = {}
        self.pending: set[int] = {settings.node_rank}
        self.owing: set[int] = set()
        self.last_arrival = time.monotonic()
        self._by_conn: dict[Conn, Member] = {}

    @property
    def is_full(self) -> bool:
        """Whether nobody is missing."""
        return len(self.members) + 1 >= self._settings.nodes

    @property
    def is_steady(self) -> bool:
        """Whether nobody who has come is away for a moment: that is settled in seconds."""
        return all(m.conn is not None for m in self.members.values())

    def missing(self) -> Iterator[int]:
        """The node ranks that have not come."""
        here = self.members.keys() | {self._settings.node_rank}
        return (rank for rank in range(self._settings.nodes) if rank not in here)

    def ready(self) -> int:
        """How many hosts have come and reported, the head counted."""
        return len(self.members) + 1 - len(self.pending)

    def at(self, conn: Conn) -> Member | None:
        """Who speaks there."""
        return self._by_conn.get(conn)

    def connected(self) -> list[Member]:
        """Those who can be told something."""
        return list(self._by_conn.values())

    def at_address(self, address: str) -> str:
        """Who is there: a host of the spec or one that has checked in; "" for nobody known."""
        listed = (name for name, at in self._settings.addresses.items() if at == address)
        came = (m.hello.host for m in self.members.values() if m.reached == address)
        return next(listed, next(came, ""))

    def name(self, conn: Conn, hello: Hello) -> str:
        """A client with its address, as the spec has it, else as it came."""
        return messages.at(hello.host, self._settings.addresses.get(hello.host) or conn.address)

    def enter(self, conn: Conn, hello: Hello) -> Member:
        """A client takes its place, or takes it again over another connection."""
        old = self.members.get(hello.rank)
        if old is not None:
            self.drop(old)
        member = Member(hello, self.name(conn, hello), conn, conn.address)
        self.members[hello.rank] = self._by_conn[conn] = member
        self.pending.add(hello.rank)
        self.last_arrival = time.monotonic()
        return member

    def hang_up(self, member: Member) -> None:
        """It is no longer connected; it may come again."""
        if member.conn is not None:
            self._by_conn.pop(member.conn, None)
            member.conn.abort()
        member.conn = None

    def drop(self, member: Member) -> None:
        """It takes no part."""
        self.hang_up(member)
        self.forget(member)

    def has_linked(self, member: Member, links: Sequence[Link]) -> None:
        """It has probed its neighbours."""
        member.links = links
        self.owing.discard(member.hello.rank)

    def forget(self, member: Member) -> None:
        """It takes no part, but can still be told why."""
        self.members.pop(member.hello.rank, None)
        self.pending.discard(member.hello.rank)
        self.owing.discard(member.hello.rank)

    def report(self, member: Member, report: Report) -> None:
        """It has looked at itself."""
        member.report = report
        self.pending.discard(member.hello.rank)

    def hosts(self) -> set[str]:
        """The names of the clients."""
        return {member.hello.host for member in self.members.values()}

    def in_order(self) -> list[Member]:
        """By node rank."""
        return [self.members[rank] for rank in sorted(self.members)]
