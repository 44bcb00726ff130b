"""The verdict as it goes to all: findings, and in a job of few hosts everything known. Plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from train.preflight.finding import Finding, from_json
from train.preflight.report import Link, Report
from train.preflight.wire import Message

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
    def from_json(cls, message: Message) -> Verdict:
        """From the wire. Raises ValueError or TypeError."""
        return cls(
            message.get("go") is True,
            [from_json(each) for each in message.get("findings", ())],
            [Report.from_json(each) for each in message.get("reports", ())],
            [Link.from_json(each) for each in message.get("links", ())],
        )
