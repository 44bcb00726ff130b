"""Requests to stop: from the stop file, or from a signal, each with its reason.

Owns noticing them, whom a stop file is for, the reason that goes into the status, and the making of the file.
Decides nothing: one rank's notice becomes every rank's decision in the exchange of a step
(distributed/step_exchange.py), and nothing is ever saved inside a signal handler.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from train.base.files import read_file
from train.base.scheduler import SCHEDULERS, Scheduled

POLL_S = 0.25

# What a reason is, where whoever asks says no more.
BY_USER, BY_SIGNAL = "user", "signal"
# Where nobody asks, as the command line has said it before.
BY_OPTION = "--until"
# How the reason begins when the machine is taken back, and the job is to go on elsewhere.
PREEMPTED = "preempted"
# It goes into one line, and from there into terminals.
_MOST_REASON = 200
# What link(2) says on a file system that has no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


class StopRequest:
    """Watches for the stop file, and for SIGTERM, SIGINT and SIGHUP.

    The file says what is wanted; a signal may mean a preemption, a peer that failed or a changed
    membership. In each case the right thing is to go on to the next step boundary and see whether
    the peers still answer. Under Slurm it arrives twice, so the handler only sets a flag. The file
    is looked for by a thread: on a network mount a single look can take longer than a step.
    """

    def __init__(self, stop_file: Path, scheduler: str = "", watches: bool = True) -> None:
        """`scheduler`: which start of which scheduler's job this is (see train.base.scheduler), "" for none.
        `watches`: whether it looks for the file, as one process of each host does: a file server has
        better things to do than to answer hundreds of looks a second."""
        self._file, self._scheduler = stop_file, scheduler
        self._words = ""
        self.by_file = False
        self.by_signal = False
        self._ended = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup and the tier slurm ask
            signal.signal(signal.SIGHUP, self._on_signal)
        if watches:
            if stop_file.exists():
                self._found()
            threading.Thread(target=self._watch, name="stop", daemon=True).start()

    @property
    def reason(self) -> str:
        """Why this rank wants to stop; "" when it does not. A file says more than a signal."""
        if self.by_file:
            return self._words
        return BY_SIGNAL if self.by_signal else ""

    def close(self) -> None:
        """Stop looking for the file. Signals stay handled: the end of a run is not to be killed."""
        self._ended.set()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.by_signal = True

    def _watch(self) -> None:
        while not self.by_file and not self._ended.wait(POLL_S):
            try:
                if self._file.exists():
                    self._found()
            except OSError:
                continue  # a file server that is away is no request to stop

    def _found(self) -> None:
        # The words first, as they are asked for when the flag is seen.
        self._words = reason_in(self._file)
        self.by_file = is_for(self._words, self._scheduler)


def reason_in(stop_file: Path) -> str:
    """The first line of a stop file that is there, never empty."""
    with contextlib.suppress(OSError):
        return first_line(read_file(stop_file)) or BY_USER
    return BY_USER


def first_line(content: bytes) -> str:
    """One line of printable characters: the first of what somebody has written."""
    line = content.decode("utf-8", "replace").partition("\n")[0][:_MOST_REASON]
    return " ".join("".join(c if c.isprintable() else " " for c in line).split())


def is_for(reason: str, scheduler: str) -> bool:
    """Whether a stop file with this first line ends the start `scheduler` (see train.base.scheduler).

    One that names a scheduler's job, `slurm JOB RESTART WHY`, ends that start of it and those before;
    any other ends whoever finds it.
    """
    named = Scheduled.parse(" ".join(reason.split()[:3]))
    if named is None or named.scheduler not in SCHEDULERS:
        return True
    mine = Scheduled.parse(scheduler)
    return named.is_same_job(mine) and not named.is_replaced_by(mine)


def foremost(reasons: Sequence[str]) -> str:
    """The one reason of a job whose ranks, in this order, have these; "" when none has any.

    A preemption goes before all others, as the job is to come back from it. A signal comes last: it
    may be no more than how the end of one rank reached another.
    """
    given = [reason for reason in reasons if reason]
    taken_back = [reason for reason in given if reason.startswith(PREEMPTED)]
    told = [reason for reason in given if not reason.startswith(BY_SIGNAL)]
    return next(iter(taken_back or told or given), "")


def create_stop_file(path: Path, words: str) -> bool:
    """Make the stop file, unless there is one; whether it was made. Raises OSError when it cannot be made.

    Whoever reads it finds all of its words, and nobody's request replaces another's.
    """
    writer = f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    draft = path.with_name(f".{path.name}.{writer}")
    try:
        draft.write_text(f"{words}\n" if words else "", encoding="utf-8")
        try:
            os.link(draft, path)  # a rename would replace what is there
        except FileExistsError:
            os.stat(path)  # a link to nowhere is none
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            draft.rename(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
