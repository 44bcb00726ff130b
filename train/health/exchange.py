"""The heartbeats of all hosts, through the TCPStore in which the processes met.

Owns a connection of its own and the thread that uses it, so that a store that does not answer blocks nothing else.

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
from train.health.heartbeats import Beat, HostView, ReceivedBeat

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# The period at which a host reads the others' heartbeats, and the bytes per second that all reads may take.
_LISTEN_S = 2.0
_BYTES_A_SECOND = 2e6
_BEAT_BYTES = 900
_SLOWEST_S = 60.0
# The period while a caller waits for new heartbeats.
_REFRESH_S = 1.0
# The period at which the thread looks for such a caller.
_TICK_S = 0.3


class Exchange:
    """The heartbeats of all ranks that this process has read from the store. `reads`: True if this process may read."""

    def __init__(self, store: Store, own_beat: Beat) -> None:
        self._store, self._own_beat = store, own_beat
        size = own_beat.world_size
        hosts = max(1.0, size / max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        everything = hosts * size * _BEAT_BYTES
        is_large = everything > _LISTEN_S * _BYTES_A_SECOND
        self.reads = own_beat.rank == 0 or not is_large
        moved = 2 * size * _BEAT_BYTES if is_large else everything
        self.read_interval_s = min(_SLOWEST_S, max(_LISTEN_S, moved / _BYTES_A_SECOND))
        self._unsent_beat: Beat | None = None
        # The newest heartbeat of each rank, with the time at which it came, by the clock of this process.
        self._beats: dict[int, tuple[Beat, float]] = {}
        self._answered = time.monotonic()
        self._wake = threading.Condition()
        self._refreshing, self._closed = False, False

    def start(self) -> None:
        """Begin to write. If this is the first process of its host and may read, begin to read, too."""
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def send(self, beat: Beat) -> None:
        """Have the thread put this heartbeat into the store; do not wait for that."""
        with self._wake:
            self._unsent_beat = beat
            self._wake.notify_all()

    def host_view(self) -> HostView:
        now = time.monotonic()
        with self._wake:
            beats = [ReceivedBeat(beat, now - since) for beat, since in self._beats.values()]
            unanswered_s = now - self._answered
        return HostView(
            host=self._own_beat.host,
            machine=self._own_beat.machine,
            at=time.time(),
            monotonic=now,
            every=self.read_interval_s,
            unanswered_s=round(unanswered_s, 1),
            heard=tuple(beats),
            partial=not self.reads,
            world=self._own_beat.world,
        )

    def refresh(self, timeout_s: float) -> None:
        """Read once a second for `timeout_s` seconds. A rank whose heartbeat does not change meanwhile is silent."""
        with self._wake:
            self._refreshing = True
            self._wake.wait_for(lambda: self._closed, timeout_s)
            self._refreshing = False

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _run(self) -> None:
        read_at = 0.0
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._unsent_beat or self._closed, _TICK_S)
                    if self._closed:
                        return
                    beat, self._unsent_beat = self._unsent_beat, None
                    refreshing = self._refreshing
                if beat is not None:
                    self._put_beat(beat)
                interval_s = _REFRESH_S if refreshing else self.read_interval_s
                is_due = time.monotonic() - read_at >= interval_s
                if self.reads and is_due and (refreshing or self._own_beat.local_rank == 0):
                    read_at = time.monotonic()
                    self._read_beats()
        except RuntimeError:
            return  # the store is gone; `unanswered_s` of the host's view grows from now on

    def _put_beat(self, beat: Beat) -> None:
        self._store.set(self._key(beat.rank), json.dumps(asdict(beat)))
        with self._wake:
            self._answered = time.monotonic()

    def _read_beats(self) -> None:
        # The store would wait for a key that no rank has set yet, so ask first which keys are there.
        ranks = range(self._own_beat.world_size)
        present = [r for r in ranks if r in self._beats or self._store.check([self._key(r)])]
        texts: list[Any] = self._store.multi_get([self._key(r) for r in present]) if present else []
        for rank, text in zip(present, texts):
            if beat := typed.parse(Beat, text):
                self._record_beat(rank, beat)
        with self._wake:
            self._answered = time.monotonic()

    def _record_beat(self, rank: int, beat: Beat) -> None:
        """Keep a rank's newest heartbeat. Its age counts from its arrival here, so that no two clocks are compared.

        The first heartbeat of a rank may have been in the store for long, so its age is by the sender's clock.
        """
        with self._wake:
            previous, now = self._beats.get(rank), time.monotonic()
            if previous is None:
                since = now - min(max(0.0, time.time() - beat.time), 3600.0)
            else:
                since = previous[1] if previous[0].monotonic == beat.monotonic else now
            self._beats[rank] = beat, since

    def _key(self, rank: int) -> str:
        return f"heartbeat/{self._own_beat.world}/{rank}"
