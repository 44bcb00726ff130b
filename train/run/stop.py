"""Requests to stop: from the stop file, or from a signal, each with its reason.

Owns noticing the requests, the start for which a stop file is meant, the reason that goes into the status, and making
the file. Decides nothing: one rank's notice becomes every rank's decision in the exchange of a step
(distributed/step_exchange.py). A signal handler never saves anything.
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

# The reason, if a request gives none.
BY_USER, BY_SIGNAL = "user", "signal"
# The reason, if the command line has set the end.
BY_OPTION = "--until"
# The reason's first word if the machine is taken back. The job then goes on elsewhere.
PREEMPTED = "preempted"
# The most characters of a reason, because it goes into one line, and from there to terminals.
_MOST_REASON = 200
# The errors of link(2) on a file system without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


class StopRequest:
    """Watches for the stop file, and for SIGTERM, SIGINT and SIGHUP.

    The file gives a reason. A signal may mean a preemption, a peer that failed or a changed membership. In each case
    the run goes on to the next step boundary, where it finds out if the peers still answer. Under Slurm a signal
    arrives twice, so the handler only sets a flag. A thread looks for the file, because on a network mount a single
    look can take longer than a step.
    """

    def __init__(self, stop_file: Path, scheduler: str = "", watches: bool = True) -> None:
        """`scheduler`: the scheduler's job and its start (see train.base.scheduler), or "". `watches`: look for the
        file. Only one process of each host does, to spare a file server hundreds of looks a second."""
        self._file, self._scheduler = stop_file, scheduler
        self._reason = ""
        self.by_file = False
        self.by_signal = False
        self._ended = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup and tier slurm ignore it
            signal.signal(signal.SIGHUP, self._on_signal)
        if watches:
            if stop_file.exists():
                self._set_stop()
            threading.Thread(target=self._watch, name="stop", daemon=True).start()

    @property
    def reason(self) -> str:
        """Why this rank wants to stop, or "". A file's reason goes before a signal, because it says more."""
        if self.by_file:
            return self._reason
        return BY_SIGNAL if self.by_signal else ""

    def close(self) -> None:
        """Stop looking for the file. Signals stay handled, so that they do not kill the end of a run."""
        self._ended.set()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.by_signal = True

    def _watch(self) -> None:
        while not self.by_file and not self._ended.wait(POLL_S):
            try:
                if self._file.exists():
                    self._set_stop()
            except OSError:
                continue  # a file server that is away is no request to stop

    def _set_stop(self) -> None:
        # Set the reason before the flag, because a reader that sees the flag asks for the reason.
        self._reason = reason_in(self._file)
        self.by_file = is_for(self._reason, self._scheduler)


def reason_in(stop_file: Path) -> str:
    """The first line of a stop file, or "user" if it is empty or cannot be read."""
    with contextlib.suppress(OSError):
        return first_line(read_file(stop_file)) or BY_USER
    return BY_USER


def first_line(content: bytes) -> str:
    """The first line of `content`, with printable characters only."""
    line = content.decode("utf-8", "replace").partition("\n")[0][:_MOST_REASON]
    return " ".join("".join(c if c.isprintable() else " " for c in line).split())


def is_for(reason: str, scheduler: str) -> bool:
    """True if a stop file with this first line ends the start `scheduler` (see train.base.scheduler).

    A line that names a scheduler's job, `slurm JOB RESTART WHY`, ends that start of the job and the starts before it.
    Any other line ends every start that finds it.
    """
    named = Scheduled.parse(" ".join(reason.split()[:3]))
    if named is None or named.scheduler not in SCHEDULERS:
        return True
    mine = Scheduled.parse(scheduler)
    return named.is_same_job(mine) and not named.is_replaced_by(mine)


def foremost(reasons: Sequence[str]) -> str:
    """The reason of a job, from the reasons of its ranks by rank; "" if all are empty.

    A preemption goes before all others, because the job comes back from it. A signal comes last, because it may only
    follow from the end of another rank.
    """
    given = [reason for reason in reasons if reason]
    taken_back = [reason for reason in given if reason.startswith(PREEMPTED)]
    told = [reason for reason in given if not reason.startswith(BY_SIGNAL)]
    return next(iter(taken_back or told or given), "")


def create_stop_file(path: Path, reason: str) -> bool:
    """Make the stop file unless it exists. Return True if it was made. Raises OSError if it cannot be made.

    A reader never finds half of the reason, and a request never replaces an earlier one.
    """
    writer = f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    draft = path.with_name(f".{path.name}.{writer}")
    try:
        draft.write_text(f"{reason}\n" if reason else "", encoding="utf-8")
        try:
            os.link(draft, path)  # a rename would replace an existing file
        except FileExistsError:
            os.stat(path)  # raises if the path is a dangling symbolic link
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
