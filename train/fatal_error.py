"""A failure that no restart can cure, on one host, ends the job on all hosts, with its reason.

Owns the broadcast of the reason, through the TCPStore in which the processes met: that is there before any
process group is, and outlives a collective that will never end. Every process waits there for a reason, on
a connection of its own. Knows nothing of what can fail.
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

# A wait in the store ends with the reason; after so long it is begun anew.
WAIT_S = 60.0
# How long the process in which the store lives waits, at its end, for the others to have read it.
LAST_WAIT_S = 5.0
# How long a process that loses a peer waits for the peer's reason.
WORD_S = 1.5
# How long that may take to be written to the status: a busy disk, a file server.
_WRITE_S = 60.0
_REASON, _READ = "failure/reason", "failure/read"


class FatalErrorBroadcast:
    """What ended the job for good, as soon as any process knows.

    `on_heard(reason)` is called once, by a thread of its own, when another process has failed: it
    is to write the reason to the status and end this process, whatever the main thread waits for.
    """

    def __init__(self, host: str, rank: int, on_heard: Callable[[str], None]) -> None:
        self._host, self._rank, self._on_heard = host, rank, on_heard
        self._store: Store | None = None
        self._world_size = 1
        self._closed = threading.Event()
        self._heard = threading.Event()
        # What is to be finished before this process ends for another's reason.
        self.before_end: Callable[[], None] = lambda: None

    def listen(self, store: Store, world_size: int) -> None:
        """Begin to listen: the processes have met in `store`."""
        from train.parallel.process_group import another_connection  # loads torch

        # Two connections: one that waits takes no other request.
        self._store, waits = another_connection(store), another_connection(store)
        self._world_size = world_size
        threading.Thread(target=self._listen, args=[waits], name="failures", daemon=True).start()

    def tell(self, why: str) -> tuple[str, bool]:
        """Send the reason to all processes. Returns the first one, and whether it is this process' own."""
        word = f"{self._rank} {self._host}: {why}"
        self._closed.set()
        if self._store is None:
            return _reason(word), True
        try:
            stands = self._store.compare_set(_REASON, "", word).decode()
        except RuntimeError:
            # The store is gone, and with it everybody who could have read it there.
            return _reason(word), True
        return _reason(stands), stands == word

    def wait_for_word(self, within_s: float = WORD_S) -> None:
        """After the loss of a peer: does not return if that one has given a reason, as this process then ends."""
        if self._store is not None and self._heard.wait(within_s):
            # The thread that has received it writes it to the status, and ends this process.
            time.sleep(_WRITE_S)

    def wait_until_read(self) -> None:
        """At the end of the process in which the store may live: let the others read it."""
        if self._store is None or self._rank != 0:
            return
        deadline = time.monotonic() + LAST_WAIT_S
        with contextlib.suppress(RuntimeError):
            while self._store.add(_READ, 0) < self._world_size and time.monotonic() < deadline:
                time.sleep(0.05)  # the store has no event for a count

    def close(self) -> None:
        """The job has ended well everywhere: what happens to the store no longer matters."""
        self._closed.set()

    def _listen(self, store: Store) -> None:
        # The store is gone: who is in a collective with its host finds out by itself.
        with contextlib.suppress(RuntimeError):
            _wait(store)
            reason = _reason(store.get(_REASON).decode())
            store.add(_READ, 1)
            if not self._closed.is_set():
                self._heard.set()
                self._on_heard(reason)


def _wait(store: Store) -> None:
    """Until there is a reason. Raises RuntimeError when the store is gone."""
    from torch.distributed import DistStoreError

    while True:
        with contextlib.suppress(DistStoreError):  # none for a while
            store.wait([_REASON], timedelta(seconds=WAIT_S))
            return


def _reason(word: str) -> str:
    """Without the rank in front."""
    return word.partition(" ")[2]
