"""hosts.json → frozen values, and where things lie on a host. Pure.

Paths come out as bash in a login directory understands them, without expanding anything: `~/x` becomes
`./x`, so quoting is all they still need.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedHost:
    """One machine: how ssh reaches it, and where the job lives there."""

    name: str
    ssh: str
    dir: str
    script: str


@dataclass(frozen=True)
class Plan:
    """The whole of hosts.json. `elastic`: the least and the largest number of hosts. `locked`: each installs what
    the lock lists."""

    name: str
    launcher: str
    elastic: tuple[int, int] | None
    restarts: int
    head: str
    ssh_options: tuple[str, ...]
    checkpoint_dir: str
    hosts: tuple[PlannedHost, ...]
    locked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def enough(self) -> int:
        """How many hosts a start needs."""
        return self.elastic[0] if self.elastic else len(self.hosts)

    @property
    def restartable(self) -> bool:
        """Whether the driver may start all anew; else torchrun's own restarts are all there are."""
        return self.elastic is not None or self.launcher in ("torchrun-static", "env")

    def bundle(self, host: PlannedHost) -> str:
        """Where the bundle lies on `host`."""
        return f"{at_login(host.dir).rstrip('/')}/{self.name}"

    def checkpoints(self, host: PlannedHost) -> str:
        """Where the checkpoints lie on `host`; a relative place starts from the host's dir."""
        place = self.checkpoint_dir
        if place == "~" or place.startswith(("/", "~/")):
            return at_login(place)
        return f"{at_login(host.dir).rstrip('/')}/{place}"


def at_login(path: str) -> str:
    """`path` for a shell that stands in the login directory."""
    if path.startswith("/"):
        return path
    path = "" if path == "~" else path.removeprefix("~/")
    return f"./{path}"


def read(text: str) -> Plan:
    """Raises ValueError, KeyError or TypeError for what ddpgen has not written."""
    data = json.loads(text)
    hosts = tuple(
        PlannedHost(h["name"], h["ssh"], h["dir"], h["script"]) for h in data.pop("hosts")
    )
    return Plan(hosts=hosts, **data)
