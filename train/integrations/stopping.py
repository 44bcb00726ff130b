"""After which step all ranks of a user's script stop, when somebody asks for it.

Rank 0 decides: after the script's next save, or when the time for that is over, it names a step that
no rank has reached yet. The others hear it through the store in which the processes met.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from train.integrations.progress import Progress

# How often the others look; the step lies so far ahead that all have looked by then.
LOOK_S, AHEAD_S = 0.5, 2.0
_ASKED, _LAST = "ddpgen/stop-asked", "ddpgen/last-step"


class StopAtStep:
    """`due()` says whether this rank ends now, after a complete step."""

    def __init__(
        self, progress: Progress, asked: Callable[[], bool], grace_s: float, rank: int, ranks: int
    ) -> None:
        """`asked`: whether somebody wants the job to stop. `grace_s`: how long a save is waited for."""
        self._progress, self._asked, self._grace_s = progress, asked, grace_s
        self._rank, self._ranks = rank, ranks
        self._asked_at = 0.0
        self._last: int | None = None
        self._saves = True  # whether a save is worth waiting for
        self._began = time.monotonic()
        threading.Thread(target=self._watch, name="stop at step", daemon=True).start()

    @property
    def asked(self) -> bool:
        return bool(self._asked_at)

    def saves_on_demand(self) -> None:
        """The framework saves when it stops: there is nothing to wait for."""
        self._saves = False

    def due(self) -> bool:
        """Whether the step that is complete is the last one."""
        return self._last is not None and self._progress.taken >= self._last

    def _watch(self) -> None:
        while self._last is None:
            time.sleep(LOOK_S)
            try:
                self._look()
            except Exception:  # noqa: BLE001 - a store that is gone: the end comes by other ways
                if self._asked_at and self._last is None:
                    self._last = 0

    def _look(self) -> None:
        store = _store() if self._ranks > 1 else None
        if not self._asked_at:
            told = store is not None and store.check([_ASKED])
            if not told and not self._asked():
                return
            self._asked_at = time.monotonic()
            if store is not None and not told:
                store.set(_ASKED, "1")
        if self._rank == 0 and self._may_end():
            self._last = self._choose()
            if store is not None:
                store.set(_LAST, str(self._last))
        elif self._rank and store is not None and store.check([_LAST]):
            self._last = int(store.get(_LAST))

    def _may_end(self) -> bool:
        waited = time.monotonic() - self._asked_at
        saved = self._progress.saved_at > self._asked_at
        return not self._saves or saved or waited > self._grace_s

    def _choose(self) -> int:
        """The last step: no rank has reached it before it hears of it, and it is the one after a save, where
        saves come often enough."""
        now = self._progress.taken
        a_step = (time.monotonic() - self._began) / max(now, 1)
        least = now + 1 + int((AHEAD_S if self._ranks > 1 else LOOK_S) / max(a_step, 1e-6))
        saved, every = self._progress.saved_after, self._progress.saves_every
        if not self._saves or not every:
            return least
        after_save = saved + math.ceil((least - 1 - saved) / every) * every + 1
        return after_save if (after_save - now) * a_step < self._grace_s else least


def _store() -> Any:
    """The store in which the processes met; None before they have."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return None
    return c10d._get_default_store()
