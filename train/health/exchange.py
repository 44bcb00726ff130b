"""The heartbeats of all hosts, by way of the store in which the processes met.

Owns a connection of its own and the thread that uses it: a store that does not answer blocks nobody else.

Every rank puts its beat there. In a small job one process of each host reads all of them. Where that would
be too much, rank 0 alone does, and puts a summary there that the other hosts read: the beats of the ranks
that it blames, and of a few others. Then the traffic grows with the ranks and not with ranks times hosts
(benchmarks/heartbeats.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from train.health.diagnosis import examine
from train.health.heartbeats import Beat, Heard, HostView

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# How often a host asks for the others' beats, and how much that may move at the store, all together.
_LISTEN_S = 2.0
_BYTES_A_SECOND = 2e6
_BEAT_BYTES = 900
_SLOWEST_S = 60.0
# While somebody waits for news.
_HURRY_S = 1.0
# How soon the thread sees that somebody does.
_TICK_S = 0.3
# So many beats are in a summary, at most.
_SUMMARY = 16


class Exchange:
    """The beats of all hosts, as one process of this host has them from the store; see the module."""

    def __init__(self, store: Store, own: Beat) -> None:
        self._store, self._own = store, own
        size = own.world_size
        hosts = max(1.0, size / max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        everything, most = hosts * size * _BEAT_BYTES, _LISTEN_S * _BYTES_A_SECOND
        self._summarised = everything > most
        moved = (size + hosts * (_SUMMARY + 1)) * _BEAT_BYTES if self._summarised else everything
        self.every = min(_SLOWEST_S, max(_LISTEN_S, moved / _BYTES_A_SECOND))
        self._partial = self._summarised and own.rank != 0
        self._summary, self._summary_at = b"", 0.0
        self._latest: Beat | None = None
        # By rank, with the time since when that is its youngest beat, by the clock of this process.
        self._beats: dict[int, tuple[Beat, float]] = {}
        self._answered = time.monotonic()
        self._wake = threading.Condition()
        self._hurry, self._closed = False, False

    def start(self) -> None:
        """Begin to write and, in the first process of a host, to read."""
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def send(self, beat: Beat) -> None:
        """Have this beat put into the store; never waits."""
        with self._wake:
            self._latest = beat
            self._wake.notify_all()

    def heard(self) -> HostView:
        """What is known of the others now."""
        now = time.monotonic()
        with self._wake:
            # Of rank 0 the silence counts from now on; the others were, in its summary, as they were then.
            till = self._summary_at if self._partial else now
            beats = [
                Heard(beat, max(0.0, (now if rank == 0 else till) - since))
                for rank, (beat, since) in sorted(self._beats.items())
            ]
            unanswered_s = now - self._answered
        return HostView(
            host=self._own.host,
            machine=self._own.machine,
            at=time.time(),
            monotonic=now,
            every=self.every,
            unanswered_s=round(unanswered_s, 1),
            heard=tuple(beats),
            partial=self._partial,
        )

    def fresh(self, timeout_s: float) -> None:
        """Ask once a second for `timeout_s`: whose beat does not change meanwhile is silent."""
        with self._wake:
            self._hurry = True
            self._wake.wait_for(lambda: self._closed, timeout_s)
            self._hurry = False

    def close(self) -> None:
        """No more of it."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _run(self) -> None:
        listened = 0.0
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
                reads = hurry or self._own.local_rank == 0
                if reads and time.monotonic() - listened >= (_HURRY_S if hurry else self.every):
                    listened = time.monotonic()
                    self._listen()
        except RuntimeError:
            return  # the store is gone; how long it has been silent is known

    def _put(self, beat: Beat) -> None:
        self._store.set(self._key(beat.rank), json.dumps(beat.as_json()))
        with self._wake:
            self._answered = time.monotonic()

    def _listen(self) -> None:
        if self._partial:
            self._read_summary()
        for rank, text in self._ask([0] if self._partial else range(self._own.world_size)):
            with contextlib.suppress(ValueError, RecursionError):
                self._take(rank, Beat.from_json(json.loads(text)))
        if self._summarised and self._own.rank == 0:
            self._store.set(self._key("summary"), json.dumps(self._summarise()))
        with self._wake:
            self._answered = time.monotonic()

    def _summarise(self) -> list[dict[str, Any]]:
        """Who is blamed, and some of the others, each with its age."""
        heard = self.heard().heard
        blamed = set(examine(heard, {}, late=2 * self.every).blamed)
        first = sorted(heard, key=lambda each: (each.beat.rank not in blamed, each.beat.rank))
        return [each.as_json() for each in first[:_SUMMARY]]

    def _read_summary(self) -> None:
        key = self._key("summary")
        if not self._summary and not self._store.check([key]):
            return
        text = self._store.get(key)
        if text == self._summary:
            return
        heard = [Heard.from_json(each) for each in json.loads(text)]
        with self._wake:
            self._summary, self._summary_at = text, time.monotonic()
            # Of rank 0 it is told by rank 0 itself.
            own = {rank: beat for rank, beat in self._beats.items() if rank == 0}
            told = {h.beat.rank: (h.beat, self._summary_at - h.age) for h in heard}
            self._beats = {**told, **own}

    def _ask(self, ranks: Sequence[int]) -> list[tuple[int, bytes]]:
        # Asked for what nobody has put there yet, a store waits.
        known = [r for r in ranks if r in self._beats]
        new = [r for r in ranks if r not in self._beats]
        known += [rank for rank in new if self._store.check([self._key(rank)])]
        if not known:
            return []
        texts: Sequence[Any] = self._store.multi_get([self._key(rank) for rank in known])
        return list(zip(known, texts))

    def _take(self, rank: int, beat: Beat) -> None:
        """A beat's age counts from when it first came here, so that no two clocks are compared.

        Of the first of a rank that is not known: only there its own clock has to do.
        """
        with self._wake:
            held, now = self._beats.get(rank), time.monotonic()
            if held is None:
                since = now - min(max(0.0, time.time() - beat.time), 3600.0)
            else:
                since = held[1] if held[0].monotonic == beat.monotonic else now
            self._beats[rank] = beat, since

    def _key(self, which: int | str) -> str:
        return f"heartbeat/{self._own.world}/{which}"
