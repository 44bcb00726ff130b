"""The verdict as it goes to all, and what a host knows when the check is over. Plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.preflight.finding import Finding, from_json
from train.preflight.report import Link, Report

_FINDINGS = 32 * 1024  # bytes for each client: a thousand of them are told at once
_ALL = 128 * 1024


@dataclass(frozen=True)
class Verdict:
    """`go`: whether the launch goes on."""

    go: bool
    findings: Sequence[Finding]
    reports: Sequence[Report] = ()
    links: Sequence[Link] = ()

    def as_json(self) -> dict[str, Any]:
        """For the wire: the worst findings, and the reports and links if they are not too many."""
        told: list[dict[str, str]] = []
        size = 0
        for finding in self.findings:
            size += len(json.dumps(finding.as_json()))
            if size > _FINDINGS:
                break
            told.append(finding.as_json())
        full: dict[str, Any] = {
            "reports": [report.as_json() for report in self.reports[:64]],
            "links": [link.as_json() for link in self.links[:1024]],
        }
        many = len(self.reports) > 64 or len(self.links) > 1024
        if many or len(json.dumps(full)) > _ALL:
            full = {"reports": [], "links": []}
        return {"go": self.go, "findings": told, **full}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Verdict:
        """From the wire. Raises ValueError or TypeError."""
        return cls(
            message.get("go") is True,
            [from_json(each) for each in message.get("findings", ())],
            [Report.from_json(each) for each in message.get("reports", ())],
            [Link.from_json(each) for each in message.get("links", ())],
        )


@dataclass(frozen=True)
class Outcome:
    """`findings`: of all hosts, ordered. `seconds`: from the start to the verdict. `launch`: the token
    of this launch, "" where none was had. `joined`: this host found a run under way at the head, and
    goes on to join it. On the head, and everywhere in a job of few hosts, `reports` and `links` are
    those of all hosts, else this host's own."""

    findings: Sequence[Finding]
    reports: Sequence[Report]
    links: Sequence[Link]
    seconds: float
    launch: str
    joined: bool = False
