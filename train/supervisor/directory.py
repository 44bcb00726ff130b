"""The checkpoint directory, taken for an attempt and kept.

Owns what a supervisor says when it cannot have it, and the renewal of its lease while rank 0 is restarting
or has not met the others yet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

from train.errors import EXIT_FAILED, EXIT_UNAVAILABLE
from train.layout import steps_on_disk
from train.lock import HEARTBEAT_S, HeldByLiveJobError, check_not_replaced, claim, read_lock
from train.scheduler import Scheduled
from train.status import Status, write_status
from train.supervisor.refusal import Refusal


def of(path: str, part: str = "") -> Path:
    """The checkpoint directory: from the bundle's directory, `~` is the home directory; or a part of it."""
    return Path(os.path.abspath(os.path.join(os.path.expanduser(path), part)))


def acquire(whole: Path, held: Path, job: str, scheduler: str) -> str:
    """Take `held`, the checkpoint directory `whole` or this host's part of it; the attempt's id.

    Raises Refusal when another job is alive in it, or when it cannot be written.
    """
    try:
        check_not_replaced(whole, scheduler)
        attempt = claim(held, job, os.getpid(), scheduler=scheduler)
        if Scheduled.parse(scheduler) is None:
            # Under a scheduler the head has done so, before anybody could ask this start to stop.
            (whole / "stop").unlink(missing_ok=True)
        write_status(held, Status("running", attempt, max(steps_on_disk(whole), default=0)))
    except HeldByLiveJobError as error:
        raise Refusal(EXIT_UNAVAILABLE, str(error)) from None
    except OSError as error:
        raise unusable(whole, error) from None
    return attempt


def unusable(whole: Path, error: OSError) -> Refusal:
    """Why the checkpoint directory cannot be written."""
    about = f" ({error.filename})" if error.filename else ""
    remedy = "set checkpoint.dir to a place you can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space there"
    elif error.errno == errno.EISDIR:
        remedy = "it has to be a file: move that directory away"
    why = f"{error.strerror or error}{about}; {remedy}"
    return Refusal(EXIT_FAILED, f"the checkpoint directory {whole} cannot be used: {why}")


def renew(held: Path, attempt: str) -> None:
    """From now on show that this attempt lives, until the process ends or the directory is another's."""
    threading.Thread(target=_renew, args=(held, attempt), daemon=True).start()


def _renew(held: Path, attempt: str) -> None:
    never = threading.Event()
    while not never.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):  # a file server that is away for a moment
            holder = read_lock(held)
            if holder is None or holder.attempt != attempt:
                return
            os.utime(held / "lock")
