"""Take the checkpoint directory for an attempt.

Owns the message if the supervisor cannot take it. Also reads the record of the saves of a user's script.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from train.base.errors import EXIT_FAILED, EXIT_UNAVAILABLE, Refusal
from train.base.files import read_file
from train.base.scheduler import Scheduled
from train.run.layout import steps_on_disk
from train.run.lock import HeldByLiveJobError, check_not_replaced, claim
from train.run.status import Status, write_status


def of(path: str, part: str = "") -> Path:
    """Return the checkpoint directory, or its `part`. `path` starts at the bundle's directory; `~` is the home."""
    return Path(os.path.abspath(os.path.join(os.path.expanduser(path), part)))


def steps_saved(where: Path) -> list[int]:
    """Return the steps that a user's script was seen to save whole, as rank 0 has recorded them in `where`: the
    checkpoint directory, or the store."""
    steps: list[int] = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        for line in read_file(where / "script" / "saves-0.jsonl").splitlines():
            row = json.loads(line)
            steps += [int(row["step"])] if row["whole"] else []
    return steps


def acquire(whole: Path, held: Path, job: str, scheduler: str) -> str:
    """Take `held`, the checkpoint directory `whole` or this host's part of it; return the attempt's id.

    Raises Refusal if another job is alive in it, or if it cannot be written.
    """
    try:
        check_not_replaced(whole, scheduler)
        attempt = claim(held, job, os.getpid(), scheduler=scheduler)
        if Scheduled.parse(scheduler) is None:
            # Under a scheduler, this start has removed an old stop file earlier, before anybody could make a new one.
            (whole / "stop").unlink(missing_ok=True)
        write_status(held, Status("running", attempt, max(steps_on_disk(whole), default=0)))
    except HeldByLiveJobError as error:
        raise Refusal(EXIT_UNAVAILABLE, str(error)) from None
    except OSError as error:
        raise unusable(whole, error) from None
    return attempt


def unusable(whole: Path, error: OSError) -> Refusal:
    """Return a Refusal that says why the checkpoint directory cannot be written."""
    about = f" ({error.filename})" if error.filename else ""
    remedy = "set checkpoint.dir to a place you can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space there"
    elif error.errno == errno.EISDIR:
        remedy = "it has to be a file: move that directory away"
    why = f"{error.strerror or error}{about}; {remedy}"
    return Refusal(EXIT_FAILED, f"the checkpoint directory {whole} cannot be used: {why}")
