"""What a host knows when the check is over. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from train.preflight.finding import Finding
from train.preflight.report import Link, Report


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
