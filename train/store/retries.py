"""How long a store is waited for: one that fails for a moment, and one that never answers.

Owns the second tries of a start, and the thread of its own that every operation runs in, so that a
call into a mount that hangs holds up nobody but itself. Knows nothing of what is in the store.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.console import say
from train.store.places import Store, StoreError, why

# How often, and after how many seconds each, a store is asked again before a start gives up.
PAUSES_S = (0.0, 2.0, 10.0, 30.0)
# What an operation may take, and what a byte of it adds: less is no store to train with.
LIMIT_S = 120.0
_SLOWEST = 1e6  # bytes/s
# How often a start says what it waits for.
SAY_EVERY_S = 30.0
_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class HangsError(StoreError):
    """An operation has not come back."""


def with_retries(name: str, action: Callable[[], Any]) -> Any:
    """Try again what may fail for a moment. Raises what the last try raises.

    `name`: the store's, for the one line that says what is waited for.
    """
    failed: OSError | None = None
    for pause in PAUSES_S:
        if failed is not None and pause == PAUSES_S[1]:
            say(f"{name}: {why(failed)}; trying again for {sum(PAUSES_S):g} s")
        time.sleep(pause)
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            failed = error
            if error.errno in _HOPELESS:
                break
    assert failed is not None
    raise failed


@dataclass
class _Call:
    """One operation under way. `size`: in bytes, of what it moves."""

    what: str
    size: int
    began: float = field(default_factory=time.monotonic)
    done: bool = False
    result: Any = None
    error: BaseException | None = None


class Line:
    """Calls to a store that come back, one way or another.

    Until `limit` they are waited for without end, with a line every 30 s; from then on one that takes
    too long raises HangsError, as does every other one until it has come back.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._late: list[_Call] = []
        self._limited = False

    def limit(self) -> None:
        with self._changed:
            self._limited = True

    def run(self, what: str, size: int, action: Callable[[], Any]) -> Any:
        """Do `action`, which moves `size` bytes, and return what it returns. Raises what it raises,
        and HangsError."""
        with self._changed:
            self._late = [call for call in self._late if not call.done]
            if self._late:
                raise _hangs(self._late[0])
        call = _Call(what, size)

        def work() -> None:
            try:
                call.result = action()
            except BaseException as error:  # noqa: BLE001 - handed on, not swallowed
                call.error = error
            with self._changed:
                call.done = True
                self._changed.notify_all()

        threading.Thread(target=work, name="store call", daemon=True).start()
        self._await(call)
        if call.error is not None:
            raise call.error
        return call.result

    def _await(self, call: _Call) -> None:
        say_at = call.began + SAY_EVERY_S
        with self._changed:
            while not call.done:
                end, now = self._end_of(call), time.monotonic()
                if end is not None and now >= end:
                    self._late.append(call)
                    raise _hangs(call)
                if end is None and now >= say_at:
                    say(f"waiting for {self.name} ({call.what}), {now - call.began:.0f} s so far")
                    say_at = now + SAY_EVERY_S
                self._changed.wait((say_at if end is None else end) - now)

    def _end_of(self, call: _Call) -> float | None:
        if not self._limited:
            return None
        return call.began + LIMIT_S + call.size / _SLOWEST


class Answering(Line):
    """A store, each of whose operations is such a call."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.name)
        self._store = store

    def list(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = self.run("a listing", 0, lambda: self._store.list(prefix))
        return found

    def read(self, name: str) -> bytes:
        content: bytes = self.run(name, 0, lambda: self._store.read(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        self.run(name, len(content), lambda: self._store.write(name, content))

    def put(self, name: str, source: Path) -> None:
        self.run(name, source.stat().st_size, lambda: self._store.put(name, source))

    def get(self, name: str, target: Path) -> None:
        self.run(name, 0, lambda: self._store.get(name, target))

    def delete(self, name: str) -> None:
        self.run(name, 0, lambda: self._store.delete(name))


def _hangs(call: _Call) -> HangsError:
    since = time.monotonic() - call.began
    return HangsError(f"a call has not come back for {since:.0f} s ({call.what})")
