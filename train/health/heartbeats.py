"""The heartbeats of a run: the last report of each rank about itself, and the files that hold it.

Owns `<checkpoint dir>/heartbeats/`. Each rank writes its `rank-00003.json` there, and rank 0 writes `received.json`,
the heartbeats of all ranks that it has received. The process that explains for its host why the others wait leaves the
empty `explained-HOST-WORLD`. Makes no heartbeat, and judges none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from train.base import typed
from train.base.files import replace_file
from train.base.processes import machine

NAME = "heartbeats"
MOST_BYTES = 64 << 20
_BUCKET_S = 30.0
_SAME_AGE_S = 30.0
_RECEIVED = "received.json"
_OURS = re.compile(r"rank-(\d{5,6})\.json|received\.json|explained-.*|\.(rank-|received).*")


@dataclass(frozen=True)
class Beat:
    """One rank, as it was at its last heartbeat.

    `world`: the name of the processes that have met, or "" before they have.
    `machine`: an id of the boot, the processes and the network that the rank sees.
    `started`: the start time of the process, which tells its pid from a reused one.
    `born`, `time`: wall clock of the start and of this heartbeat, in seconds. `monotonic`: the machine's own clock.
    `every`: seconds between heartbeats.
    `step`: complete steps, or -1 if unknown.
    `waits`: the rank waits for other processes. `busy`: the share of a processor that it uses, or -1.0 if unknown.
    `in_step`, `in_phase`: seconds since the step and the phase changed.
    `usual`: seconds that a step usually takes, or 0.0 if unknown.
    `misses_rank_0`: the rank's host has heard nothing new of rank 0 for too long.
    `ended`: why the process is about to end, or "" while it goes on.
    `waited`: the process ended because it lost another, or timed out waiting for it.
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
    misses_rank_0: bool = False
    ended: str = ""
    waited: bool = False


@dataclass(frozen=True)
class Heard:
    """A heartbeat and its age in seconds, by the clock of the process that received it."""

    beat: Beat
    age: float


@dataclass(frozen=True)
class Received:
    """The heartbeats that a process has received by `time`, its wall clock. `every`: seconds between its reads;
    `unanswered_s`: seconds since the run's store last answered it."""

    time: float
    every: float
    unanswered_s: float
    heard: tuple[Heard, ...]
    world: str = ""


@dataclass(frozen=True)
class World:
    """The newest heartbeat of every rank of the newest world, ordered by rank.

    `complete`: true unless other ranks may have a heartbeat elsewhere. `cut_off`: nothing has been received lately, so
    that the silence of ranks elsewhere says nothing. `delay`: seconds by which heartbeats may be late.
    """

    heard: list[Heard]
    complete: bool = True
    cut_off: bool = False
    delay: float = 0.0


# --- the files --------------------------------------------------------------------------------------


def pace(directory: Path, every: float) -> float:
    """Seconds between accesses to `directory`: `every`, or at least 30 s in a bucket that is mounted as a directory.

    A bucket charges for each write, and writes one file after the other, so that a checkpoint would wait behind the
    heartbeats.
    """
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        place = str(directory.resolve()) + "/"
        over = [m for m in mounts if place.startswith(m[1].rstrip("/") + "/")]
        if over and max(over, key=lambda m: len(m[1]))[2].startswith("fuse"):
            return max(every, _BUCKET_S)
    return every


def rank_file(directory: Path, rank: int) -> Path:
    """The file of a rank's heartbeat, below the checkpoint directory."""
    return directory / NAME / f"rank-{rank:05d}.json"


def write_beat(directory: Path, beat: Beat) -> None:
    """Replace the file of this rank. Raises OSError."""
    _write(rank_file(directory, beat.rank), beat)


def write_received(directory: Path, received: Received) -> None:
    """Replace the file of the heartbeats that rank 0 has received. Raises OSError."""
    _write(directory / NAME / _RECEIVED, received)


def _write(path: Path, value: Beat | Received) -> None:
    # Without fsync, because after a crash of the whole machine the heartbeats before it do not matter.
    replace_file(path, json.dumps(asdict(value)).encode(), sync=False)


def is_first(directory: Path, host: str, world: str) -> bool:
    """True for the first process of this host that asks about this world. Raises OSError."""
    try:
        name = f"explained-{_in_a_name(host)}-{_in_a_name(world)}"
        (directory / NAME / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _in_a_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)[:80] or "_"


def read_beats(directory: Path) -> list[Beat]:
    """The heartbeats that the ranks themselves have left here."""
    ours = (path for path in files(directory) if path.name.startswith("rank-"))
    return [beat for path in ours if (beat := typed.read(Beat, path)) is not None]


def read_received(directory: Path) -> Received | None:
    """The heartbeats that rank 0 has received, if they are on file here."""
    return typed.read(Received, directory / NAME / _RECEIVED, MOST_BYTES)


def clear(directory: Path, but_below: int = 0) -> None:
    """Remove the heartbeat files, except those of the ranks below `but_below`.

    Remove nothing behind a symbolic link, because it may lead to another user's files.
    """
    if (directory / NAME).is_symlink():
        return
    for path in files(directory):
        name = _OURS.fullmatch(path.name)
        if name is None or not name[1] or int(name[1]) >= but_below:
            with contextlib.suppress(OSError):
                path.unlink()


def files(directory: Path) -> list[Path]:
    """All heartbeat files here, and their drafts."""
    try:
        names = sorted(os.listdir(directory / NAME))
    except OSError:
        return []
    return [directory / NAME / name for name in names if _OURS.fullmatch(name)]


# --- the newest of them -----------------------------------------------------------------------------


def newest_world(found: Iterable[Heard]) -> list[Heard]:
    """The newest heartbeat of each rank of the processes that were started last, ordered by rank.

    The heartbeats of an earlier world are left out, because their processes are gone. A process that has not met the
    others yet, or has not said so, belongs to them unless it started more than 30 s before the oldest of them.
    """
    heard = list(found)
    if not heard:
        return []
    world = max(heard, key=lambda each: each.beat.born).beat.world
    members = [each for each in heard if each.beat.world == world]
    oldest = min(each.beat.born for each in members) - _SAME_AGE_S
    members += [each for each in heard if not each.beat.world and each.beat.born >= oldest]
    # Prefer the process of a rank that has met the others, then its latest heartbeat. If two receivers have that, take
    # the greater age, because the first receiver knows better how old it is.
    members.sort(key=lambda each: (each.beat.world == world, each.beat.monotonic, each.age))
    newest = {each.beat.rank: each for each in members}
    return [newest[rank] for rank in sorted(newest)]


def gather(directory: Path, received: Received | None = None) -> World:
    """Return the newest world, as far as it is known here.

    `received`: the heartbeats that this process has received, in place of rank 0's file. The heartbeats of this machine
    in it tell how old it is. If it is out of date, a shared directory still has the ranks' own files, whose age goes by
    the clocks of two machines.
    """
    here, now, wall = machine(), time.monotonic(), time.time()
    beats, received = read_beats(directory), received or read_received(directory)
    known = [*beats, *(each.beat for each in received.heard)] if received else beats
    name = max(known, key=lambda beat: beat.born).world if known else ""
    own = [Heard(beat, max(0.0, now - beat.monotonic)) for beat in beats if beat.machine == here]
    away = [Heard(beat, max(0.0, wall - beat.time)) for beat in beats if beat.machine != here]
    if received is not None and received.world == name:
        theirs = [each for each in received.heard if each.beat.machine == here]
        ages = (now - each.beat.monotonic - each.age for each in theirs)
        age = max(0.0, min(ages, default=wall - received.time))
        stale_s = max(age, received.unanswered_s)
        cut_off = stale_s > 3 * received.every + 6.0
        if not (cut_off and any(each.beat.world == name for each in away)):
            others = [replace(each, age=each.age + age) for each in received.heard]
            delay = 2 * received.every + (0.0 if cut_off else stale_s)
            return World(newest_world([*own, *others]), cut_off=cut_off, delay=delay)
    heard = newest_world([*own, *away])
    # The processes have met, but rank 0 has no file: this directory belongs to one of the other hosts alone.
    is_partial = bool(name) and bool(heard) and heard[0].beat.rank > 0
    return World(heard, complete=not is_partial)
