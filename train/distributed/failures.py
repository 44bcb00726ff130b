"""A failure on one host that no restart can cure ends the job on all hosts, with its reason.

Owns the broadcast of the reason, through the TCPStore in which the processes met. The store exists before any
process group, and it works even while a collective hangs. Every process waits there for a reason, on a connection of
its own. A crash, which a restart may cure, is sent in the same way and ends no other process. A process that then
loses the crashed one names that crash as the cause. Knows nothing of the possible causes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# A wait in the store ends with the reason; after so long without one, the next wait begins.
WAIT_S = 60.0
# How long the process that holds the store waits, at its end, until the others have read the reason.
LAST_WAIT_S = 5.0
# How long a process that loses a peer waits for the peer's reason.
WORD_S = 1.5
# How long it may take to write the reason to the status, even on a busy disk or a file server.
_WRITE_S = 60.0
_FINAL, _CRASH = "final", "crash"
# The keys of two words: the first word of any process, and the first final word if that one was a crash.
_KEYS = ("failure/first", "failure/final")


class FatalErrorBroadcast:
    """The reason that ended the job for good, on every process as soon as one process knows it.

    When another process has failed, a thread calls `on_failure(reason)` once. This function must write the reason to
    the status and end this process, whatever the main thread waits for. `cause`: the first crash of a process, with its
    host; "" while none is known.
    """

    def __init__(self, host: str, rank: int, on_failure: Callable[[str], None]) -> None:
        self._host, self._rank, self._on_failure = host, rank, on_failure
        self._store: Store | None = None
        self._world_size = 1
        self.cause = ""
        self._closed = threading.Event()
        self._received_final, self._received = threading.Event(), threading.Event()
        # Called before this process ends for another's reason, to finish work that must not be cut off.
        self.before_end: Callable[[], None] = lambda: None

    def listen(self, store: Store, world_size: int) -> None:
        """Begin to listen in `store`, in which the processes have met."""
        from train.distributed.process_group import another_connection  # loads torch

        # Two connections, because one that waits takes no other request.
        self._store, waits = another_connection(store), another_connection(store)
        self._world_size = world_size
        threading.Thread(target=self._listen, args=[waits], name="failures", daemon=True).start()

    def broadcast(self, reason: str) -> tuple[str, bool]:
        """Send the reason to all processes. Returns the first reason of any process, and whether it is this one's."""
        word = self._word(_FINAL, reason)
        self._closed.set()
        if self._store is None:
            return _reason(word), True
        # If the store is gone, so is every process that could have read the reason there.
        with contextlib.suppress(RuntimeError):
            for key in _KEYS:
                first_word = self._store.compare_set(key, "", word).decode()
                if _kind(first_word) == _FINAL:
                    return _reason(first_word), first_word == word
        return _reason(word), True

    def broadcast_crash(self, cause: str) -> None:
        """Send the cause of a crash to the processes that are about to lose this one.

        Does not return if another process has failed for good before, because this process then ends.
        """
        if self._store is None:
            return
        with contextlib.suppress(RuntimeError):
            self._store.compare_set(_KEYS[0], "", self._word(_CRASH, cause))
            self.wait_for_word()
            self.wait_until_read()

    def wait_for_word(self, within_s: float = WORD_S) -> None:
        """After the loss of a peer, wait until its crash is known, for at most `within_s` seconds.

        Does not return if a process has failed for good, because this process then ends.
        """
        if (
            self._store is not None
            and self._received.wait(within_s)
            and self._received_final.is_set()
        ):
            # The listening thread has the reason: it writes the status and ends this process.
            time.sleep(_WRITE_S)

    def wait_until_read(self) -> None:
        """At the end of rank 0, whose process may hold the store, wait until the others have read the reason."""
        if self._store is None or self._rank != 0:
            return
        deadline = time.monotonic() + LAST_WAIT_S
        with contextlib.suppress(RuntimeError):
            last = _KEYS[1] if self._store.check([_KEYS[1]]) else _KEYS[0]
            while not self._is_read_by_all(last) and time.monotonic() < deadline:
                time.sleep(0.05)  # the store has no event for a count

    def close(self) -> None:
        """Ignore failures from now on, because the job has ended well everywhere."""
        self._closed.set()

    def _listen(self, store: Store) -> None:
        # On a RuntimeError the store is gone. A process in a collective with the store's host finds out by itself.
        with contextlib.suppress(RuntimeError):
            for key in _KEYS:
                word = _wait(store, key)
                if _kind(word) == _FINAL:
                    break
                self.cause = _reason(word)
                self._received.set()
                store.add(_read_count_key(key), 1)
            store.add(_read_count_key(key), 1)
            if not self._closed.is_set():
                self._received_final.set()
                self._received.set()
                self._on_failure(_reason(word))

    def _is_read_by_all(self, key: str) -> bool:
        assert self._store is not None
        return self._store.add(_read_count_key(key), 0) >= self._world_size

    def _word(self, kind: str, reason: str) -> str:
        return f"{kind} {self._rank} {self._host}: {reason}"


def _wait(store: Store, key: str) -> str:
    """Return the word at `key`, as soon as there is one. Raises RuntimeError when the store is gone."""
    from torch.distributed import DistStoreError

    while True:
        with contextlib.suppress(DistStoreError):  # no word for a while
            store.wait([key], timedelta(seconds=WAIT_S))
            return store.get(key).decode()


def _read_count_key(key: str) -> str:
    """Return the key of the counter of processes that have read the word."""
    return f"{key}/read"


def _kind(word: str) -> str:
    return word.partition(" ")[0]


def _reason(word: str) -> str:
    """Return the word without its kind and rank."""
    return word.split(" ", 2)[2]
