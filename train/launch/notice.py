"""Turn a cloud's notice that it takes this machine back into a stop file.

Owns the watch for the notice of the cloud that this machine belongs to. Also owns `python -m train notice`, for a hook
that Kubernetes calls when the machine goes: the command makes the stop file and waits until the job has ended. Knows no
cloud's protocol, and does not know how the training uses the file. Imports no torch.
"""

from __future__ import annotations

import argparse
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from train.base.console import say
from train.launch.notices import ADDRESS, Cloud, clouds
from train.launch.notices.service import AbsentError, ServiceError
from train.run.config import seconds
from train.run.status import read_status
from train.run.stop import PREEMPTED, create_stop_file, reason_in

# Another URL of a cloud's service, for tests: DDPGEN_METADATA_AWS=http://127.0.0.1:8000
_ADDRESS_VARIABLE = "DDPGEN_METADATA_"
_TRIES = 3
_LOOK_S = 0.25
_RETRY_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Make the stop file, because this machine is taken back, and wait for the end of the job. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train notice", allow_abbrev=False)
    parser.add_argument("--stop-file", type=Path, required=True)
    parser.add_argument("--wait", type=seconds, default=60.0, help="at most so long")
    options = parser.parse_args(argv)
    return ask_and_wait(options.stop_file.expanduser().absolute(), options.wait)


def watch(stop_file: Path, names: Sequence[str], period_s: float) -> None:
    """Make `stop_file` as soon as one of these clouds gives notice. Return then, or if this machine is in no cloud."""
    notices: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        cloud = clouds()[name](
            os.environ.get(_ADDRESS_VARIABLE + name.upper()) or ADDRESS, period_s
        )
        # Daemon threads: a missing answer delays neither the other clouds nor the end of the process.
        threading.Thread(target=_watch, args=(cloud, period_s, notices), daemon=True).start()
    notice = next(filter(None, (notices.get() for _ in names)), "")
    if not notice:
        say(f"no {' or '.join(names)} here that would tell of a preemption: not watching for one")
        return
    # Make the reason one line, because the service may have sent several.
    reason = " ".join(f"{PREEMPTED}: {notice}".split())
    while not _request_stop(stop_file, reason):
        time.sleep(_RETRY_S)


def ask_and_wait(stop_file: Path, timeout_s: float) -> int:
    """Make the file now. Return when no process of this machine's job runs, or after `timeout_s`.

    The exit code is 0, or 1 if the job still runs or the file cannot be made by then.
    """
    directory = stop_file.parent
    if not directory.is_dir():
        say(f"nothing to stop: {directory} is not there")
        return 0
    end = time.monotonic() + timeout_s
    while not _request_stop(stop_file, f"{PREEMPTED}: kubernetes takes this machine back"):
        if time.monotonic() > end:
            return 1
        time.sleep(_LOOK_S)
    while _runs(directory):
        if time.monotonic() > end:
            say(f"the job still runs after {timeout_s:g} s; what it has not saved is lost")
            return 1
        time.sleep(_LOOK_S)
    return 0


def _is_there(cloud: Cloud) -> bool:
    """Return True if the cloud's service answers. In doubt ask again: one slow answer must not end the whole watch."""
    for _ in range(_TRIES):
        try:
            cloud.probe()
        except AbsentError:
            return False
        except ServiceError:
            continue
        return True
    return False


def _watch(cloud: Cloud, period_s: float, notices: queue.SimpleQueue[str]) -> None:
    """Ask until there is a notice and put it into `notices`; put "" if this machine is not in the cloud. Go on after
    any error, because no answer is no notice."""
    if not _is_there(cloud):
        notices.put("")
        return
    warned = False
    while True:
        began = time.monotonic()
        try:
            if notice := cloud.read_notice():
                notices.put(notice)
                return
        except Exception as error:  # noqa: BLE001 - a watch that dies is worse than one that errs
            why = str(error) if isinstance(error, ServiceError) else repr(error)
            if not warned:
                say(
                    f"{cloud.name} does not say whether it takes this machine back ({why}); asking on"
                )
            warned = True
        time.sleep(max(0.0, began + period_s - time.monotonic()))


def _request_stop(stop_file: Path, reason: str) -> bool:
    """Make the stop file with this reason, unless there is one. Return True if there is one now."""
    try:
        made = create_stop_file(stop_file, reason)
    except OSError as error:
        say(f"{reason}; cannot create {stop_file} ({error.strerror}), trying again")
        return False
    if made:
        say(f"{reason}; asking for a clean stop")
    else:
        say(f"{reason}; a stop was asked for already ({reason_in(stop_file)})")
    return True


def _runs(directory: Path) -> bool:
    """Return True if the job, or a part of it on this machine, still runs."""
    try:
        parts = sorted((directory / "nodes").iterdir())
    except OSError:
        parts = []
    found = (read_status(place) for place in (directory, *parts))
    return any(status is not None and status.word == "running" for status in found)
