"""Run other programs. The only module here that does.

Owns their ends. Each program is in a session of its own, so that a terminal's Ctrl-C does not reach it. It is
killed when its caller gives it up. Output is passed on at once. Every wait has the limit that the caller sets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from . import trace

# The longest time for which a program's output is read after the program's end: ssh leaves a background process that
# may keep our pipe open.
_DRAIN_S = 1.0
_TERM_S = 2.0
_MAX_OUTPUT = 4 << 20


@dataclass(frozen=True)
class Completed:
    """The end of a program. `code` is None if it ran out of time."""

    code: int | None
    output: bytes


class Child(asyncio.SubprocessProtocol):
    """One running program: its input, its output and its end."""

    def __init__(self, on_output: Callable[[bytes], None], log_end: Callable[[int], None]) -> None:
        self._on_output, self._log_end = on_output, log_end
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._drained = False
        self._exited = False

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        on_output: Callable[[bytes], None],
        cwd: str | None = None,
        line: str = "",
    ) -> Child:
        """Start a program. Raise OSError if it cannot be started. `line`: see trace.begin()."""
        loop = asyncio.get_running_loop()
        ended = trace.begin(argv, cwd, line)
        starting = loop.create_task(
            loop.subprocess_exec(
                lambda: cls(on_output, ended),
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
            )
        )
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:
            # A cancelled subprocess_exec() waits until every process that has the program's pipes ends.
            _, child = await starting
            await child.kill()
            raise
        return starting.result()[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._on_output(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._drained = True
            if self._exited:
                self._finish()

    def process_exited(self) -> None:
        self._exited = True
        if self._drained:
            self._finish()
        else:
            self._loop.call_later(_DRAIN_S, self._finish)

    def _finish(self) -> None:
        assert self._transport is not None
        if not self._ended.done():
            code = self._transport.get_returncode() or 0
            self._ended.set_result(code)
            self._transport.close()
            self._log_end(code)

    def write(self, data: bytes) -> None:
        """Queue `data` for the program's input, unless the input is closed."""
        pipe = self._input()
        if pipe is not None and not pipe.is_closing():
            pipe.write(data)

    def close_input(self) -> None:
        """Close the program's input, once it has read the rest."""
        pipe = self._input()
        if pipe is not None and not pipe.is_closing():
            pipe.close()

    def _input(self) -> asyncio.WriteTransport | None:
        assert self._transport is not None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    async def ended_within(self, seconds: float | None) -> int | None:
        """Wait at most `seconds` for the end. Return the exit code, negative for a signal; None if time ran out."""
        # Before Python 3.12 wait_for forgets a cancellation that comes in the same moment as the end:
        # https://github.com/python/cpython/issues/86296
        await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.result() if self._ended.done() else None

    async def kill(self) -> None:
        """End the program and its children: SIGTERM first, and SIGKILL after _TERM_S."""
        for number, timeout_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
            if self._ended.done():
                return
            self._signal(number)
            await asyncio.wait([self._ended], timeout=timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        assert self._transport is not None
        if not self._exited:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), number)


async def run(
    argv: Sequence[str],
    stdin: bytes,
    timeout_s: float | None,
    cwd: str | None = None,
    show: Callable[[bytes], None] | None = None,
    line: str = "",
) -> Completed:
    """Run a program with `stdin` as its input, for at most `timeout_s`. `show` gets its output at once.

    `line`: see trace.begin(). If the caller is cancelled, the program is ended as well. Raises OSError.
    """
    output = bytearray()

    def collect(data: bytes) -> None:
        output.extend(data[: _MAX_OUTPUT - len(output)])
        if show is not None:
            show(data)

    child = await Child.start(argv, collect, cwd, line)
    try:
        child.write(stdin)
        child.close_input()
        code = await child.ended_within(timeout_s)
    finally:
        await child.kill()
    return Completed(code, bytes(output))
