"""A checkpoint directory's heartbeats, as they look from this host now.

Owns the joining of what is on file, what this process has heard itself, and what the system says of
the processes of this machine; and the hosts' names and addresses, what the preflight said, and who
holds the lock. Judges nothing itself.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train import lock, processes
from train.files import read_file
from train.health import heartbeats
from train.health.diagnosis import LATE, Diagnosis, examine
from train.health.heartbeats import HostView
from train.scheduler import Scheduled

MOST_BYTES = 64 << 20


def diagnose(directory: Path, host_view: HostView | None = None) -> Diagnosis:
    """Judge the world whose heartbeats are in this checkpoint directory, as seen from here now.

    `host_view`: what this process has heard itself, where that is younger than what is on file.
    """
    heard, on_file = heartbeats.gather(directory)
    if host_view is not None:
        heard = heartbeats.newest_world([*heard, *host_view.heard])
    host_view = host_view or on_file
    here = processes.machine()
    states = {
        each.beat.rank: processes.process_state(each.beat.pid, each.beat.started)
        for each in heard
        if each.beat.machine == here
    }
    late = 2 * host_view.every if host_view is not None else 0.0
    partial = host_view is not None and host_view.partial
    cut_off = host_view is not None and host_view.is_cut_off
    return examine(heard, states, cut_off, late, homes(directory), partial)


def settled(directory: Path, timeout_s: float) -> Diagnosis:
    """The same, once it is certain what is wrong or no heartbeat is late, as most are that come by way
    of another host or a busy disk; or after so many seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = diagnose(directory)
        late = {p.rank for p in found.members if p.condition == LATE}
        certain = found.wrong and not late.intersection(found.blamed)
        if certain or not late or time.monotonic() >= deadline:
            return found
        time.sleep(0.3)  # what is waited for comes in a file


def homes(directory: Path) -> dict[int, str]:
    """On which host each rank should be, where the check before the launch left word of it."""
    found: list[str] = []
    for report in sorted(_reports(directory), key=lambda each: each["node_rank"]):
        most = heartbeats.MOST_RANKS - len(found)
        found += [heartbeats.plain(report["host"], 80)] * min(report["procs"], most)
    return dict(enumerate(found))


def addresses(found: Diagnosis, own: str, directory: Path | None = None) -> dict[str, str]:
    """The addresses of the other hosts by name, those of the blamed first."""
    beats = [p.beat for p in found.members if p.beat is not None]
    blamed = set(found.blamed)
    beats.sort(key=lambda beat: beat.rank not in blamed)
    named = {beat.host: beat.address for beat in beats if beat.host != own}
    for report in _reports(directory) if directory is not None else ():
        if report["host"] != own and not named.get(report["host"]):
            named[heartbeats.plain(report["host"], 80)] = report["address"]
    return {name: at for name, at in named.items() if _is_address(at)}


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Preflight:
    """What the check before the last launch said. `findings`: code, host, cause and remedy of each."""

    ok: bool
    findings: tuple[dict[str, str], ...]


def preflight(directory: Path) -> Preflight | None:
    """The preflight of the last launch, None where there is no word of it."""
    value = _preflight(directory)
    if type(value.get("ok")) is not bool:
        return None
    names = ("code", "host", "cause", "remedy")
    found = _records(value.get("findings"), dict.fromkeys(names, str))
    return Preflight(
        value["ok"],
        tuple({name: heartbeats.plain(each[name], 1000) for name in names} for each in found),
    )


def _reports(directory: Path) -> list[dict[str, Any]]:
    """What each host reported before the launch, as far as it makes sense."""
    kinds = {"host": str, "address": str, "node_rank": int, "procs": int}
    return _records(_preflight(directory).get("hosts"), kinds)


def _preflight(directory: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_file(directory / "preflight.json", MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _records(value: Any, kinds: dict[str, type[Any]]) -> list[dict[str, Any]]:
    """Those of a list that have all of these."""
    return [
        each
        for each in (value if isinstance(value, list) else ())
        if isinstance(each, dict) and all(type(each.get(k)) is kind for k, kind in kinds.items())
    ]


@dataclass(frozen=True)
class Launch:
    """Who holds a directory. `lives`: None where it is another host's, and cannot be seen here;
    `scheduled`: which scheduler's job it is, if any."""

    host: str
    pid: int
    lives: bool | None
    scheduled: Scheduled | None = None


def launch(held: Path) -> Launch | None:
    """Who holds a checkpoint directory, or a host's part of it; None where the lock does not say."""
    try:
        read_file(held / "lock")  # no pipe, and no end of bytes
        holder = lock.read_lock(held)
    except OSError:
        return None
    if holder is None:
        return None
    known = [p for p in (holder.launcher, holder.writer) if p is not None]
    host = heartbeats.plain(str(holder.host), 80)
    scheduled = Scheduled.parse(holder.scheduler)
    if not lock.is_here(holder):
        return Launch(host, known[0][0], None, scheduled)
    alive = [
        pid for pid, began in known if processes.process_state(pid, began) not in processes.ENDED
    ]
    return Launch(host, alive[0] if alive else known[0][0], bool(alive), scheduled)
