"""Retries and time limits, for a store that fails for a moment and for one that never answers.

Owns the retries of a start. Runs every operation in a thread of its own, so that a call into a mount that hangs
blocks only this thread. Knows nothing of the store's content.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from train.base.console import say
from train.checkpoint.store.places import Store, StoreError, describe_error

# The pause before each try of a start, in seconds. After the last try the start gives up.
PAUSES_S = (0.0, 2.0, 10.0, 30.0)
# How long an operation may take, and the rate that adds time for each byte. A slower store is of no use to a training.
LIMIT_S = 120.0
_SLOWEST = 1e6  # bytes/s
# The interval of the lines that a start prints while it waits.
SAY_EVERY_S = 30.0
_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class HangsError(StoreError):
    """An operation has not returned within its time limit."""


def with_retries(name: str, action: Callable[[], Any]) -> Any:
    """Return the result of `action`, which is tried again if it fails. Raises the error of the last try.

    An error that no further try cures is raised at once. `name`: the name of the store, for the line that tells of the
    wait.
    """
    failed: OSError | None = None
    for pause in PAUSES_S:
        if failed is not None and pause == PAUSES_S[1]:
            say(f"{name}: {describe_error(failed)}; trying again for {sum(PAUSES_S):g} s")
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


class StoreCalls:
    """Calls to a store, each in a thread of its own.

    Before `limit` is called, a call may take any time, and a line every 30 s tells of the wait. After that, a call
    that takes too long raises HangsError. Until that call has returned, every other call raises HangsError as well.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._late: list[tuple[Future[Any], str, float]] = []
        self._limited = False

    def limit(self) -> None:
        self._limited = True

    def run(self, operation: str, size: int, action: Callable[[], Any]) -> Any:
        """Do `action`, which moves `size` bytes, and return its result. Raises its errors, and HangsError."""
        self._late = [late for late in self._late if not late[0].done()]
        for _, late_one, since in self._late:
            raise _hangs(late_one, since)
        call: Future[Any] = Future()

        def work() -> None:
            try:
                call.set_result(action())
            except BaseException as error:  # noqa: BLE001 - handed on, not swallowed
                call.set_exception(error)

        began = time.monotonic()
        threading.Thread(target=work, name="store call", daemon=True).start()
        wait_s = LIMIT_S + size / _SLOWEST if self._limited else SAY_EVERY_S
        while not wait([call], wait_s).done:
            if self._limited:
                self._late.append((call, operation, began))
                raise _hangs(operation, began)
            say(f"waiting for {self.name} ({operation}), {time.monotonic() - began:.0f} s so far")
        return call.result()


class BoundedStore(StoreCalls):
    """A store whose operations all go through `StoreCalls.run`."""

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


def _hangs(operation: str, started_at: float) -> HangsError:
    return HangsError(
        f"a call has not come back for {time.monotonic() - started_at:.0f} s ({operation})"
    )
