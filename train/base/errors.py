"""How a process ends: its exit codes, its errors, and the ending itself.

Owns the distinction between a failure that a restart cannot cure (TrainError) and one that it may cure (any other
exception). Owns the list of exceptions about another process. Knows nothing of how either is reported. Imports no
torch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse, click and many others end with it
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits(3): the job cannot start here
EXIT_CHANGED = 76  # the workers end to meet again as another world: torchrun's agents restart them
EXIT_READER_LEFT = 141  # as a shell reports SIGPIPE: 128 + 13
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits(3): stopped cleanly, run the same command to resume

# An exception may mean that another process is gone, or that it is late.
GONE, LATE = "gone", "late"
# The words of a status for GONE and LATE. The driver of several hosts looks for them (ddpgen/driver/ends.py).
LOSS = {GONE: "lost a peer", LATE: "timed out waiting for a peer"}
# gloo raises a RuntimeError for everything. These are parts of its messages in torch 2.4.0, 2.13.0 and 2.15.0.
_GLOO = {
    "closed by peer": GONE,
    "Connection reset": GONE,
    "Connection refused": GONE,
    "Broken pipe": GONE,
    "Timed out waiting": LATE,
    "Application timeout": LATE,
}
_LATE = ("timeout", "timed out")


class TrainError(Exception):
    """A fault that a restart would only meet again.

    The message names the fault, its cause and the remedy. The error ends the attempt: it is reported without a
    traceback, and no worker is restarted.
    """


class ToldError(TrainError):
    """A fault of another process. That process reports it; this one only ends."""


class Refusal(Exception):  # noqa: N818 - no failure: the host, or the arguments, are not as they have to be
    """The end of a launch, with this exit code. The message names the fault and the remedy; "" if they were printed
    already."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class PeerGoneError(RuntimeError):
    """The connection to another rank has ended."""


class PeerLateError(RuntimeError):
    """Another rank did not answer in time."""


def peer_failure(error: BaseException) -> str:
    """Return GONE or LATE if the exception means that another process is gone or late, else "".

    A user's own TimeoutError or ConnectionError does not count, because it may come from a file server.
    """
    if isinstance(error, PeerGoneError):
        return GONE
    if isinstance(error, PeerLateError):
        return LATE
    text = str(error)
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):  # torch.distributed's
        return LATE if any(word in text.lower() for word in _LATE) else GONE
    if not isinstance(error, RuntimeError):
        return ""
    return next((meaning for sign, meaning in _GLOO.items() if sign in text), "")


def start_command(among_hosts: bool) -> str:
    """Return the command that starts the job, for a message. A launch script may override it by DDPGEN_SCRIPT."""
    script_command = "bash hosts/run.sh" if among_hosts else "bash local.sh"
    return os.environ.get("DDPGEN_SCRIPT") or script_command


def run_tool(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Return `main(argv)`, the exit code of a command that prints for a reader.

    A reader may leave before the end of the output, as in `… | head -1`. Then end without a traceback, like any filter.
    """
    try:
        return main(argv)
    except BrokenPipeError:
        return EXIT_READER_LEFT


def exit_now(code: int) -> None:
    """End the process without waiting for threads of torch.

    A thread may hang in a dead collective. If gloo's threads still run while the interpreter shuts down, they
    sometimes abort a process that has finished its work.
    """
    atexit._run_exitfuncs()
    exit_at_once(code)


def exit_at_once(code: int) -> None:
    """End the process from any of its threads, without waiting for the other threads."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed from the start
        # A closed terminal or a full log disk must not turn a good end into a bad one.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
