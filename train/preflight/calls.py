"""The head calls hosts that have not come, where the spec says how they are reached.

A client whose way to the head is closed can so still be heard, and that it can shows which direction
is closed. Owns whom to call and when; what is said then is the client's and the server's.
"""

from __future__ import annotations

import asyncio
import time

from train.preflight import messages
from train.preflight.common import REPLY_S, Hello
from train.preflight.server import GATHER, Server
from train.preflight.wire import Conn, WireError, dial, is_own, resolve

_FIRST_S = 1.0  # hosts that are started together have come by then
_EVERY_S = 1.0
_AT_ONCE = 64
_CONNECT_S = 1.5
# The client first tries its own way once more: that takes a few seconds where packets get lost.
_HELLO_S = 10.0


class Calls:
    """Calls from one server. `_open`: the ranks that are being called, or have answered."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._addresses = list(server.settings.addresses.values())
        self._open: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Call whoever is missing, as long as the hosts gather."""
        try:
            # A thousand hosts that all come need no calls while they do.
            await asyncio.sleep(_FIRST_S + self._server.settings.nodes / 200)
            while self._server.phase == GATHER:
                began = time.monotonic()
                for rank in self._due():
                    self._open[rank] = asyncio.create_task(self._call(rank))
                await asyncio.sleep(max(0.0, began + _EVERY_S - time.monotonic()))
        finally:
            tasks = list(self._open.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _due(self) -> list[int]:
        known = (rank for rank in self._server.membership.missing() if rank < len(self._addresses))
        free = [rank for rank in known if rank not in self._open and self._addresses[rank]]
        return free[: _AT_ONCE - len(self._open)] if len(self._open) < _AT_ONCE else []

    async def _call(self, rank: int) -> None:
        server = self._server
        try:
            address = await resolve(self._addresses[rank])
            conn = await dial(address, server.settings.port, _CONNECT_S)
            try:
                await self._speak(conn, rank)
            finally:
                conn.close()
        except WireError as error:
            server.met[rank] = error.trouble
        except ValueError:
            server.met[rank] = "foreign"
        finally:
            self._open.pop(rank, None)

    async def _speak(self, conn: Conn, rank: int) -> None:
        """Raises WireError and ValueError."""
        server = self._server
        there = Hello.from_json(await conn.receive(REPLY_S))
        server.met[rank] = ""
        if there.instance == server.hello.instance or there.job != server.settings.job:
            return
        if there.role == "head":
            if is_own(conn.address):
                return  # on this very machine: that the port is taken says more
            here = messages.at(server.settings.me, server.settings.own_address)
            found = messages.at(there.host, conn.address)
            server.fail(messages.same_rank(server.settings, there.rank, here, found))
            return
        conn.send("call", listens=server.listens, **server.hello.as_json())
        await server.converse(conn, await conn.receive(_HELLO_S))
