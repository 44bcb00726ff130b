"""The links between the hosts: each host probes its neighbours in the way that the processes of the run will connect.

Owns the choice of the neighbours, and the probe: a small round trip, then a few large packets. The probe uses ports
of the system's choice and packets of normal size, because gloo and NCCL do. Judges nothing: link_findings.py names the
host at fault. Measures nothing: `ddpgen probe` does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from train.preflight.report import Link, Peer
from train.preflight.wire import SEGMENT, Conn, WireError, dial, is_own, within

BUDGET_S = 5.0  # more than the worst case of two tries, because a machine may be busy
ALL_PAIRS = 16  # hosts; with more, each probes about log2(n) others
_CONNECT_S = 1.1  # the system sends a lost SYN again after 1 s
_ANSWER_S = 1.0
_LARGE = 16 * 1024  # bytes: a few packets, whatever the MTU


def neighbours(count: int) -> list[list[int]]:
    """The peers that each of `count` hosts probes: all others, up to ALL_PAIRS hosts. If there are more hosts, each
    probes the host before it, and the hosts 1, 2, 4, … places after it."""
    if count <= ALL_PAIRS:
        return [[(i + d) % count for d in range(1, count)] for i in range(count)]
    distances = [count - 1, *(1 << k for k in range((count - 1).bit_length()))]
    return [sorted({(i + d) % count for d in distances} - {i}) for i in range(count)]


async def probe(host: str, source: str, peers: Sequence[Peer], token: str) -> list[Link]:
    """Probe all peers at once, in at most BUDGET_S. `source`: the local address, or "" for the system's choice."""
    source = source if source and is_own(source) else ""
    troubles = dict.fromkeys(peers, "timeout")
    tasks = [asyncio.create_task(_try(peer, source, token, troubles)) for peer in troubles]
    if tasks:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(asyncio.wait(tasks), BUDGET_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [Link(host, peer.host, trouble) for peer, trouble in troubles.items()]


async def _try(peer: Peer, source: str, token: str, troubles: dict[Peer, str]) -> None:
    tries = 0
    while tries < 2:
        try:
            await _large_packets(peer, source, token)
            troubles[peer] = ""
            return
        except WireError as error:
            # A silent peer's system has answered, so the peer may be busy: try again as long as there is time.
            tries += error.trouble != "silent"
            if troubles[peer] != "large":  # proven already; a later silence may be a busy peer
                troubles[peer] = "timeout" if error.trouble == "silent" else error.trouble


async def _large_packets(peer: Peer, source: str, token: str) -> None:
    """Send large packets. Raises WireError: "large" if they get lost and small ones pass, else another trouble."""
    if await _arrives(peer, source, token, segment=0):
        return
    # A busy peer stalls as well. If the same bytes pass in small packets, the size is the cause.
    small = await _arrives(peer, source, token, segment=SEGMENT)
    raise WireError("large" if small else "timeout")


async def _arrives(peer: Peer, source: str, token: str, segment: int) -> bool:
    """True if the peer gets a large message, in packets of at most `segment` bytes (0: as the path has them).
    Raises WireError if small messages fail already."""
    conn = await dial(peer.address, peer.port, _CONNECT_S, source, segment)
    try:
        # Ignore the identity: `ready` proves it, because the peer sends that only for its own token.
        await conn.receive(_ANSWER_S)
        conn.send("probe", token=token)
        await _expect(conn, "ready")
        conn.send("large", filler="x" * _LARGE)
        try:
            await _expect(conn, "arrived")
        except WireError as error:
            if error.trouble != "silent":
                raise
            return False
        return True
    finally:
        conn.abort()


async def _expect(conn: Conn, kind: str) -> None:
    if (await conn.receive(_ANSWER_S))["kind"] != kind:
        raise WireError("foreign")


async def serve(conn: Conn, token: str, first: Mapping[str, Any]) -> None:
    """Answer a probe that has our `token`. Raises WireError when the prober is gone."""
    if token and first.get("token") == token:
        conn.send("ready")
        await conn.receive(2 * BUDGET_S)
        conn.send("arrived")
