"""Any other program as a worker: a child process. This worker sees only the program's end."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
from collections.abc import Mapping

from train.base.errors import EXIT_STOPPED
from train.script.process import Runner

_SHELLS = 128  # a shell's exit code is this plus the number of the signal that ended its command
# When this process ends in any way, this shell kills the whole process group. The kernel would end only the child, and
# not the processes that the child has started.
_GUARD = "trap '' HUP INT TERM USR1 USR2; read -r _; kill -KILL 0"


class Program(Runner):
    """A program and the processes that it starts: one group, which gets the signals and ends with this process."""

    FIELD = "train.command"

    def __init__(self, options: argparse.Namespace, env: Mapping[str, str]) -> None:
        """`env`: the launcher's variables, and the supervisor's for this launch."""
        self._program = os.path.expanduser(options.command[0])
        name = os.path.basename(self._program)
        super().__init__(name, options, options.stop_signal or "TERM", env)
        self._told_to_end = False

    def _run(self) -> int:
        self._lead_group()
        try:
            child = subprocess.Popen([self._program, *self._all_arguments()])
        except OSError as error:
            return self._fail(
                f"{self._program} cannot be started: {error.strerror}; correct {self.FIELD}"
            )
        watch = (self._stop_requested, lambda: 0)
        threading.Thread(target=self._watch, args=watch, name="stop", daemon=True).start()
        code = child.wait()
        self._ended.set()
        if self._told_to_end:
            return code  # another rank has failed, and the launcher ends all of them
        if code < 0:
            code = _SHELLS - code
        if self._signalled and (code == 0 or code > _SHELLS):
            code = EXIT_STOPPED
        return self._conclude(code, 0)

    def _lead_group(self) -> None:
        """Make this process the leader of a group, let it survive signals to the group, and end the group with it."""
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        for name in ("HUP", "INT", "TERM", "USR1", "USR2"):
            signal.signal(getattr(signal, f"SIG{name}"), self._note)
        reading, _ = os.pipe()  # the other end closes with this process
        subprocess.Popen(["sh", "-c", _GUARD], stdin=reading)
        os.close(reading)

    def _note(self, signum: int, _: object) -> None:
        if not self._signalled and signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            self._told_to_end = True

    def _send(self, name: str) -> bool:
        self._signalled = True
        os.killpg(0, getattr(signal, f"SIG{name}"))
        return True
