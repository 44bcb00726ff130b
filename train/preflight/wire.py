"""Messages between hosts: a line of JSON each, over TCP connections that survive bad networks.

Owns connecting, listening, the bounds (on a line, on the number of connections, on time), and one word for each kind
of trouble. Knows no message by name, and no host's part in the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from train.base import nic

LINE = 256 * 1024  # bytes of a message
# Bytes of a packet: small enough for any path, so that hosts can still report that a network loses large packets.
SEGMENT = 500
_SLICE_S = 1.0
_STORE_VALIDATE, _STORE_PING, _STORE_MAGIC = 0, 13, 0x3C85F7CE  # torch's TCPStoreBackend.hpp

T = TypeVar("T")
Message = dict[str, Any]


class WireError(Exception):
    """The other side cannot be reached, or does not answer as a preflight does.

    `trouble`: a word of a caller, or one of

    - "unresolved", "noroute", "unreachable", "refused"
    - "timeout": nothing comes back
    - "silent": connected, but no message
    - "foreign": a message in another form
    - "broken": the other side has closed the connection
    """

    def __init__(self, trouble: str) -> None:
        super().__init__(trouble)
        self.trouble = trouble


def encode(kind: str, **content: Any) -> bytes:
    """A message as bytes for the wire. Encode a message to many receivers once."""
    line = json.dumps({"kind": kind, **content}, separators=(",", ":")).encode() + b"\n"
    if len(line) > LINE:
        raise ValueError(f"a message {kind!r} of {len(line)} bytes")
    return line


class _Reader(asyncio.StreamReader):
    """A reader that still returns the data that came before the connection broke.

    asyncio's own reader drops that data. It may hold a verdict, if this process was busy and the head has hung up.
    """

    broken = False

    def set_exception(self, exc: BaseException) -> None:
        self.broken = True
        self.feed_eof()


class Conn:
    """A connection to another host's preflight, or to another program at its port."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._closed = asyncio.Event()
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if peer else ""

    def send(self, kind: str, **content: Any) -> None:
        """Queue a message. If it cannot be delivered, the next receive() raises."""
        self.write(encode(kind, **content))

    def write(self, data: bytes) -> None:
        """Queue bytes. Hang up if the peer has left too many queued, to bound the memory."""
        if self._writer.transport.get_write_buffer_size() > 8 * LINE:
            self.abort()
        if not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message. Raises WireError: silent (after `timeout_s` seconds), foreign, broken.

        Without `timeout_s`, waits without end.
        """
        if timeout_s is None:
            return await self._message()
        try:
            return await within(self._message(), timeout_s)
        except asyncio.TimeoutError:
            raise WireError("silent") from None

    async def _message(self) -> Message:
        try:
            line = await self._reader.readuntil(b"\n")
            message = json.loads(line)
        except asyncio.IncompleteReadError as error:
            half = error.partial and not self._reader.broken
            raise WireError("foreign" if half else "broken") from None
        except (asyncio.LimitOverrunError, ValueError, RecursionError):
            raise WireError("foreign") from None
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise WireError("foreign")
        return message

    async def read(self, most: int, timeout_s: float) -> bytes:
        """Return some bytes, at most `most`. Raises WireError: silent, broken."""
        try:
            data = await within(self._reader.read(most), timeout_s)
        except asyncio.TimeoutError:
            raise WireError("silent") from None
        if not data:
            raise WireError("broken")
        return data

    def close(self) -> None:
        """Close after the queued data has been sent, for which the event loop has to go on running."""
        self._closed.set()
        self._writer.close()

    def abort(self) -> None:
        """Close at once, and drop the queued data."""
        self._closed.set()
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        """Return when this side has closed the connection."""
        await self._closed.wait()


async def dial(
    address: str, port: int, timeout_s: float, source: str = "", segment: int = SEGMENT
) -> Conn:
    """Connect to a numeric address. Raises WireError: refused, timeout, unreachable, noroute."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _limit_segments(sock, segment)
        if source:
            sock.bind((source, 0))
        loop = asyncio.get_running_loop()
        await within(loop.sock_connect(sock, (address, port)), timeout_s)
        # On one machine, a socket can connect to itself if the system chooses the target port as its own.
        if sock.getsockname() == sock.getpeername():
            raise WireError("refused")
        reader = _Reader(LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
        return Conn(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
    except (OSError, OverflowError, asyncio.TimeoutError) as error:
        sock.close()
        raise WireError(_trouble(error)) from None
    except BaseException:
        sock.close()
        raise


def _trouble(error: BaseException) -> str:
    if not isinstance(error, OSError) or error.errno in (None, errno.ETIMEDOUT):
        return "timeout"
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return "refused"
    return "noroute" if error.errno == errno.ENETUNREACH else "unreachable"


def _limit_segments(sock: socket.socket, segment: int) -> None:
    if segment:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)


def bind(port: int, segment: int = SEGMENT) -> socket.socket:
    """A listening socket at `port` (0: any) of all addresses. Raises OSError, also if another process listens there."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _limit_segments(sock, segment)
        sock.bind(("", port))
        # With SO_REUSEADDR two sockets may bind. Only listen() fails if another one listens.
        sock.listen(1)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Listener:
    """Listening sockets, and a task for each connection that comes in."""

    def __init__(self, answer: Callable[[Conn], Awaitable[None]], max_connections: int) -> None:
        """`answer`: has the whole conversation. `max_connections`: open at a time; a further one is closed at once."""
        self._answer, self._max_connections = answer, max_connections
        self._servers: list[asyncio.Server] = []
        self._conns: dict[Conn, asyncio.Task[None]] = {}

    async def open(self, sock: socket.socket) -> int:
        """Listen on this socket too, and return its port."""
        port: int = sock.getsockname()[1]
        backlog = max(128, self._max_connections)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._new_protocol, sock=sock, backlog=backlog)
        self._servers.append(server)
        return port

    def _new_protocol(self) -> asyncio.StreamReaderProtocol:
        reader = _Reader(LINE)
        return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._enter(reader, writer))

    def _enter(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        conn = Conn(reader, writer)
        if len(self._conns) < self._max_connections:
            self._conns[conn] = asyncio.create_task(self._converse(conn))
        else:
            conn.abort()

    async def _converse(self, conn: Conn) -> None:
        try:
            await self._answer(conn)
        except WireError:
            pass  # the other side is gone, or no preflight
        finally:
            conn.close()
            self._conns.pop(conn, None)

    async def close(self) -> None:
        """Stop listening at once, and end the conversations that are left."""
        for server in self._servers:
            server.close()
        tasks = list(self._conns.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def resolve(name: str, timeout_s: float = 3.0) -> str:
    """The IPv4 address of a name. Raises WireError: unresolved."""

    try:
        socket.inet_pton(socket.AF_INET, name)
    except (OSError, ValueError):
        try:
            return await within(background(lambda: nic.resolve(name)), timeout_s)
        except (nic.NetworkError, asyncio.TimeoutError):
            raise WireError("unresolved") from None
    return name


def is_own(address: str) -> bool:
    """True if a numeric address is one of this host's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
        return True


async def is_store(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """True if torch's TCPStore listens there, so that a run is under way. The question does not disturb the store."""
    nonce = os.urandom(4)
    question = struct.pack("=BIB", _STORE_VALIDATE, _STORE_MAGIC, _STORE_PING) + nonce
    answer = b""
    try:
        conn = await dial(address, port, timeout_s)
    except WireError:
        return False
    try:
        conn.write(question)
        while len(answer) < len(nonce):
            answer += await conn.read(len(nonce), timeout_s)
    except WireError:
        return False
    finally:
        conn.abort()
    return answer == nonce


async def within(work: Awaitable[T], timeout_s: float) -> T:
    """Return the result of `work`. If it does not end in time, cancel it and raise asyncio.TimeoutError.

    Time in which this process itself stood still counts as one slice at most, because the others are not to blame.
    asyncio.wait_for is no alternative: before Python 3.12 it forgets a cancellation that comes when the work is just
    done, and the canceller would wait for ever: https://github.com/python/cpython/issues/86296.
    """
    task, left = asyncio.ensure_future(work), timeout_s
    try:
        while left > 0 and not task.done():
            began, slice_s = time.monotonic(), min(_SLICE_S, timeout_s / 3, left)
            await asyncio.wait([task], timeout=slice_s)
            left -= min(slice_s, time.monotonic() - began)
    finally:
        if task.cancel():
            await asyncio.wait([task])  # so that it releases its resources for the next task
        if not task.cancelled():
            task.exception()  # mark it as retrieved: a cancelled caller does not ask for it
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


def background(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a daemon thread, because it may hang in DNS or on a dead disk."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            way, value = future.set_result, work()
        except Exception as error:  # noqa: BLE001 - the awaiting caller raises it
            way, value = future.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, way, value)

    threading.Thread(target=run, daemon=True).start()
    return future
