"""A checkpoint directory's heartbeats, as they look from this host now.

Owns the joining of what is on file, what this process has received itself, and what the system says of
the processes of this machine; and what the last preflight left on file of the hosts. Judges nothing itself.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base import processes
from train.base.console import plain
from train.base.files import read_file
from train.health import heartbeats
from train.health.diagnosis import Diagnosis, examine
from train.health.heartbeats import HostView

MOST_BYTES = 64 << 20


def diagnose(directory: Path, host_view: HostView | None = None) -> Diagnosis:
    """Judge the world whose heartbeats are in this checkpoint directory, as seen from here now.

    `host_view`: what this process has received itself, where that is newer than what is on file.
    """
    heard, on_file = heartbeats.gather(directory)
    if host_view is not None:
        heard = heartbeats.newest_world([*heard, *host_view.heard])
    here = processes.machine()
    states = {
        each.beat.rank: processes.process_state(each.beat.pid, each.beat.started)
        for each in heard
        if each.beat.machine == here
    }
    homes = read_preflight(directory).homes
    view = host_view or on_file
    if view is None:
        return examine(heard, states, homes=homes)
    return examine(heard, states, view.is_cut_off, 2 * view.every, homes, view.partial)


def addresses(found: Diagnosis, own: str, check: Preflight | None = None) -> dict[str, str]:
    """The addresses of the other hosts by name, those of the blamed first."""
    beats = [p.beat for p in found.members if p.beat is not None]
    blamed = set(found.blamed)
    beats.sort(key=lambda beat: beat.rank not in blamed)
    named = {beat.host: beat.address for beat in beats}
    for host, address in (check.addresses if check is not None else {}).items():
        named[host] = named.get(host) or address
    return {name: at for name, at in named.items() if name != own and _is_address(at)}


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Preflight:
    """What the check before the last launch said, as far as that is on file. `ok`: None where it is not;
    `findings`: code, host, cause and remedy of each; `homes`: hosts by rank; `addresses`: by host."""

    ok: bool | None
    findings: tuple[dict[str, str], ...]
    homes: dict[int, str]
    addresses: dict[str, str]


def read_preflight(directory: Path) -> Preflight:
    """The preflight of the last launch."""
    try:
        value = json.loads(read_file(directory / "preflight.json", MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        value = None
    value = value if isinstance(value, dict) else {}
    ok = value.get("ok")
    names = dict.fromkeys(("code", "host", "cause", "remedy"), str)
    hosts = {"host": str, "address": str, "node_rank": int, "procs": int}
    reports = sorted(_records(value.get("hosts"), hosts), key=lambda each: each["node_rank"])
    homes: list[str] = []
    for report in reports:
        homes += [report["host"]] * min(report["procs"], heartbeats.MOST_RANKS - len(homes))
    return Preflight(
        ok if isinstance(ok, bool) else None,
        tuple(_records(value.get("findings"), names)),
        dict(enumerate(homes)),
        {report["host"]: report["address"] for report in reports},
    )


def _records(value: Any, kinds: dict[str, type[Any]]) -> list[dict[str, Any]]:
    """Those of a list that have all of these, for a terminal."""
    found = []
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict) and all(type(each.get(k)) is kind for k, kind in kinds.items()):
            texts = {k: plain(each[k], 1000) for k, kind in kinds.items() if kind is str}
            found.append({**{k: each[k] for k in kinds}, **texts})
    return found
