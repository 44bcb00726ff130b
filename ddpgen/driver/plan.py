"""hosts.json → frozen values, and the paths on a host. Pure.

Paths are for bash in the login directory, where `~/x` becomes `./x`. So they need no expansion, only quotes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class PlannedHost:
    """One machine: its ssh destination, and the directory of the job there."""

    name: str
    ssh: str
    dir: str
    script: str


@dataclass(frozen=True)
class Plan:
    """The content of hosts.json.

    `elastic`: the least and the largest number of hosts. `locked`: each host installs the packages of the version
    lock. `secrets`: see secret_values.read(). `points`: the id of each point of a sweep, by its name. `spares`: the
    number of hosts at the end of the list that take no part until a bad host is left out.
    """

    name: str
    launcher: str
    elastic: tuple[int, int] | None
    restarts: int
    head: str
    ssh_options: tuple[str, ...]
    checkpoint_dir: str
    hosts: tuple[PlannedHost, ...]
    locked: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    points: Mapping[str, str] = field(default_factory=dict)
    spares: int = 0
    exclude_bad_nodes: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def min_hosts(self) -> int:
        """The number of hosts that a start needs."""
        return self.elastic[0] if self.elastic else len(self.regular)

    @property
    def regular(self) -> tuple[str, ...]:
        """The names of the hosts that take part while none is bad."""
        return self.names[: len(self.hosts) - self.spares]

    @property
    def room(self) -> int:
        """The number of hosts that can be left out."""
        return len(self.hosts) - self.min_hosts if self.exclude_bad_nodes else 0

    @property
    def restartable(self) -> bool:
        """True if the driver may start all hosts again; else torchrun makes all restarts."""
        return self.elastic is not None or self.launcher in ("torchrun-static", "env")

    def at_point(self, name: str) -> Plan:
        """Return the plan of one point of a sweep, which has its own part of the checkpoint directory."""
        return replace(self, checkpoint_dir=f"{self.checkpoint_dir.rstrip('/')}/{name}")

    def bundle(self, host: PlannedHost) -> str:
        """Return the bundle's directory on `host`."""
        return f"{login_path(host.dir).rstrip('/')}/{self.name}"

    def checkpoints(self, host: PlannedHost) -> str:
        """Return the checkpoint directory on `host`. A relative path starts from the host's `dir`."""
        return login_path_in(self.checkpoint_dir, login_path(host.dir).rstrip("/"))


def login_path_in(path: str, directory: str) -> str:
    """Return `path` for a login shell. A relative path starts at `directory`."""
    if path == "~" or path.startswith(("/", "~/")):
        return login_path(path)
    return f"{directory}/{path}"


def login_path(path: str) -> str:
    """Return `path` for a shell in the login directory."""
    if path.startswith("/"):
        return path
    path = "" if path == "~" else path.removeprefix("~/")
    return f"./{path}"


def read(text: str) -> Plan:
    """Return the plan in hosts.json. Raise ValueError, KeyError or TypeError if ddpgen did not write it."""
    data = json.loads(text)
    hosts = tuple(
        PlannedHost(h["name"], h["ssh"], h["dir"], h["script"]) for h in data.pop("hosts")
    )
    return Plan(hosts=hosts, **data)
