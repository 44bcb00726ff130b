"""The check that all hosts of a script begin at one step; otherwise the run ends before its next save.

Without a shared directory each host looks for checkpoints on its own disk, so one host might go on while another
starts over. Owns the comparison of the ranks after their first step, in the TCPStore in which the processes met.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.run.saves import digest, remedy
from train.script.hooks.progress import Progress
from train.script.hooks.stopping import rendezvous_store

# How long a rank waits for the others after its first step. The ranks complete that step together, unless only some of
# them have an optimizer. Ranks that come later are compared at a later step.
_WAIT_S = 5.0
_LOOK_S = 0.02


class UnlikeStartsError(Exception):
    """The hosts do not begin at the same step."""


class Start(NamedTuple):
    """The checkpoint that a rank has loaded, and other evidence of the step at which it begins.

    `step` is 0 if no record tells it, `path` is "" if the rank has loaded nothing. `has_same`: rank 0 has loaded a
    file that lies on this host's disk as well. `optimizer`: the steps that the optimizer counts after the first one,
    0 if it counts none. `resumes`: the script got the arguments to resume. `saved_path`, `saved_step`: the newest save of
    an earlier rank 0 on this disk.
    """

    host: str
    step: int = 0
    path: str = ""
    digest: str = ""
    has_same: bool = False
    optimizer: int = 0
    resumes: bool = False
    saved_path: str = ""
    saved_step: int = 0


def difference(starts: Sequence[Start]) -> str:
    """Return why these ranks, rank 0 first, must not go on together; "" if nothing is wrong."""
    hosts: dict[str, Start] = {}
    for start in starts:
        # A script may load on one rank of a host, and send the state to the others.
        if start.host not in hosts or start.step > hosts[start.host].step:
            hosts[start.host] = start
    ahead = max(hosts.values(), key=lambda start: (start.step, start.resumes))
    for start in hosts.values():
        if not _goes_on_alike(start, ahead):
            copy = remedy(ahead.path, ahead.host, start.host)
            return f"{ahead.host} {_describe_begin(ahead)}, and {start.host} {_describe_begin(start)}; {copy}"
    # The saves on rank 0's own disk need no check here, because rank 0's record protects them.
    if not starts[0].saved_path and not any(start.step or start.optimizer > 1 for start in starts):
        for start in starts:
            if start.saved_path and not any(
                _has_name(start.saved_path, each.path) for each in starts
            ):
                return (
                    f"all hosts begin at step 0, and {start.host} has {start.saved_path} of step {start.saved_step}; "
                    f"{remedy(start.saved_path, start.host, starts[0].host)}; or set train.resume: scratch to start over"
                )
    return ""


def _has_name(save: str, path: str) -> bool:
    """Return True if `path` may be a copy of `save`, and is no data set or pretrained model."""
    return os.path.basename(save) == os.path.basename(path)


def _describe_begin(start: Start) -> str:
    if start.path:
        known = f"resumes from {start.path} of step {start.step}"
        return known if start.step else f"has read {start.path}, of which no step is known"
    return "resumes, as train.resume says" if start.resumes else f"begins at step {start.step}"


def _goes_on_alike(start: Start, ahead: Start) -> bool:
    """Return True if the host of `start` goes on like the host that is `ahead`, or gets the state from there."""
    if start.step == ahead.step:
        return start.resumes == ahead.resumes
    if start.resumes != ahead.resumes or start.optimizer != ahead.optimizer:
        return False
    same_file = bool(start.digest) and start.digest == ahead.digest
    return start.optimizer > 1 or start.has_same or same_file


class Starts:
    """One rank's part of the comparison."""

    def __init__(self, host: str, rank: int, ranks: int, directory: Path, resumes: bool) -> None:
        """`directory`: the checkpoint directory, which may have another path on each host. `resumes`: the script got
        the arguments to resume."""
        self._host, self._rank, self._ranks = host, rank, ranks
        self._directory, self._resumes = os.path.realpath(directory), resumes
        self._exchange: Iterator[str | None] | None = None
        self._verdict: str | None = None

    def compare(self, progress: Progress, optimizer: Any) -> None:
        """Compare the ranks. Called after each step, before `progress` counts it. Raises UnlikeStartsError."""
        until = time.monotonic() + (_WAIT_S if self._exchange is None else 0.0)
        while self._verdict is None:
            try:
                self._exchange = self._exchange or self._compare(progress, _steps(optimizer))
                self._verdict = next(self._exchange)
            except Exception:  # noqa: BLE001 - the store is gone, and with it the others
                self._verdict = ""
            if self._verdict is not None or time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
        if self._verdict:
            raise UnlikeStartsError(self._verdict)

    def _compare(self, progress: Progress, optimizer: int) -> Iterator[str | None]:
        """Yield None until the ranks have been compared, and then the difference."""
        store = rendezvous_store()
        if store is None or self._ranks == 1:
            return iter([""])
        path, step = progress.newest_of_rank_0
        start = Start(
            self._host,
            progress.step,
            progress.loaded_path,
            optimizer=optimizer,
            resumes=self._resumes,
            saved_path=path,
            saved_step=step,
        )
        return self._follow(store, start) if self._rank else self._lead(store, start)

    def _lead(self, store: Any, start: Start) -> Iterator[str | None]:
        """On rank 0: send its own start, receive all others, send the verdict."""
        start = start._replace(digest=digest(start.path) if start.path else "")
        store.set(_key(0), json.dumps((self._directory, start)))
        keys = [_key(rank) for rank in range(1, self._ranks)]
        while not store.check(keys):
            yield None
        others = [Start(*json.loads(text)[1]) for text in store.multi_get(keys)]
        verdict = difference([start, *others])
        store.set(_key("verdict"), verdict)
        until = time.monotonic() + _WAIT_S
        # The store ends with this process, so wait until the others have read the verdict.
        while verdict and store.add(_key("heard"), 0) < len(others) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        yield verdict

    def _follow(self, store: Any, start: Start) -> Iterator[str | None]:
        """On any other rank: receive rank 0's start, send its own, receive the verdict."""
        while not store.check([_key(0)]):
            yield None
        directory, head = json.loads(store.get(_key(0)))
        start = self._with_comparison(start, Start(*head), directory)
        store.set(_key(self._rank), json.dumps((self._directory, start)))
        while not store.check([_key("verdict")]):
            yield None
        verdict = store.get(_key("verdict")).decode()
        store.add(_key("heard"), 1)
        yield verdict

    def _with_comparison(self, start: Start, head: Start, directory: str) -> Start:
        """Return `start` with its files compared to rank 0's. `directory`: the checkpoint directory on rank 0."""
        if start.step == head.step or not head.digest:
            return start
        path = head.path
        if path.startswith(directory + os.sep):
            path = self._directory + path[len(directory) :]
        own = digest(start.path) if start.path else ""
        return start._replace(digest=own, has_same=digest(path) == head.digest)


def _key(name: object) -> str:
    return f"ddpgen/start/{name}"  # torch adds a prefix for each restart


def _steps(optimizer: Any) -> int:
    """Return the number of steps that the optimizer's state counts; 0 if it counts none, as with SGD."""
    with contextlib.suppress(Exception):
        for state in optimizer.state.values():
            if "step" in state:
                return int(state["step"])
    return 0
