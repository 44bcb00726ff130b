"""The agreement of all ranks of a user's script on the step after which they stop, when somebody asks for it.

A rank that knows of the request says so in the TCPStore in which the processes met, and from then on looks there after
every step. When all ranks look, rank 0 names its next step there before it begins that step. No rank can end that step
without rank 0, so none misses it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from train.base.console import say
from train.script.hooks.progress import Progress

_ASKED, _READY, _LAST = "ddpgen/stop-asked", "ddpgen/ranks-ready", "ddpgen/last-step"


class StopAtStep:
    """One rank's part of the agreement. `due()` returns whether the rank ends now, after a complete step."""

    def __init__(
        self,
        progress: Progress,
        stop_requested: Callable[[], bool],
        grace_s: float,
        rank: int,
        ranks: int,
    ) -> None:
        """`stop_requested`: returns whether somebody wants the job to stop. `grace_s`: how long to wait for a save."""
        self._progress, self._stop_requested, self._grace_s = progress, stop_requested, grace_s
        self._rank, self._ranks = rank, ranks
        self._requested_at = 0.0
        self._ready = False
        self._all_ready_since = 0.0
        self._last: int | None = None
        self._saves = True  # wait for the script's next save

    def saves_on_demand(self) -> None:
        """Do not wait for a save: the framework saves when it stops."""
        self._saves = False

    def due(self) -> bool:
        """Return whether the complete step is the last one. The thread that trains calls this after each step."""
        if self._requested_at and self._last is None:
            try:
                self._agree()
            except Exception:  # noqa: BLE001 - the store is gone, and with it the others
                self._last = 0
        return self._last is not None and self._progress.steps_taken >= self._last

    def check_request(self) -> bool:
        """Return whether the job must stop, because somebody has asked this host or another rank says so."""
        if not self._requested_at and (self._stop_requested() or self._requested_by_rank()):
            self._requested_at = time.monotonic()
            if self._rank == 0 and not self._may_end():
                say(f"stopping after the script's next save, or in {self._grace_s:g} s")
        return bool(self._requested_at)

    def _requested_by_rank(self) -> bool:
        with contextlib.suppress(Exception):  # the store is gone; this process ends in another way
            store = self._store()
            return store is not None and bool(store.check([_ASKED]))
        return False

    def _agree(self) -> None:
        store, now = self._store(), self._progress.steps_taken
        if store is None:
            self._last = now if self._may_end() else None
            return
        _finish_on_gpu()
        if not self._ready:
            self._ready = True
            store.set(_ASKED, "1")
            store.add(_READY, 1)
        if self._rank:
            self._last = int(store.get(_LAST)) if store.check([_LAST]) else None
        elif self._all_ready(store) and self._may_end():
            self._last = now + 1
            store.set(_LAST, str(self._last))

    def _all_ready(self, store: Any) -> bool:
        if not self._all_ready_since and store.add(_READY, 0) == self._ranks:
            self._all_ready_since = time.monotonic()
        return bool(self._all_ready_since)

    def _may_end(self) -> bool:
        saved_at, waited = self._progress.saved_at, time.monotonic() - self._requested_at
        # Do not wait for a script that has not saved anything yet, because it may never save.
        saved = not saved_at or saved_at > max(self._requested_at, self._all_ready_since)
        return not self._saves or saved or waited > self._grace_s

    def _store(self) -> Any:
        return rendezvous_store() if self._ranks > 1 else None


def rendezvous_store() -> Any:
    """Return the TCPStore in which the processes met, or None before they have met."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    # A module that is still being imported lacks some of its functions.
    is_initialized = getattr(c10d, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return c10d._get_default_store()


def _finish_on_gpu() -> None:
    """Wait for the GPU, because the thread that trains may be steps ahead of it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
