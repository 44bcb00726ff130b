"""The workers of this host: one launcher process (torchrun or spawn) in a process group of its own.

Owns its start, its signals and that it does not outlive this process. Knows nothing of why it is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from train.processes import die_with_parent


class Workers:
    """The launcher, from its start on."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        kept: Sequence[int] = (),
        ignored: Sequence[signal.Signals] = (),
    ) -> None:
        """`kept`: descriptors that it inherits; `ignored`: signals that it does not hear. Raises OSError."""
        # Where TERM is ignored, the parent's death has to be told by a signal that is heard.
        last = signal.SIGKILL if signal.SIGTERM in ignored else signal.SIGTERM

        def prepare() -> None:
            for signum in ignored:
                signal.signal(signum, signal.SIG_IGN)
            die_with_parent(last)
            os.setpgid(0, 0)  # the terminal's Ctrl-C is the supervisor's to handle

        self._process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=tuple(kept),
            preexec_fn=prepare,  # noqa: PLW1509 - only the main thread forks, and no other has begun
        )
        self.pid = self._process.pid
        self._ignores_term = signal.SIGTERM in ignored

    def end(self) -> None:
        """Ask the launcher to end its processes; one that does not hear it is killed."""
        if self._ignores_term:
            self.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """At once: the processes ask the kernel to die with the launcher."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)

    def ended(self, code: int) -> None:
        """Its exit code is known: the pid may be another process's from now on."""
        self._process.returncode = code
