"""The heartbeats of a run and their files in `<checkpoint dir>/heartbeats/`.

A rank writes `rank-00003.json`. A host writes `seen-by-HOST.json`, the heartbeats that it has read from the TCPStore.
The process that explains a hang for its host leaves the empty file `explained-HOST-WORLD`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from train.base import typed
from train.base.files import replace_file
from train.base.processes import machine

NAME = "heartbeats"
MAX_BYTES = 4 << 20
_BUCKET_S = 30.0
_SAME_AGE_S = 30.0
_HEARTBEAT_FILE = re.compile(
    r"rank-(\d{5,6})\.json|seen-by-.*\.json|explained-.*|\.(rank|seen-by)-.*"
)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Beat:
    """One rank, as it was at its last heartbeat.

    `world`: the name of the processes that have met, "" before that. `machine`: the machine's boot, and the pid and
    network namespaces of the process. `started`: the process's start time, which tells its pid from a reused one.
    `born`, `time`: wall clock at the start of the process and at this heartbeat, in seconds. `monotonic`: the machine's
    monotonic clock at this heartbeat. `every`: seconds between heartbeats.
    `step`: complete steps, -1 if unknown. `in_step`, `in_phase`: seconds since the step and the phase changed.
    `usual`: seconds that a step usually takes, 0.0 if unknown.
    `ended`: why this process is about to end, "" if it goes on. `waited`: True if it ends because it lost another
    process, or timed out waiting for another one.
    """

    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    machine: str
    started: int = 0
    world: str = ""
    address: str = ""
    nic: str = ""
    head: str = ""
    born: float = 0.0
    time: float = 0.0
    monotonic: float = 0.0
    every: float = 1.0
    step: int = -1
    phase: str = ""
    waits: bool = False
    busy: float = -1.0
    where: str = ""
    stack: tuple[str, ...] = ()
    in_step: float = 0.0
    in_phase: float = 0.0
    usual: float = 0.0
    ended: str = ""
    waited: bool = False


@dataclass(frozen=True)
class ReceivedBeat:
    """A heartbeat and its age in seconds, by the clock of the process that received it."""

    beat: Beat
    age: float


@dataclass(frozen=True)
class HostView:
    """The heartbeats that one host has received. `at`, `monotonic`: the time of writing, by that host's clocks.
    `every`: seconds between its reads. `unanswered_s`: seconds since the TCPStore last answered the host. `partial`:
    True if the host does not read the TCPStore, because the job is large."""

    host: str
    machine: str
    at: float
    monotonic: float
    every: float
    unanswered_s: float
    heard: tuple[ReceivedBeat, ...]
    partial: bool = False
    world: str = ""

    @property
    def is_cut_off(self) -> bool:
        """True if this host has not written, or got no answer from the store, for so long that it cannot know the
        others."""
        silent_s = max(time.monotonic() - self.monotonic, self.unanswered_s)
        return silent_s > 3 * self.every + 6.0


# --- the files --------------------------------------------------------------------------------------


def write_interval_s(directory: Path, minimum_s: float) -> float:
    """Return the seconds between writes to `directory`, at least `minimum_s`.

    A mounted bucket costs money for each write, and its writes go one after the other, so that a checkpoint would wait
    for the heartbeats.
    """
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        path = str(directory.resolve()) + "/"
        over = [m for m in mounts if path.startswith(m[1].rstrip("/") + "/")]
        if over and max(over, key=lambda m: len(m[1]))[2].startswith("fuse"):
            return max(minimum_s, _BUCKET_S)
    return minimum_s


def rank_file(directory: Path, rank: int) -> Path:
    """Return the path of a rank's heartbeat, below the checkpoint directory."""
    return directory / NAME / f"rank-{rank:05d}.json"


def write_beat(directory: Path, beat: Beat) -> None:
    """Replace the file of this rank. Raises OSError."""
    _write(rank_file(directory, beat.rank), beat)


def write_host_view(directory: Path, host_view: HostView) -> None:
    """Replace the file with the heartbeats that this host has received. Raises OSError."""
    _write(directory / NAME / f"seen-by-{_in_a_name(host_view.host)}.json", host_view)


def _write(path: Path, value: Beat | HostView) -> None:
    # Without fsync, because a heartbeat has no use after a crash of the whole machine.
    replace_file(path, json.dumps(asdict(value)).encode(), sync=False)


def is_first(directory: Path, host: str, world: str) -> bool:
    """Return True to the first process of this host that asks about this world. Raises OSError."""
    try:
        name = f"explained-{_in_a_name(host)}-{_in_a_name(world)}"
        (directory / NAME / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _in_a_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)[:80] or "_"


def read_beats(directory: Path) -> list[Beat]:
    """Return the heartbeats that the ranks wrote here, without unreadable ones."""
    return _read_all(directory, "rank-", Beat)


def read_host_views(directory: Path) -> list[HostView]:
    """Return the heartbeats that hosts have received from each other, as far as their files are here."""
    return _read_all(directory, "seen-by-", HostView)


def _read_all(directory: Path, prefix: str, kind: type[_Value]) -> list[_Value]:
    paths = (path for path in files(directory) if path.name.startswith(prefix))
    values = (typed.read(kind, path, MAX_BYTES) for path in paths)
    return [value for value in values if value is not None]


def clear(directory: Path, keep_ranks_below: int = 0) -> None:
    """Remove all heartbeat files, except for ranks below `keep_ranks_below`.

    Removes nothing behind a symbolic link, because those files may belong to another program.
    """
    if (directory / NAME).is_symlink():
        return
    for path in files(directory):
        name = _HEARTBEAT_FILE.fullmatch(path.name)
        if name is None or not name[1] or int(name[1]) >= keep_ranks_below:
            with contextlib.suppress(OSError):
                path.unlink()


def files(directory: Path) -> list[Path]:
    """Return the heartbeat files here, and drafts of them."""
    try:
        names = sorted(os.listdir(directory / NAME))
    except OSError:
        return []
    return [directory / NAME / name for name in names if _HEARTBEAT_FILE.fullmatch(name)]


# --- the newest of them -----------------------------------------------------------------------------


def newest_world(received: Iterable[ReceivedBeat]) -> list[ReceivedBeat]:
    """Return the newest heartbeat of each rank in the world that started last.

    Heartbeats of an earlier world do not count. A process that has not met the others yet belongs to this world, unless
    it started more than 30 s before the world's first process.
    """
    candidates = list(received)
    if not candidates:
        return []
    world = max(candidates, key=lambda each: each.beat.born).beat.world
    members = [each for each in candidates if each.beat.world == world]
    oldest = min(each.beat.born for each in members) - _SAME_AGE_S
    members += [each for each in candidates if not each.beat.world and each.beat.born >= oldest]
    # For each rank, the last entry wins. A process that has met the others comes after one that has not, then a later
    # heartbeat after an earlier one. If two hosts received the same heartbeat, the longer silence is right, because
    # that host received it first.
    members.sort(key=lambda each: (each.beat.world == world, each.beat.monotonic, each.age))
    newest = {each.beat.rank: each for each in members}
    return [newest[rank] for rank in sorted(newest)]


def gather(directory: Path) -> tuple[list[ReceivedBeat], HostView | None]:
    """Return the newest heartbeat of every rank of the newest world, and the view of this machine.

    Clocks of two machines are compared only if there is no other measure: if the caller's machine takes no part in the
    job or is cut off from its store, or if the job is large.
    """
    this_machine, now, wall = machine(), time.monotonic(), time.time()
    beats, host_views = read_beats(directory), read_host_views(directory)
    all_beats = [*beats, *(each.beat for view in host_views for each in view.heard)]
    newest = max(all_beats, key=lambda beat: beat.born).world if all_beats else ""
    host_views = [view for view in host_views if view.world == newest]  # not of an earlier world
    own_view = next((h for h in host_views if h.machine == this_machine), None)
    by_wall_clock = own_view is None or own_view.partial or own_view.is_cut_off
    received = []
    for beat in beats:
        if beat.machine == this_machine:
            received.append(ReceivedBeat(beat, max(0.0, now - beat.monotonic)))
        elif by_wall_clock:
            received.append(ReceivedBeat(beat, max(0.0, wall - beat.time)))
    for view in host_views:
        if view is own_view or own_view is None or own_view.partial:
            since = now - view.monotonic if view is own_view else wall - view.at
            received += [ReceivedBeat(each.beat, each.age + max(0.0, since)) for each in view.heard]
    return newest_world(received), own_view
