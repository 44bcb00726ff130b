"""The values that the hosts of a launch send each other as JSON. Reading them checks the JSON of other hosts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from train.preflight.finding import CODES, SEVERITIES, Finding
from train.preflight.settings import Settings

VERSION = 4  # of the exchange
_TYPES = {"str": (str,), "int": (int,), "float": (int, float)}
_LONGEST = 4096  # characters
_MAX_NUMBER = 1e15  # the largest number of any kind
# Bytes of findings in a verdict, because the head may send it to a thousand clients at once.
_FINDINGS = 32 * 1024
_MAX_BYTES = 128 * 1024  # of the reports and links in a verdict

T = TypeVar("T")


def parsed(kind: type[T], value: Any, **made: Any) -> T:
    """Return a dataclass of texts and numbers from the wire. `made`: its other fields. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"no {kind.__name__}")
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in made:
            continue
        given = made[each.name] = value.get(each.name, each.default)
        is_text = isinstance(given, str)
        fits = (
            len(given) <= _LONGEST
            if is_text
            else type(given) in (int, float) and abs(given) <= _MAX_NUMBER
        )
        if not fits or type(given) not in _TYPES[str(each.type)]:
            raise ValueError(f"no {kind.__name__}: {each.name}")
    return kind(**made)


def _finding(value: Any) -> Finding:
    found = parsed(Finding, value)
    if found.code not in CODES or found.severity not in SEVERITIES:
        raise ValueError(f"no finding: {found}")
    return found


@dataclass(frozen=True)
class Hello:
    """One host's part in the launch, as its own command line gives it.

    `instance`: a random name of this process. The head's `instance` is the name of the launch.
    `port`: the port where the host listens for probes.
    `way`: the trouble of the client's last attempt to connect to the head, such as "timeout"; "" if that succeeded.
    `to`: the address of that attempt.
    `clock`: the time at which the hello was sent, in seconds since the epoch.
    """

    job: str
    host: str
    rank: int
    nodes: int
    world_size: int
    head: str
    instance: str
    role: str
    port: int = 0
    way: str = ""
    to: str = ""
    clock: float = 0.0
    preflight: int = VERSION

    @classmethod
    def from_settings(cls, settings: Settings) -> Hello:
        role = "head" if settings.is_head else "client"
        counts = (settings.node_rank, settings.nodes, settings.world_size)
        return cls(
            settings.job, settings.host_name, *counts, settings.head, secrets.token_hex(8), role
        )


@dataclass(frozen=True)
class Peer:
    """A host that others probe: its name, the address that its processes will bind, and the port of its preflight."""

    host: str
    address: str
    port: int


@dataclass(frozen=True)
class Report:
    """One host, after it has checked itself.

    `address`: the address by which the host takes part.
    `first_address`: the first address of `nic`, which gloo and NCCL bind.
    `facts`: the values that compare.py compares, by name. A fact that the host does not know is absent:

    - machine: boot id and network namespace
    - torch ("2.13.0+cpu"), python ("3.11.7"), cuda, nccl: versions
    - code, spec: digests of train/ and code/, and of the job
    - isa: "avx512", "avx2", "default", or the architecture
    - filesystem: a token that is equal on hosts that see one directory
    - save: train.run.saves.Saved as JSON, from which a user's script would go on
    """

    host: str
    node_rank: int
    nodes: int
    world_size: int
    procs: int
    head: str
    nic: str = ""
    address: str = ""
    prefix: int = 32
    first_address: str = ""
    resolved: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()

    @classmethod
    def from_settings(cls, settings: Settings, findings: Sequence[Finding], **known: Any) -> Report:
        counts = (settings.node_rank, settings.nodes, settings.world_size, settings.procs)
        return cls(settings.host_name, *counts, settings.head, findings=tuple(findings), **known)

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """Read a report from the wire. Raises ValueError or TypeError for anything else."""
        facts = value.get("facts", {}) if isinstance(value, dict) else {}
        if not isinstance(facts, dict) or not all(isinstance(fact, str) for fact in facts.values()):
            raise ValueError("no Report: facts")
        findings = tuple(_finding(each) for each in value.get("findings", ())) if value else ()
        return parsed(cls, value, facts=facts, findings=findings)


@dataclass(frozen=True)
class Link:
    """The result of one host's probe of another, over the chosen interface of the first.

    `trouble`: "" if all went well, else one of

    - "timeout": nothing comes back
    - "refused": an RST or an ICMP rejection
    - "unreachable": no route, or host unreachable
    - "large": small packets pass, large ones do not
    - "broken": the connection broke off
    """

    host: str
    peer: str
    trouble: str = ""


@dataclass(frozen=True)
class Verdict:
    """The head's decision. `go`: true if the launch goes on. `shown`: the head shows the findings to its user."""

    go: bool
    findings: Sequence[Finding]
    reports: Sequence[Report] = ()
    links: Sequence[Link] = ()
    shown: bool = False

    def as_json(self) -> dict[str, Any]:
        """The verdict for the wire: the worst findings, and the reports and links if they are not too large."""
        told: list[dict[str, str]] = []
        size = 0
        for finding in self.findings:
            size += len(json.dumps(vars(finding)))
            if size > _FINDINGS:
                break
            told.append(vars(finding))
        full = {
            "reports": [asdict(report) for report in self.reports],
            "links": [vars(link) for link in self.links],
        }
        return {
            "go": self.go,
            "shown": self.shown,
            "findings": told,
            **(full if len(json.dumps(full)) <= _MAX_BYTES else {}),
        }

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Verdict:
        """Read a verdict from the wire. Raises ValueError or TypeError."""
        return cls(
            message.get("go") is True,
            [_finding(each) for each in message.get("findings", ())],
            [Report.from_json(each) for each in message.get("reports", ())],
            [parsed(Link, each) for each in message.get("links", ())],
            message.get("shown") is True,
        )


@dataclass(frozen=True)
class PreflightResult:
    """The outcome of the preflight on one host.

    `findings`: the findings of all hosts, ordered; only this host's own if the head was not found.
    `reports`, `links`: those of all hosts on the head, and on every host of a small job; else this host's own.
    `seconds`: from the start to the verdict.
    `launch`: the name of this launch; "" if the head was not found, or if this host joins a run under way.
    `joined`: this host has found a run under way at the head, and goes on to join it.
    `shown`: the head has shown the findings, or is about to.
    """

    findings: Sequence[Finding]
    reports: Sequence[Report]
    links: Sequence[Link]
    seconds: float
    launch: str
    joined: bool = False
    shown: bool = False
