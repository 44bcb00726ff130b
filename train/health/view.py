"""A checkpoint directory's heartbeats, as they look from this host now.

Owns joining three sources: the heartbeats on file, those that this process has received, and the system's states of
this machine's processes. Also reads the hosts from the file of the last preflight. Judges nothing itself.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from train.base import processes, typed
from train.health import heartbeats
from train.health.diagnosis import Diagnosis, examine
from train.health.heartbeats import Received


def diagnose(directory: Path, received: Received | None = None) -> Diagnosis:
    """Judge the world whose heartbeats are in this checkpoint directory, as seen from here now.

    `received`: the heartbeats that this process has received, in place of rank 0's file.
    """
    world = heartbeats.gather(directory, received)
    here = processes.machine()
    states = {
        each.beat.rank: processes.process_state(each.beat.pid, each.beat.started)
        for each in world.heard
        if each.beat.machine == here
    }
    return examine(world, states, read_preflight(directory).homes)


def addresses(found: Diagnosis, own: str, check: Preflight | None = None) -> dict[str, str]:
    """The addresses of the other hosts by name, the hosts of the blamed ranks first."""
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


_Ok = Optional[bool]


@dataclass(frozen=True)
class CheckedHost:
    """A host that took part in the preflight. `procs`: the number of its processes."""

    host: str
    address: str
    node_rank: int
    procs: int


@dataclass(frozen=True)
class Finding:
    """A fault that the preflight found."""

    code: str
    host: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class Preflight:
    """The preflight of the last launch, as read from preflight.json. `ok`: None if there is no such file."""

    ok: _Ok = None
    findings: tuple[Finding, ...] = ()
    hosts: tuple[CheckedHost, ...] = ()

    @property
    def homes(self) -> dict[int, str]:
        """The host of each rank."""
        ordered = sorted(self.hosts, key=lambda each: each.node_rank)
        return dict(enumerate(each.host for each in ordered for _ in range(each.procs)))

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host, by name."""
        return {each.host: each.address for each in self.hosts}


def read_preflight(directory: Path) -> Preflight:
    """The preflight of the last launch."""
    return typed.read(Preflight, directory / "preflight.json", heartbeats.MOST_BYTES) or Preflight()
