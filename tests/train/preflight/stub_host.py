"""A host of a launch as a process: what its own checks find is given, and so is the judge's opinion.

    python stub_host.py '{"host_name": "b", "node_rank": 1, …}'   (fields of Asked, and those of Stub)

Prints the lines it says, then one line of JSON: the outcome.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.train.preflight.program import settings as settings_of
from train.preflight.checkin import meet
from train.preflight.finding import Finding
from train.preflight.report import Link, PreflightResult, Report
from train.preflight.settings import Settings


@dataclass(frozen=True)
class Stub:
    """`address`: by which the host takes part; `first_address`: that its processes bind. `finds`: codes
    its own checks find, of this `severity`; `takes_s`: how long they take; `hangs`: they never end.
    `judged`: codes the judge finds. `clock_s`: how far its clock is ahead."""

    address: str = ""
    first_address: str = ""
    finds: Sequence[str] = ()
    severity: str = ""
    takes_s: float = 0.0
    judged: Sequence[str] = ()
    clock_s: float = 0.0
    hangs: bool = False

    def examine(self, settings: Settings) -> Report:
        if self.hangs:
            threading.Event().wait()
        time.sleep(self.takes_s)
        found = [
            Finding(
                code,
                settings.host_name,
                f"{settings.host_name} has {code}",
                "cure it",
                self.severity,
            )
            for code in self.finds
        ]
        return Report.from_settings(
            settings, found, address=self.address, first_address=self.first_address
        )

    def judge(self, reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
        found = [Finding(code, "a", f"judged {code}", "cure it") for code in self.judged]
        troubles = [link for link in links if link.trouble]
        return found + [
            Finding("PORT005", each.host, f"{each.host} to {each.peer}: {each.trouble}", "cure it")
            for each in troubles
        ]


def parse(given: dict[str, Any]) -> tuple[Settings, Stub]:
    names = {field.name for field in fields(Stub)}
    stub = Stub(**{name: value for name, value in given.items() if name in names})
    rest = {name: value for name, value in given.items() if name not in names}
    return settings_of({"job": "toy", **rest}), stub


def as_json(outcome: PreflightResult) -> dict[str, Any]:
    return {
        "findings": [vars(finding) for finding in outcome.findings],
        "hosts": [report.host for report in outcome.reports],
        "links": [vars(link) for link in outcome.links],
        "seconds": outcome.seconds,
        "launch": outcome.launch,
        "joined": outcome.joined,
    }


def main() -> int:
    settings, stub = parse(json.loads(sys.argv[1]))
    if stub.clock_s:
        real = time.time
        time.time = lambda: real() + stub.clock_s
    outcome = meet(
        settings,
        lambda: stub.examine(settings),
        stub.judge,
        lambda _: None,
        lambda text: print(text, flush=True),
    )
    print(json.dumps(as_json(outcome)), flush=True)
    return 69 if any(finding.is_error for finding in outcome.findings) else 0


if __name__ == "__main__":
    sys.exit(main())
