"""The end of a process whose job the scheduler has started again, here or elsewhere.

Owns the look at the holder of the checkpoint directory, about once a second in every process, and the orderly end
without a traceback. A scheduler that has lost a host starts the job on others. The processes on the lost host go on,
and nothing else tells them that they are replaced. Without a scheduler, looks at nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from train.base.console import say
from train.base.errors import TrainError, exit_at_once
from train.base.scheduler import VARIABLE, Scheduled
from train.health import heartbeats
from train.run.lock import FencedOffError, read_lock
from train.run.node import Node

LOOK_S = 1.0
# The most looks by all processes of a job together, because they look at one file of one file server.
_LOOKS_A_SECOND = 256


class Replacement:
    """Watches for a later start of the scheduler's job that takes over, and ends this process then."""

    def __init__(self, directory: Path, env: Mapping[str, str], node: Node | None) -> None:
        """`env`: torchrun's variables, and the one that names this start (train.base.scheduler)."""
        self._directory, self._node = directory, node
        self._mine = Scheduled.parse(env.get(VARIABLE, ""))
        self._rank = int(env.get("RANK", "0"))
        self._speaks = env.get("LOCAL_RANK", "0") == "0"
        self._has_agent = "TORCHELASTIC_RUN_ID" in env
        self._size = int(env.get("WORLD_SIZE", "1"))
        self._why = ""
        self._ending = threading.Lock()
        # Called before this process ends, to undo its unfinished work.
        self.before_end: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """From now on end this process as soon as it is replaced, even if its main thread is busy."""
        if self._mine is not None:
            threading.Thread(target=self._watch, name="replaced", daemon=True).start()

    def has_come(self) -> bool:
        """Look now. Return true if this process is replaced; then it must not write to the directory."""
        if self._mine is None or self._why:
            return bool(self._why)
        try:
            holder = read_lock(self._directory)
        except OSError:
            return False  # the file server may be away for a moment
        later = holder.scheduled if holder is not None else None
        if holder is None or later is None or not self._mine.is_replaced_by(later):
            return False
        self._why = (
            f"a later start of {self._mine.name} has taken over (start {later.restarts + 1}, on "
            f"{holder.host}); this one (start {self._mine.restarts + 1}) stops "
            "writing and ends"
        )
        return True

    def end_if_come(self) -> None:
        """Look now, and end this process if it is replaced. Exits 0, so that torchrun does not start it again."""
        if not self.has_come():
            return
        self._ending.acquire()  # never released: the first thread here ends the process, and any other waits
        self.before_end()
        if self._speaks:
            say(self._why, self._rank)
            self._tell_script()
            self._end_agent()
        exit_at_once(0)

    def _tell_script(self) -> None:
        """Write the status for this host's supervisor, unless the later start is here too and owns the status."""
        if self._node is not None:
            with contextlib.suppress(FencedOffError, TrainError):
                self._node.write("failed", reason=self._why)

    def _end_agent(self) -> None:
        """Kill torchrun, because it would wait for five minutes for the agents of other hosts, which may be gone. The
        other processes of this host have asked the kernel to end them with torchrun."""
        agent = os.getppid()
        if self._has_agent and agent > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)

    def _watch(self) -> None:
        every = max(LOOK_S, self._size / _LOOKS_A_SECOND)
        every = heartbeats.write_interval_s(self._directory, every)
        never = threading.Event()
        while not never.wait(every):
            self.end_if_come()
