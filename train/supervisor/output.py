"""A copy of all that is printed, in a file, by tee(1): it goes on when the terminal is gone or the disk is full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

_LAST_WORDS_S = 2.0


class KeptOutput:
    """From now on what this process and its children print goes to `file` as well."""

    def __init__(self, file: Path) -> None:
        """`file`: appended to. Raises OSError, and then nothing has changed."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._tees = []
        outputs = [(1, 2)] if os.path.sameopenfile(1, 2) else [(1,), (2,)]
        self._own = {fd: os.dup(fd) for fds in outputs for fd in fds}
        for fds in outputs:
            reading, writing = os.pipe()
            tee = subprocess.Popen(
                ["tee", "-a", str(file)],
                stdin=reading,
                stdout=fds[0],
                preexec_fn=_outlive_signals,  # noqa: PLW1509 - only the main thread forks, and no other has begun
            )
            self._tees.append(tee)
            for fd in fds:
                os.dup2(writing, fd)
            os.close(reading)
            os.close(writing)

    def end(self) -> None:
        """Print as before. What was printed so far is on the terminal, unless somebody still prints."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, own in self._own.items():
            os.dup2(own, fd)
            os.close(own)
        for tee in self._tees:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tee.wait(_LAST_WORDS_S)


def _outlive_signals() -> None:
    """What is for the job's processes is not for it: it ends with what it reads from."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
