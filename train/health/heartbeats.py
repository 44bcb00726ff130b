"""The heartbeats of a run: what each rank last said of itself, and the files that hold it.

Owns `<checkpoint dir>/heartbeats/`: `rank-00003.json` written by the rank itself, `seen-by-HOST.json`
with what a host has heard of the ranks of all others, `said-HOST-WORLD.txt` with what a process of
that host said before it ended. Whoever reads them takes them for words of strangers. Standard
library only; knows nothing of how a beat comes about, and judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from train.files import read_file, replace_file
from train.processes import machine

NAME = "heartbeats"
MOST_BYTES = 4 << 20
_MOST_TEXT = 400
MOST_RANKS = 100_000
# No second, step or process has such a number.
_MOST_NUMBER = 1e15
_BUCKET_S = 30.0
_SAME_AGE_S = 30.0
_RANK = re.compile(r"rank-(\d{5,6})\.json")
# Control characters, what turns the direction of a line around, and halves of characters.
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Beat:
    """One rank, as it was when it last beat.

    `world`: names the processes that have met ("" before); `machine`: the boot, processes and
    network it sees; `started`: what tells its pid from a reused one; `born`, `time`: wall clock of
    its start and of this beat, in seconds; `monotonic`: the machine's own clock; `every`: seconds
    between beats. `step`: complete steps, -1 where that is not known; `in_step`, `in_phase`: seconds
    since that and the phase changed; `usual`: seconds a step takes otherwise, 0.0 if unknown.
    `ended`: why this process is about to end, "" while it goes on; `waited`: it ended because it had
    waited for others in vain.
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

    def as_json(self) -> dict[str, Any]:
        """The beat for its file and for the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Beat:
        """What as_json() made, its texts without control characters. Raises ValueError else."""
        if not isinstance(value, dict):
            raise ValueError("no heartbeat")
        kinds = {f.name: type(f.default) for f in fields(cls)}
        kinds |= dict.fromkeys(("rank", "local_rank", "world_size", "pid"), int)
        kinds |= {"host": str, "machine": str}
        made = cls(**{name: _checked(value.get(name), kind) for name, kind in kinds.items()})
        if not 0 <= made.rank < max(1, made.world_size) <= MOST_RANKS:
            raise ValueError("no such rank")
        return made


@dataclass(frozen=True)
class Heard:
    """A beat and its age in seconds, by the clock of whom it reached."""

    beat: Beat
    age: float

    def as_json(self) -> dict[str, Any]:
        """For the file of a host and the summary in the store."""
        return {"beat": self.beat.as_json(), "age": round(self.age, 1)}

    @classmethod
    def from_json(cls, value: Any) -> Heard:
        """What as_json() made. Raises ValueError else."""
        if not isinstance(value, dict):
            raise ValueError("no heartbeat")
        return cls(Beat.from_json(value.get("beat")), _checked(value.get("age"), float))


@dataclass(frozen=True)
class HostView:
    """What one host has heard. `at`, `monotonic`: when this was written, by that host's clocks;
    `every`: seconds between its looks; `unanswered_s`: seconds since the run's store last answered it;
    `partial`: of the other hosts' ranks it knows those that rank 0 named, who are in trouble if any is."""

    host: str
    machine: str
    at: float
    monotonic: float
    every: float
    unanswered_s: float
    heard: tuple[Heard, ...]
    partial: bool = False

    @property
    def is_cut_off(self) -> bool:
        """Whether this host, this machine, has neither written nor been answered for too long to know
        of the others."""
        silent_s = max(time.monotonic() - self.monotonic, self.unanswered_s)
        return silent_s > 3 * self.every + 6.0


def plain(text: str, most: int = _MOST_TEXT) -> str:
    """A stranger's text for a terminal: control characters are shown, not obeyed."""
    return _ODD.sub(lambda found: f"\\x{ord(found[0]):02x}", text[:most])


def _checked(value: Any, kind: type[Any]) -> Any:
    if type(value) in (int, float) and not abs(value) < _MOST_NUMBER:
        raise ValueError("no such number")
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple:
        if not isinstance(value, list) or len(value) > 32:
            raise ValueError("no stack")
        return tuple(_checked(each, str) for each in value)
    if type(value) is not kind:
        raise ValueError("no heartbeat")
    return plain(value) if kind is str else value


def pace(directory: Path, every: float) -> float:
    """Seconds between writes to `directory`, where one may look every `every` seconds.

    A bucket that is mounted as a directory is charged by the write, and writes one after the other:
    a checkpoint would wait in line behind the heartbeats.
    """
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        place = str(directory.resolve()) + "/"
        over = [m for m in mounts if place.startswith(m[1].rstrip("/") + "/")]
        if over and max(over, key=lambda m: len(m[1]))[2].startswith("fuse"):
            return max(every, _BUCKET_S)
    return every


def rank_file(directory: Path, rank: int) -> Path:
    """Where a rank keeps its heartbeat, below the checkpoint directory."""
    return directory / NAME / f"rank-{rank:05d}.json"


def write(path: Path, value: Any) -> None:
    """Replace a file by this value as JSON; a reader sees the old one or the new. Raises OSError.

    Without fsync: after a crash of the whole machine nobody asks how the rank stood before it.
    """
    replace_file(path, json.dumps(value).encode(), sync=False)


def write_host_view(directory: Path, host_view: HostView) -> None:
    """Put on file what this host has heard. Raises OSError."""
    heard = [each.as_json() for each in host_view.heard]
    name = f"seen-by-{_in_a_name(host_view.host)}.json"
    write(directory / NAME / name, {**vars(host_view), "heard": heard})


def said_file(directory: Path, host: str, world: str) -> Path:
    """Where a host's last words about a world are; who makes it first is the one to speak."""
    return directory / NAME / f"said-{_in_a_name(host)}-{_in_a_name(world)}.txt"


def _in_a_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)[:80] or "_"


def read_beats(directory: Path) -> list[Beat]:
    """The heartbeats that the ranks themselves have left here. What makes no sense is passed over."""
    found = []
    for name in _names(directory):
        if _RANK.fullmatch(name):
            with contextlib.suppress(OSError, ValueError):
                found.append(Beat.from_json(_read(directory / NAME / name)))
    return found


def read_host_views(directory: Path) -> list[HostView]:
    """What the hosts have heard of each other, as far as it is on file here."""
    found = []
    for name in _names(directory):
        if name.startswith("seen-by-") and name.endswith(".json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(_host_view(_read(directory / NAME / name)))
    return found


def _host_view(value: Any) -> HostView:
    if not isinstance(value, dict) or not isinstance(value.get("heard"), list):
        raise ValueError("no host view")
    heard = tuple(Heard.from_json(each) for each in value["heard"])
    texts = {name: _checked(value.get(name), str) for name in ("host", "machine")}
    numbers = {
        name: _checked(value.get(name), float)
        for name in ("at", "monotonic", "every", "unanswered_s")
    }
    return HostView(**texts, **numbers, heard=heard, partial=_checked(value.get("partial"), bool))


def read_said(directory: Path, world: str) -> dict[str, list[str]]:
    """What processes of this world said before they ended: lines by the host's name."""
    found = {}
    for name in _names(directory):
        if name.startswith("said-") and name.endswith(f"-{_in_a_name(world)}.txt"):
            with contextlib.suppress(OSError):
                text = read_file(directory / NAME / name)[:20_000].decode("utf-8", "replace")
                host = name.removeprefix("said-").removesuffix(f"-{_in_a_name(world)}.txt")
                found[plain(host)] = [plain(line, 1000) for line in text.splitlines()[:40]]
    return found


def clear(directory: Path, but_below: int = 0) -> None:
    """Remove what an earlier world has left; not the beats of ranks below this one.

    Nothing behind a symbolic link: what lies there may be anybody's.
    """
    if (directory / NAME).is_symlink():
        return
    for name in _names(directory):
        rank = _RANK.fullmatch(name)
        if rank and int(rank[1]) < but_below:
            continue
        if rank or name.startswith(("seen-by-", "said-", ".rank-", ".seen-by-")):
            with contextlib.suppress(OSError):
                (directory / NAME / name).unlink()


def files(directory: Path) -> list[Path]:
    """What is read here."""
    ours = (
        n for n in _names(directory) if _RANK.fullmatch(n) or n.startswith(("seen-by-", "said-"))
    )
    return [directory / NAME / name for name in ours]


def _names(directory: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(directory / NAME))
    except OSError:
        return ()


def _read(path: Path) -> Any:
    try:
        return json.loads(read_file(path, MOST_BYTES))
    except RecursionError:
        raise ValueError("too deep") from None


def newest_world(found: Iterable[Heard]) -> list[Heard]:
    """Of each rank the youngest beat, of the processes that were born last.

    What an earlier world has left is nobody's any more. A process that has not met the others yet,
    or has not said so, belongs to them when it is of their age.
    """
    heard = list(found)
    if not heard:
        return []
    world = max(heard, key=lambda each: each.beat.born).beat.world
    members = [each for each in heard if each.beat.world == world]
    oldest = min(each.beat.born for each in members) - _SAME_AGE_S
    members += [each for each in heard if not each.beat.world and each.beat.born >= oldest]
    best: dict[int, Heard] = {}
    for each in members:
        held = best.get(each.beat.rank)
        if held is None or _is_younger(each, held, world):
            best[each.beat.rank] = each
    return [best[rank] for rank in sorted(best)]


def _is_younger(one: Heard, held: Heard, world: str) -> bool:
    if one.beat.world != held.beat.world:
        return one.beat.world == world
    if one.beat.pid == held.beat.pid and one.beat.monotonic != held.beat.monotonic:
        return one.beat.monotonic > held.beat.monotonic
    # The same beat: who has known it for longer knows better how old it is.
    return one.age > held.age if one.beat.pid == held.beat.pid else one.age < held.age


def gather(directory: Path) -> tuple[list[Heard], HostView | None]:
    """The youngest beat of every rank of the newest world, and what this very machine has heard.

    No clock of one machine is compared with another's, but where there is nothing else to go by: a
    shared directory that is looked at from a machine that takes no part.
    """
    here, now, wall = machine(), time.monotonic(), time.time()
    host_views = read_host_views(directory)
    own = next((h for h in host_views if h.machine == here), None)
    found = []
    for beat in read_beats(directory):
        if beat.machine == here:
            found.append(Heard(beat, max(0.0, now - beat.monotonic)))
        elif own is None or own.is_cut_off:
            found.append(Heard(beat, max(0.0, wall - beat.time)))
    for host_view in host_views if own is None else [own]:
        since = now - host_view.monotonic if host_view.machine == here else wall - host_view.at
        found += [replace(each, age=each.age + max(0.0, since)) for each in host_view.heard]
    return newest_world(found), own
