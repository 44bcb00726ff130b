"""A checkpoint directory's heartbeats, as they look from this host now.

Joins the heartbeat files, the heartbeats that this process has received, and the states of this machine's processes.
Reads the hosts of the ranks from preflight.json. diagnosis.py judges.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from train.base import processes, typed
from train.health import heartbeats
from train.health.diagnosis import Diagnosis, examine
from train.health.heartbeats import HostView

MAX_BYTES = 64 << 20


def diagnose(directory: Path, host_view: HostView | None = None) -> Diagnosis:
    """Judge the world whose heartbeats are in this checkpoint directory, as seen from here now.

    `host_view`: the heartbeats that this process itself has received, which may be newer than the files.
    """
    received, on_file = heartbeats.gather(directory)
    if host_view is not None:
        received = heartbeats.newest_world([*received, *host_view.heard])
    this_machine = processes.machine()
    states = {
        heartbeat.beat.rank: processes.process_state(heartbeat.beat.pid, heartbeat.beat.started)
        for heartbeat in received
        if heartbeat.beat.machine == this_machine
    }
    host_of_rank = read_preflight(directory).host_of_rank
    view = host_view or on_file
    if view is None:
        return examine(received, states, host_of_rank=host_of_rank)
    return examine(received, states, view.is_cut_off, 2 * view.every, host_of_rank, view.partial)


def addresses(
    diagnosis: Diagnosis, own_host: str, check: Preflight | None = None
) -> dict[str, str]:
    """The addresses of the other hosts by name, the hosts of the blamed ranks first."""
    beats = [p.beat for p in diagnosis.members if p.beat is not None]
    blamed = set(diagnosis.blamed)
    beats.sort(key=lambda beat: beat.rank not in blamed)
    address_of = {beat.host: beat.address for beat in beats}
    for host, address in (check.addresses if check is not None else {}).items():
        address_of[host] = address_of.get(host) or address
    return {
        name: address
        for name, address in address_of.items()
        if name != own_host and _is_address(address)
    }


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


_Ok = Optional[bool]


@dataclass(frozen=True)
class CheckedHost:
    """A host that took part in the check, and how many processes it runs."""

    host: str
    address: str
    node_rank: int
    procs: int


@dataclass(frozen=True)
class Finding:
    """A fault that the check found."""

    code: str
    host: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class Preflight:
    """The check before the last launch, as far as preflight.json tells it. `ok`: None if there is no such file."""

    ok: _Ok = None
    findings: tuple[Finding, ...] = ()
    hosts: tuple[CheckedHost, ...] = ()

    @property
    def host_of_rank(self) -> dict[int, str]:
        """The host of each rank."""
        ordered = sorted(self.hosts, key=lambda each: each.node_rank)
        return dict(enumerate(host.host for host in ordered for _ in range(host.procs)))

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host, by name."""
        return {each.host: each.address for each in self.hosts}


def read_preflight(directory: Path) -> Preflight:
    """The preflight of the last launch."""
    return typed.read(Preflight, directory / "preflight.json", MAX_BYTES) or Preflight()
