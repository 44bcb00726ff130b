"""`python -m train run`: how a worker begins and ends.

Owns what a worker's end means to torchrun and to the status file: done, stopped, replaced, failed
for good, or crashed and worth a restart. Imports torch only when there is something to run.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from train import leash
from train.config import RunConfig, parse
from train.errors import EXIT_FAILED, TrainError
from train.lock import FencedOffError, read_lock
from train.metrics import say
from train.status import Status, read_status, write_status


def main(argv: Sequence[str]) -> int:
    """Run one worker. Returns its exit code; what became of the job is in the status file.

    0 whenever a restart by torchrun would be wrong: done, stopped, superseded, or failed for good.
    """
    leash.die_with_parent(signal.SIGKILL)
    config = parse(argv)
    rank = int(os.environ.get("RANK", "0"))
    directory = Path(config.checkpoint_dir).absolute()
    attempt = os.environ.get("DDPGEN_ATTEMPT", "")
    if attempt and _is_over(directory, attempt, rank):
        return 0
    try:
        return _run(config, directory, attempt)
    except FencedOffError as error:
        say(str(error), rank)
        return 0
    except TrainError as error:
        _report_failure(directory, attempt, str(error), rank)
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the worker's last resort
        _report_crash(error, rank)
        return EXIT_FAILED


def _is_over(directory: Path, attempt: str, rank: int) -> bool:
    """Whether this worker is a restart of an attempt that has failed for good, or was replaced."""
    status = read_status(directory)
    if status is not None and status.attempt == attempt and status.word == "failed":
        return True
    holder = read_lock(directory)
    if holder is not None and holder.attempt != attempt:
        say(f"attempt {attempt} was replaced by {holder.attempt} on {holder.host}; ending", rank)
        return True
    return False


def _report_failure(directory: Path, attempt: str, why: str, rank: int) -> None:
    was = read_status(directory) or Status("running", attempt, 0)
    failed = Status("failed", attempt, was.step, " ".join(why.split()))
    if was == failed:
        return  # another rank has met the same fault and said so
    say(why, rank)
    holder = read_lock(directory)
    if attempt and holder is not None and holder.attempt == attempt:
        try:
            write_status(directory, failed)
        except OSError as error:
            say(f"the status file cannot be written: {error.strerror}", rank)


def _report_crash(error: Exception, rank: int) -> None:
    text = str(error)
    # What a survivor sees of a peer's death; the traceback through DDP would only hide the cause.
    signs = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused")
    if isinstance(error, RuntimeError) and any(sign in text for sign in signs):
        say(f"lost a peer: {text.splitlines()[0][:200]}", rank)
        return
    traceback.print_exc()
    say(f"{type(error).__name__}: {text}", rank)


def _run(config: RunConfig, directory: Path, attempt: str) -> int:
    # Imports torch, which takes seconds: not before it is known that there is something to run.
    from train import session

    return session.run(config, directory, attempt)
