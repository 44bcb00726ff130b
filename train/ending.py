"""The end of a process in which torch has been.

Owns how it is left. Knows nothing of why.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys


def exit_now(code: int) -> None:
    """End the process without waiting for threads of torch.

    One may sit in a dead collective; and gloo's, alive while the interpreter is taken down, abort a
    process now and then that has finished its work.
    """
    atexit._run_exitfuncs()
    exit_at_once(code)


def exit_at_once(code: int) -> None:
    """End the process from any of its threads, whatever the others are waiting for."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed from the start
        # A closed terminal or a full log disk must not turn a good end into a bad one.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
