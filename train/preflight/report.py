"""What a host says of itself, and of its links, to the head. Plain values that survive JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from train.preflight.finding import Finding, from_json

COUNT, PORT = 2**31 - 1, 65535  # the largest there are
_TEXT = 255  # characters
_MOST = 1e15  # seconds, or bytes a second


def number(value: Any, least: float, most: float) -> float:
    """A number from the wire, where it makes sense. Raises ValueError, also for infinity and NaN."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError("no such number")
    return float(value)


@dataclass(frozen=True)
class Report:
    """One host, after it has looked at itself.

    `facts` holds what compare.py looks at, by name; a fact that could not be had is absent:
    hostname, machine (boot id and network namespace), torch ("2.13.0+cpu"), python ("3.11.7"), cuda,
    nccl, driver, code (digest of train/ and code/), spec (digest of the job), isa ("avx512", "avx2",
    "default", or the architecture), filesystem (a token: equal on hosts that see one directory).
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
    resolved: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()

    def as_json(self) -> dict[str, Any]:
        """The report for preflight.json and for the wire."""
        return {**asdict(self), "findings": [finding.as_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """What as_json() made. Raises ValueError or TypeError for anything else."""
        if not isinstance(value, dict):
            raise ValueError("no report")
        findings = tuple(from_json(each) for each in value.get("findings", ()))
        made = cls(**{**value, "findings": findings})
        texts: tuple[object, ...] = (made.host, made.head, made.nic, made.address, made.resolved)
        numbers = (made.node_rank, made.nodes, made.world_size, made.procs, made.prefix)
        if not all(isinstance(text, str) and len(text) <= _TEXT for text in texts):
            raise ValueError("no report")
        if not all(type(count) is int and abs(count) <= COUNT for count in numbers):
            raise ValueError("no report")
        if not isinstance(made.facts, dict) or not all(
            isinstance(word, str) for pair in made.facts.items() for word in pair
        ):
            raise ValueError("no report")
        return made


@dataclass(frozen=True)
class Link:
    """What one host saw of the way to another, over its own chosen interface.

    `trouble`: "" when all went well; else one of "timeout" (nothing comes back), "refused" (an RST or
    an ICMP rejection), "unreachable" (no route, or host unreachable), "large" (small packets pass,
    large ones do not), "broken" (the connection broke off). `rtt_s`: seconds of a small round trip;
    `rate`: bytes a second of a short burst from `host` to `peer`; both 0.0 when unknown.
    """

    host: str
    peer: str
    trouble: str = ""
    rtt_s: float = 0.0
    rate: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The link for preflight.json and for the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Link:
        """What as_json() made. Raises ValueError or TypeError for anything else."""
        made = cls(**value)
        texts: tuple[object, ...] = (made.host, made.peer, made.trouble)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("no link")
        rtt_s, rate = number(made.rtt_s, 0, _MOST), number(made.rate, 0, _MOST)
        return cls(made.host, made.peer, made.trouble, rtt_s, rate)
