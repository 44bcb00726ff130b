"""Requests to stop: from the stop file, or from a signal.

Owns noticing them. Decides nothing: one rank's notice becomes every rank's decision in the control
reduction of a step, and nothing is ever saved inside a signal handler.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

POLL_S = 0.25


class StopRequest:
    """Watches for the stop file and for SIGTERM, SIGINT and SIGHUP.

    SIGTERM may mean a preemption, a peer that failed or a changed membership; in each case the
    right thing is to go on to the next step boundary and see whether the peers still answer. Under
    Slurm it arrives twice, so the handler only sets a flag. The file is looked for by a thread: on
    a network mount a single look can take longer than a step.
    """

    def __init__(self, stop_file: Path) -> None:
        self._file = stop_file
        self.requested = stop_file.exists()
        self._ended = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        threading.Thread(target=self._watch, name="stop", daemon=True).start()

    def close(self) -> None:
        """Stop looking for the file. Signals stay handled: the end of a run is not to be killed."""
        self._ended.set()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True

    def _watch(self) -> None:
        while not self.requested and not self._ended.wait(POLL_S):
            try:
                if self._file.exists():
                    self.requested = True
            except OSError:
                continue  # a file server that is away is no request to stop
