"""The links between the hosts: each probes its neighbours, as the processes of the run will.

Owns who probes whom, and the probe: a small round trip, a few large packets, a short burst. It uses
ports of the system's choice and packets of normal size, because that is what gloo and NCCL use.
Judges nothing: what is slow among all links, link_findings.py says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.preflight.report import Link, Peer
from train.preflight.wire import SEGMENT, Conn, Message, WireError, dial, is_own, within

BUDGET_S = 5.0  # more than what two tries take at worst: a machine may be busy
ALL_PAIRS = 16  # hosts; with more, each probes about log2(n) others
_CONNECT_S = 1.1  # so that a lost SYN is sent a second time
_ANSWER_S = 1.0
_STALL_S = 0.6
_LARGE = 16 * 1024
_BURST = 256 * 1024
_MOST = 1024 * 1024  # bytes that a peer may have counted in one go
_FAST = 25e6  # bytes a second from which on a link is no longer worth a second look
_LOOK_S = 0.3
_LONGEST_S = 1e6
_AT_MOST = 20.0  # times faster than it looks is a link between machines that are busy
_TURN_S = 1.0  # for the burst from the other side, which may never come
_NEAR_S = 0.5  # for the round trips to the other peers, of which some may not answer


class Turns:
    """Whose burst this host has taken: both ways at once, each would hold up the other's receipts."""

    def __init__(self) -> None:
        self._over: dict[str, asyncio.Event] = {}

    def of(self, host: str) -> asyncio.Event:
        """Set when `host` has sent its burst here."""
        return self._over.setdefault(host, asyncio.Event())


class _Prober:
    """This host, as it probes. One burst at a time leaves it: two would share its way out."""

    def __init__(
        self, host: str, source: str, token: str, turns: Turns, peers: Sequence[Peer]
    ) -> None:
        self.host, self.source, self.token, self.turns = host, source, token, turns
        self.outlet = asyncio.Lock()
        self._silent, self._all_answered = set(peers), asyncio.Event()

    async def until_all_answered(self, peer: Peer) -> None:
        """`peer` has; on a slow way out a burst before the last round trip would make it a long one."""
        self._silent.discard(peer)
        if not self._silent:
            self._all_answered.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._all_answered.wait(), _NEAR_S)


@dataclass
class _Seen:
    """What is known of one link so far."""

    trouble: str = "timeout"
    rtt_s: float = 0.0
    rate: float = 0.0


def neighbours(count: int) -> list[list[int]]:
    """Whom each of `count` hosts probes: everybody, or the next, the one before, and those 2^k on."""
    if count <= ALL_PAIRS:
        return [[(i + d) % count for d in range(1, count)] for i in range(count)]
    distances = [count - 1, *(1 << k for k in range((count - 1).bit_length()))]
    return [sorted({(i + d) % count for d in distances} - {i}) for i in range(count)]


async def probe(
    host: str, source: str, peers: Sequence[Peer], token: str, turns: Turns
) -> list[Link]:
    """Probe all peers at once, from `source` ("": as the system likes), in at most BUDGET_S."""
    source = source if source and is_own(source) else ""
    me = _Prober(host, source, token, turns, peers)
    seen = {peer: _Seen() for peer in peers}
    tasks = [asyncio.create_task(_try(peer, me, seen[peer])) for peer in seen]
    if tasks:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(asyncio.wait(tasks), BUDGET_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [Link(host, p.host, s.trouble, s.rtt_s, s.rate) for p, s in seen.items()]


async def _try(peer: Peer, me: _Prober, seen: _Seen) -> None:
    tries = 0
    while tries < 2:
        try:
            async with _opened(peer, me, 0) as conn:
                seen.rtt_s = await _round_trip(conn)
                await me.until_all_answered(peer)
                await _large(conn, peer, me)
                seen.trouble = ""
                if peer.host < me.host:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await within(me.turns.of(peer.host).wait(), _TURN_S)
                async with me.outlet:
                    seen.rate = await _rate(conn)
                return
        except WireError as error:
            # Once large packets have passed, whatever comes later is no matter of the network.
            if not seen.trouble:
                return
            # Its system has answered, and it will: as long as there is time, it is only busy.
            tries += error.trouble != "silent"
            if seen.trouble != "large":  # that was proven; one that says nothing may just be busy
                seen.trouble = "timeout" if error.trouble == "silent" else error.trouble


@contextlib.asynccontextmanager
async def _opened(peer: Peer, me: _Prober, segment: int) -> Any:
    conn = await dial(peer.address, peer.port, _CONNECT_S, me.source, segment)
    try:
        await conn.receive(_ANSWER_S)  # who is there; the token will tell
        conn.send("probe", token=me.token, host=me.host)
        await _expect(conn, "ready")
        yield conn
    finally:
        conn.abort()


async def _expect(conn: Conn, kind: str) -> Message:
    message = await conn.receive(_ANSWER_S)
    if message["kind"] != kind:
        raise WireError("foreign")
    return message


async def _round_trip(conn: Conn) -> float:
    taken = []
    for _ in range(2):
        began = time.monotonic()
        conn.send("ping")
        await _expect(conn, "pong")
        taken.append(time.monotonic() - began)
    return min(taken)


async def _large(conn: Conn, peer: Peer, me: _Prober) -> None:
    """Raise WireError "large" when large packets get lost where small ones pass."""
    if (await _burst(conn, _LARGE))[0]:
        return
    # A busy peer stalls as well; only if the same bytes pass in small packets it is their size.
    async with _opened(peer, me, SEGMENT) as small:
        if (await _burst(small, _LARGE))[0]:
            raise WireError("large")
    raise WireError("timeout")


async def _rate(conn: Conn) -> float:
    """Bytes a second, the best of what 0.3 s allow, and of two bursts at least: a busy machine only ever
    makes it look slower.

    How long the two processes waited for a processor meanwhile is none of the link's time.
    """
    best, bursts, until = 0.0, 0, time.monotonic() + _LOOK_S
    while best < _FAST and (bursts < 2 or time.monotonic() < until):
        bursts += 1
        began, waited = time.monotonic(), _waited()
        arrived, theirs = await _burst(conn, _BURST)
        taken = time.monotonic() - began
        # Both may have waited at once.
        best = max(best, arrived / max(taken - (_waited() - waited) - theirs, taken / _AT_MOST))
        if arrived < _BURST:
            break
    return best


def _waited() -> float:
    """Seconds in which this thread could have run and had no processor; 0.0 where nobody counts them."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


async def _burst(conn: Conn, size: int) -> tuple[int, float]:
    """Send so many bytes; how many the other counted until they were all there, or it took too long, and
    for how long it waited for a processor."""
    conn.send("burst", bytes=size)
    conn.write(bytes(size))
    counted = [(0, 0.0)]
    with contextlib.suppress(asyncio.TimeoutError):
        await within(_receive_counts(conn, size, counted), _STALL_S)
    return counted[-1]


async def _receive_counts(conn: Conn, size: int, counted: list[tuple[int, float]]) -> None:
    while counted[-1][0] < size:
        message = await conn.receive()
        arrived, waited = message.get("bytes"), message.get("waited")
        if type(arrived) is not int or not 0 <= arrived <= size or type(waited) is not float:
            raise WireError("foreign")
        counted.append((arrived, min(max(0.0, waited), _LONGEST_S)))


async def serve(conn: Conn, token: str, first: Mapping[str, Any], turns: Turns) -> None:
    """The other side of a probe. Raises WireError when the prober is gone."""
    if not token or first.get("token") != token:
        return
    conn.send("ready")
    try:
        while True:
            waited = _waited()
            message = await conn.receive(2 * BUDGET_S)
            if message["kind"] == "ping":
                conn.send("pong")
            elif message["kind"] == "burst":
                await _count(conn, message.get("bytes"), waited)
    finally:
        turns.of(str(first.get("host"))[:255]).set()


async def _count(conn: Conn, size: Any, before: float) -> None:
    """`before`: what _waited() said when there was nothing to do yet."""
    if type(size) is not int or not 0 <= size <= _MOST:
        raise WireError("foreign")
    arrived = 0
    while arrived < size:
        arrived += len(await conn.read(size - arrived, 2 * BUDGET_S))
        conn.send("counted", bytes=arrived, waited=_waited() - before)
