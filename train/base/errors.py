"""How a process ends: its exit code, the errors it ends with, and the ending itself.

Owns the distinction between a failure that a restart can cure (any other exception) and one that it
cannot, and which exceptions are about another process. Knows nothing of how either is reported. Imports no torch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's, click's and many others'
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits(3): the directory is taken, or torch is missing
EXIT_CHANGED = 76  # left to meet again as another world: torchrun's agents start the workers anew
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits(3): stopped cleanly, run the same command to go on

# What an exception may say of another process: it is gone, or it did not come in time.
GONE, LATE = "gone", "late"
# How a status says so; the driver of several hosts looks for these words (ddpgen/driver/ends.py).
LOSS = {GONE: "lost a peer", LATE: "timed out waiting for a peer"}
# gloo raises a RuntimeError for everything. What its messages have in them, in torch 2.4.0, 2.13.0 and 2.15.0.
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

    The message says what is wrong, why, and what to do about it. It ends the attempt: it is
    reported without a traceback, and no worker is restarted.
    """


class ToldError(TrainError):
    """A fault of another process, which reports it itself; this one only ends with it."""


class Refusal(Exception):  # noqa: N818 - no failure: the host, or the arguments, are not as they have to be
    """The launch ends here, with this exit code. The message says what is wrong and what to do; "" where that
    was said."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class PeerGoneError(RuntimeError):
    """The connection to another rank has ended."""


class PeerLateError(RuntimeError):
    """Another rank did not answer in time."""


def peer_failure(error: BaseException) -> str:
    """GONE or LATE where the exception says so of another process, else empty.

    A user's own TimeoutError or ConnectionError is not: it may be a file server's.
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
    """What to type to start the job, for a message. A launch script that knows better says so."""
    ours = "bash hosts/run.sh" if among_hosts else "bash local.sh"
    return os.environ.get("DDPGEN_SCRIPT") or ours


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
