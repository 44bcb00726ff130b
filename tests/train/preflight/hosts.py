"""Hosts as they report themselves, healthy unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.preflight.finding import Finding
from train.preflight.report import Link, Report
from train.preflight.settings import Settings

FACTS = {
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "cuda": "12.6",
    "nccl": "2.27.3",
    "code": "c0de" * 16,
    "spec": "5bec" * 16,
    "isa": "avx2",
    "filesystem": "a-token",
}


def settings(**changes: Any) -> Settings:
    known: dict[str, Any] = {
        "job": "gpt",
        "host_name": "a",
        "checkpoint_dir": Path("/ckpt"),
        "port": 29500,
    }
    return Settings(**(known | {"head": "192.168.7.1", "nodes": 3} | changes))


def host(name: str, *, findings: Sequence[Finding] = (), **changes: Any) -> Report:
    """The hosts a, b, c … have the node ranks 0, 1, 2 …; what is no field of a report is a fact."""
    rank = ord(name) - ord("a")
    facts = FACTS | {"machine": f"machine-{name}"}
    fields: dict[str, Any] = {
        "host": name,
        "node_rank": rank,
        "nodes": 3,
        "world_size": 3,
        "procs": 1,
        "head": "192.168.7.1",
        "nic": "eth0",
        "address": f"192.168.7.{rank + 1}",
        "prefix": 24,
        "first_address": "",
        "resolved": "192.168.7.1",
    }
    for key, value in changes.items():
        (fields if key in fields else facts)[key] = value
    fields["first_address"] = fields["first_address"] or fields["address"]
    return Report(**fields, facts={k: v for k, v in facts.items() if v}, findings=findings)


def links(names: str, **troubles: str) -> list[Link]:
    """All ways between the hosts of these one-letter names; `ab="timeout"` for one that is troubled."""
    pairs = [(one, other) for one in names for other in names.replace(one, "")]
    return [Link(one, other, troubles.get(one + other, "")) for one, other in pairs]
