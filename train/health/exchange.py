"""The heartbeats of all hosts, through the TCPStore in which the processes met.

Owns its own connection and the thread that uses it, so that a store that does not answer blocks nothing else.

Every rank writes its heartbeat to the TCPStore, and one process of each host reads all of them. If that is too much
traffic for one store, only rank 0 reads. The traffic then grows with the ranks, and not with ranks times hosts.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from train.base import typed
from train.health.heartbeats import Beat, Heard, HostView

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# The period at which a host reads the others' heartbeats, and the bytes per second that all reads may take.
_LISTEN_S = 2.0
_BYTES_A_SECOND = 2e6
_BEAT_BYTES = 900
_SLOWEST_S = 60.0
# The period while a caller waits for new heartbeats.
_HURRY_S = 1.0
# The period at which the thread looks for such a caller.
_TICK_S = 0.3


class Exchange:
    """The heartbeats of all hosts that one process of this host has read from the store. `reads`: True if it may read."""

    def __init__(self, store: Store, own: Beat) -> None:
        self._store, self._own = store, own
        size = own.world_size
        hosts = max(1.0, size / max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        everything = hosts * size * _BEAT_BYTES
        is_large = everything > _LISTEN_S * _BYTES_A_SECOND
        self.reads = own.rank == 0 or not is_large
        moved = 2 * size * _BEAT_BYTES if is_large else everything
        self.every = min(_SLOWEST_S, max(_LISTEN_S, moved / _BYTES_A_SECOND))
        self._latest: Beat | None = None
        # By rank, with the time since when that is its newest heartbeat, by the clock of this process.
        self._beats: dict[int, tuple[Beat, float]] = {}
        self._answered = time.monotonic()
        self._wake = threading.Condition()
        self._hurry, self._closed = False, False

    def start(self) -> None:
        """Begin to write and, in the first process of a host, to read."""
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def send(self, beat: Beat) -> None:
        """Have this heartbeat put into the store; never waits."""
        with self._wake:
            self._latest = beat
            self._wake.notify_all()

    def heard(self) -> HostView:
        now = time.monotonic()
        with self._wake:
            beats = [Heard(beat, now - since) for beat, since in self._beats.values()]
            unanswered_s = now - self._answered
        return HostView(
            host=self._own.host,
            machine=self._own.machine,
            at=time.time(),
            monotonic=now,
            every=self.every,
            unanswered_s=round(unanswered_s, 1),
            heard=tuple(beats),
            partial=not self.reads,
            world=self._own.world,
        )

    def fresh(self, timeout_s: float) -> None:
        """Ask once a second for `timeout_s`: a rank whose heartbeat does not change meanwhile is silent."""
        with self._wake:
            self._hurry = True
            self._wake.wait_for(lambda: self._closed, timeout_s)
            self._hurry = False

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _run(self) -> None:
        read = 0.0
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._latest or self._closed, _TICK_S)
                    if self._closed:
                        return
                    beat, self._latest = self._latest, None
                    hurry = self._hurry
                if beat is not None:
                    self._put(beat)
                is_due = time.monotonic() - read >= (_HURRY_S if hurry else self.every)
                if self.reads and is_due and (hurry or self._own.local_rank == 0):
                    read = time.monotonic()
                    self._read()
        except RuntimeError:
            return  # the store is gone; how long it has been silent is known

    def _put(self, beat: Beat) -> None:
        self._store.set(self._key(beat.rank), json.dumps(asdict(beat)))
        with self._wake:
            self._answered = time.monotonic()

    def _read(self) -> None:
        # A store that is asked for what nobody has put there yet waits.
        ranks = range(self._own.world_size)
        known = [r for r in ranks if r in self._beats or self._store.check([self._key(r)])]
        texts: list[Any] = self._store.multi_get([self._key(r) for r in known]) if known else []
        for rank, text in zip(known, texts):
            if beat := typed.parse(Beat, text):
                self._take(rank, beat)
        with self._wake:
            self._answered = time.monotonic()

    def _take(self, rank: int, beat: Beat) -> None:
        """A heartbeat's age counts from when it first came here, so that no two clocks are compared.

        For the first one of a rank that is not known: its age is by the sender's clock.
        """
        with self._wake:
            held, now = self._beats.get(rank), time.monotonic()
            if held is None:
                since = now - min(max(0.0, time.time() - beat.time), 3600.0)
            else:
                since = held[1] if held[0].monotonic == beat.monotonic else now
            self._beats[rank] = beat, since

    def _key(self, rank: int) -> str:
        return f"heartbeat/{self._own.world}/{rank}"
