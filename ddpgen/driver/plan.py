"""hosts.json → frozen values, and where things lie on a host. Pure.

Owns the form of hosts.json. Paths come out as bash in a login directory understands them, without
expanding anything: `~/x` becomes `./x`, so quoting is all they still need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LAUNCHERS = ("torchrun", "torchrun-static", "env")
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class PlanError(Exception):
    """hosts.json is not what this driver reads; the message has a line for each fault."""


@dataclass(frozen=True)
class Host:
    """One machine: how ssh reaches it, and where the job lives there."""

    name: str
    ssh: str
    dir: str
    script: str


@dataclass(frozen=True)
class Plan:
    """The whole of hosts.json."""

    name: str
    launcher: str
    elastic: tuple[int, int] | None
    restarts: int
    head: str
    ssh_options: tuple[str, ...]
    checkpoint_dir: str
    hosts: tuple[Host, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def restartable(self) -> bool:
        """Whether the driver may start all anew; else torchrun's own restarts are all there are."""
        return self.elastic is not None or self.launcher in ("torchrun-static", "env")

    def host(self, name: str) -> Host:
        """Raises KeyError."""
        return {host.name: host for host in self.hosts}[name]

    def bundle(self, host: Host) -> str:
        """Where the bundle lies on `host`."""
        return _below(at_login(host.dir), self.name)

    def checkpoints(self, host: Host) -> str:
        """Where the checkpoints lie on `host`; a relative place starts from the host's dir."""
        place = self.checkpoint_dir
        if place == "~" or place.startswith(("/", "~/")):
            return at_login(place)
        return _below(at_login(host.dir), place)


def at_login(path: str) -> str:
    """`path` for a shell that stands in the login directory."""
    if path.startswith("/"):
        return path
    path = "" if path == "~" else path.removeprefix("~/")
    return f"./{path}"


def _below(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def read(text: str) -> Plan:
    """Raises PlanError, with every fault at once."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PlanError(f"is not JSON: {error}") from None
    faults = list(_faults(data))
    if faults:
        raise PlanError("\n".join(faults))
    elastic = data["elastic"]
    return Plan(
        name=data["name"],
        launcher=data["launcher"],
        elastic=(elastic[0], elastic[1]) if elastic else None,
        restarts=data["restarts"],
        head=data["head"],
        ssh_options=tuple(data["ssh_options"]),
        checkpoint_dir=data["checkpoint_dir"],
        hosts=tuple(Host(h["name"], h["ssh"], h["dir"], h["script"]) for h in data["hosts"]),
    )


_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "launcher": str,
    "elastic": (list, type(None)),
    "restarts": int,
    "head": str,
    "ssh_options": list,
    "checkpoint_dir": str,
    "hosts": list,
}


def _faults(data: Any) -> Iterator[str]:
    if not isinstance(data, dict):
        yield "is not an object"
        return
    wrong = [key for key, kind in _KINDS.items() if not isinstance(data.get(key, ...), kind)]
    yield from (f"{key} is missing, or of the wrong type" for key in wrong)
    if wrong:
        return
    if not _plain(data["name"]):
        yield f"name {data['name']!r} cannot name a directory"
    if data["launcher"] not in LAUNCHERS:
        yield f"launcher {data['launcher']!r} is none of {', '.join(LAUNCHERS)}"
    if not all(isinstance(word, str) and "\0" not in word for word in data["ssh_options"]):
        yield "ssh_options are not words"
    if not _is_place(data["checkpoint_dir"]):
        yield f"checkpoint_dir {data['checkpoint_dir']!r} is no path"
    yield from _host_faults(data["hosts"])
    names = [host.get("name") for host in data["hosts"] if isinstance(host, dict)]
    if data["head"] not in names:
        yield f"head {data['head']!r} is none of the hosts"
    yield from _elastic_faults(data["elastic"], len(names))


def _elastic_faults(elastic: Any, hosts: int) -> Iterator[str]:
    if elastic is None:
        return
    numbers = len(elastic) == 2 and all(type(n) is int for n in elastic)
    if not numbers or not 1 <= elastic[0] <= elastic[1] <= hosts:
        yield f"elastic {elastic} is not [least, most] of {hosts} hosts"


def _host_faults(hosts: list[Any]) -> Iterator[str]:
    if not hosts:
        yield "hosts is empty"
    seen = set()
    for number, host in enumerate(hosts):
        keys = ("name", "ssh", "dir", "script")
        if not isinstance(host, dict) or not all(isinstance(host.get(k), str) for k in keys):
            yield f"hosts[{number}] does not hold the words {', '.join(keys)}"
            continue
        name, ssh, script = host["name"], host["ssh"], host["script"]
        if not _plain(name) or name in seen:
            yield f"hosts[{number}].name {name!r} is not a name, or not unique"
        seen.add(name)
        if not ssh or ssh.startswith("-") or "\0" in ssh:
            yield f"hosts[{number}].ssh {ssh!r} is not a destination"
        if not _is_place(host["dir"]):
            yield f"hosts[{number}].dir {host['dir']!r} is no path; ~name/ is not understood"
        if not script or script.startswith(("/", "-")) or ".." in script.split("/"):
            yield f"hosts[{number}].script {script!r} is not inside the bundle"


def _plain(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in (".", "..")


def _is_place(path: str) -> bool:
    return bool(path) and "\0" not in path and (path[0] != "~" or path[:2] in ("~", "~/"))
