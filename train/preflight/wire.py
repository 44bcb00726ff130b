"""Messages between hosts: a line of JSON each, over TCP connections that survive bad networks.

Owns the connecting, the listening, the bounds (of a line, of the number of connections, of time) and
the one word for whatever goes wrong. Knows no message by name, and nobody's part in the exchange.
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
# Small enough for any path: a network that loses large packets must not stop us from saying so.
SEGMENT = 500
_SLICE_S = 1.0
_STORE_VALIDATE, _STORE_PING, _STORE_MAGIC = 0, 13, 0x3C85F7CE  # torch's TCPStoreBackend.hpp

T = TypeVar("T")
Message = dict[str, Any]


class WireError(Exception):
    """`trouble`: "unresolved", "noroute", "unreachable", "refused", "timeout" (nothing comes back),
    "silent" (connected, but no word), "foreign" (not our language), "broken" (closed by the other)."""

    def __init__(self, trouble: str) -> None:
        super().__init__(trouble)
        self.trouble = trouble


def encode(kind: str, **content: Any) -> bytes:
    """A message as it goes over the wire; for many receivers it is made once."""
    line = json.dumps({"kind": kind, **content}, separators=(",", ":")).encode() + b"\n"
    if len(line) > LINE:
        raise ValueError(f"a message {kind!r} of {len(line)} bytes")
    return line


class _Reader(asyncio.StreamReader):
    """What came before the connection broke is read first; asyncio's own reader would drop it, and
    with it a verdict that lies there when this process was busy and the other has hung up."""

    broken = False

    def set_exception(self, exc: BaseException) -> None:
        self.broken = True
        self.feed_eof()


class Conn:
    """A connection to another host's preflight, or to whatever else turns out to be there."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._closed = asyncio.Event()
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if peer else ""

    def send(self, kind: str, **content: Any) -> None:
        """Queue a message; what cannot be delivered shows when the next one is awaited."""
        self.write(encode(kind, **content))

    def write(self, data: bytes) -> None:
        """Queue bytes. A peer that takes nothing for a long time is hung up on: memory is bounded."""
        if self._writer.transport.get_write_buffer_size() > 8 * LINE:
            self.abort()
        if not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message. Raises WireError: silent (after `timeout_s` seconds), foreign, broken.

        Without `timeout_s` it is waited for without end.
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
        """Some bytes, at most so many. Raises WireError: silent, broken."""
        try:
            data = await within(self._reader.read(most), timeout_s)
        except asyncio.TimeoutError:
            raise WireError("silent") from None
        if not data:
            raise WireError("broken")
        return data

    def close(self) -> None:
        """What was queued is still sent, as long as the loop runs."""
        self._closed.set()
        self._writer.close()

    def abort(self) -> None:
        """Close at once, whatever was queued."""
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
        # On one machine a port of the system's own range can end up connected to itself.
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
    """A socket at `port` (0: any) of all addresses, where nobody else listens. Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _limit_segments(sock, segment)
        sock.bind(("", port))
        # With SO_REUSEADDR two may bind; that another one listens shows only here.
        sock.listen(1)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Listener:
    """Listening sockets, and a task for each connection that comes in."""

    def __init__(self, answer: Callable[[Conn], Awaitable[None]], most: int) -> None:
        """`answer`: the whole conversation. `most`: connections at a time; more are hung up on."""
        self._answer, self._most = answer, most
        self._servers: list[asyncio.Server] = []
        self._conns: dict[Conn, asyncio.Task[None]] = {}

    async def open(self, sock: socket.socket) -> int:
        """Listen there too; its port."""
        port: int = sock.getsockname()[1]
        backlog = max(128, self._most)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._new_protocol, sock=sock, backlog=backlog)
        self._servers.append(server)
        return port

    def _new_protocol(self) -> asyncio.StreamReaderProtocol:
        reader = _Reader(LINE)
        return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._enter(reader, writer))

    def _enter(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        conn = Conn(reader, writer)
        if len(self._conns) < self._most:
            self._conns[conn] = asyncio.create_task(self._converse(conn))
        else:
            conn.abort()

    async def _converse(self, conn: Conn) -> None:
        try:
            await self._answer(conn)
        except WireError:
            pass  # whoever it was: gone, or no preflight
        finally:
            conn.close()
            self._conns.pop(conn, None)

    async def close(self) -> None:
        """Stop listening, at once; end the conversations that are left."""
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
    """Whether a numeric address is one of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
        return True


async def is_store(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether torch's TCPStore listens there: a run is under way. It takes no notice of being asked."""
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
    """What comes of it. Raises asyncio.TimeoutError when it does not end in time: then it is cancelled.

    Time in which this process itself stood still counts for one slice at most, and not against others.
    Before Python 3.12 asyncio.wait_for forgets a cancellation that comes when the work is just done,
    and who cancelled would wait for ever: https://github.com/python/cpython/issues/86296.
    """
    task, left = asyncio.ensure_future(work), timeout_s
    try:
        while left > 0 and not task.done():
            began, slice_s = time.monotonic(), min(_SLICE_S, timeout_s / 3, left)
            await asyncio.wait([task], timeout=slice_s)
            left -= min(slice_s, time.monotonic() - began)
    finally:
        if task.cancel():
            await asyncio.wait([task])  # what it held, the next one may want
        if not task.cancelled():
            task.exception()  # where the caller is cancelled nobody else asks for it
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


def background(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run it in a thread that nobody waits for at the end: it may hang, in DNS or on a dead disk."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            way, value = future.set_result, work()
        except Exception as error:  # noqa: BLE001 - whoever awaits it raises it
            way, value = future.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, way, value)

    threading.Thread(target=run, daemon=True).start()
    return future
