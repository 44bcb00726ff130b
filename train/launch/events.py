"""The events of a supervisor, one at a time: signals, ends of children, results of threads.

Owns the selector loop and the wakeup descriptor. Knows nothing of an event's meaning.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Union


@dataclass(frozen=True)
class Signal:
    """A signal has arrived. `name`: without SIG."""

    name: str


@dataclass(frozen=True)
class Exit:
    """A child has ended. `code`: its exit code, 128 + N when signal N ended it."""

    pid: int
    code: int


@dataclass(frozen=True)
class Result:
    """The function that run_in_thread() was given has returned `value`, or raised `error`."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Readable:
    """A watched descriptor has `data` to read; b"" at its end."""

    data: bytes


@dataclass(frozen=True)
class Due:
    """An alarm has come due. `name`: as it was set."""

    name: str


# A signal that has ended a child may come here so many seconds later, because its sender signals one process after the
# other.
LATE_S = 1.0

# Two equal signals within so many seconds count as one. `timeout`, for example, passes a Ctrl-C on to processes that
# have it from the terminal already.
_SAME_S = 0.5

Event = Union[Signal, Exit, Result, Readable, Due]


class Events:
    """The events of this process, in the order in which they are noticed. Only the main thread uses the object."""

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        even_ignored: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen to `signals`, except those that this process ignores from its start on.

        `even_ignored`: listen to those as well, because a shell ignores them while it becomes this process.
        """
        self._clock = clock
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._children: set[int] = set()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._alarms: dict[str, float] = {}
        self._pending: list[Event] = []
        self._handled_signals: list[signal.Signals] = []
        self._signals: dict[int, float] = {}  # when each came last
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for signum in (*signals, signal.SIGCHLD):
            heard = even_ignored or signum is signal.SIGCHLD
            if heard or signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, _noticed)
                self._handled_signals.append(signum)

    def close(self) -> None:
        """Ignore signals from now on, because the process is about to end.

        Otherwise a signal that comes after the wakeup descriptor was closed would print a traceback.
        """
        for signum in self._handled_signals:
            signal.signal(signum, signal.SIG_DFL if signum is signal.SIGCHLD else signal.SIG_IGN)
        signal.set_wakeup_fd(-1)

    def run_in_thread(self, work: Callable[[], Any]) -> None:
        """Run `work` in a thread; a Result comes when it returns. It is abandoned when the process ends."""

        def run() -> None:
            try:
                result = Result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                result = Result(error=error)
            self._results.put(result)
            with contextlib.suppress(OSError):  # full: the loop wakes up anyway
                self._wake.send(b"\0")

        threading.Thread(target=run, daemon=True).start()

    def result_of(self, work: Callable[[], Any], on_event: Callable[[Event], None]) -> Any:
        """Run `work` in a thread; return its result. `on_event` gets the events that come meanwhile. Raises what either
        raises."""
        self.run_in_thread(work)
        while True:
            event = self.next()
            if isinstance(event, Result):
                if event.error is not None:
                    raise event.error
                return event.value
            on_event(event)

    def watch_child(self, pid: int) -> None:
        """Add an Exit event when `pid`, a child of this process, ends."""
        self._children.add(pid)
        self._reap()  # it may have ended already

    def watch_descriptor(self, descriptor: int) -> None:
        """Add a Readable event whenever there is something to read, until the end of file."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def set_alarm(self, name: str, seconds: float) -> None:
        """Add a Due event in `seconds`. It replaces an earlier alarm of that name."""
        self._alarms[name] = self._clock() + seconds

    def inject(self, event: Event) -> None:
        """Add `event`, before any event that is noticed later."""
        self._pending.append(event)

    def next(self) -> Event:
        """Wait for the next event and return it."""
        while not self._pending:
            due = min(self._alarms.values(), default=None)
            timeout = None if due is None else max(0.0, due - self._clock())
            ready = {key.fd for key, _ in self._selector.select(timeout)}
            if self._woken.fileno() in ready:
                ready.discard(self._woken.fileno())
                self._drain()
            for descriptor in ready:
                self._read_descriptor(descriptor)
            # Data that waited while this process was frozen may put an alarm off, so handle the data first.
            if self._pending:
                break
            for name in [name for name, at in self._alarms.items() if at <= self._clock()]:
                del self._alarms[name]
                self._pending.append(Due(name))
        return self._pending.pop(0)

    def _drain(self) -> None:
        try:
            numbers = self._woken.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number not in (0, signal.SIGCHLD) and self._is_another(number):
                self._pending.append(Signal(signal.Signals(number).name[3:]))
        with contextlib.suppress(queue.Empty):
            while True:
                self._pending.append(self._results.get_nowait())
        self._reap()

    def _is_another(self, number: int) -> bool:
        now, last = self._clock(), self._signals.get(number)
        if last is not None and now - last < _SAME_S:
            return False
        self._signals[number] = now
        return True

    def _reap(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._children.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                self._pending.append(Exit(pid, code if code >= 0 else 128 - code))

    def _read_descriptor(self, descriptor: int) -> None:
        data = os.read(descriptor, 4096)
        if not data:
            self._selector.unregister(descriptor)
        self._pending.append(Readable(data))


def _noticed(signum: int, frame: FrameType | None) -> None:
    """Do nothing, because the wakeup descriptor has the signal already."""
