"""The object `stop` in a bucket, for a training loop of the user's own, which does not look for it.

Owns the look into the mount, and the note `stop-obeyed` of which task a stop has ended: a recovery of that
task stays stopped, and the next task removes both.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from train.console import say
from train.errors import EXIT_UNAVAILABLE, Refusal
from train.files import read_file
from train.stop import create_stop_file

_EVERY_S = 5.0


class StopObject:
    """The user's request to stop `task`, whose part of the bucket is `store`."""

    def __init__(self, store: Path, task: str, every_s: float = _EVERY_S) -> None:
        self._store, self._task, self._every_s = store, task, every_s
        self._stop, self._obeyed = store / "stop", store / "stop-obeyed"

    def forget_earlier(self) -> None:
        """Remove a stop that has ended another task. Raises Refusal."""
        if self._noted() in ("", self._task):
            return
        say(f"the stop in {self._store} is removed: it has ended the job before this one")
        try:
            for path in (self._stop, self._obeyed):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(
                EXIT_UNAVAILABLE,
                f"cannot remove {self._stop}, which would end this job too ({error.strerror}); may this "
                "machine write to the bucket?",
            ) from None

    def watch(self, stop_file: Path) -> None:
        """Wait for the object, then note it and make the stop file; each again until it is done."""
        while not self._is_there():
            time.sleep(self._every_s)
        say(f"a stop was asked for in {self._store}")
        while not (self._note() and _make(stop_file)):
            time.sleep(self._every_s)

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError):  # a mount that does not answer for a while
            return self._stop.exists()
        return False

    def _noted(self) -> str:
        with contextlib.suppress(OSError):
            return read_file(self._obeyed).decode("utf-8", "replace").strip()
        return ""

    def _note(self) -> bool:
        if self._noted() == self._task:
            return True
        with contextlib.suppress(OSError):
            self._obeyed.write_text(f"{self._task}\n", "utf-8")  # a bucket knows no renaming
            return True
        return False


def _make(stop_file: Path) -> bool:
    with contextlib.suppress(OSError):
        create_stop_file(stop_file, "user: by the bucket")
        return True
    return False
