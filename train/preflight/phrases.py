"""A host, a list of hosts, and the findings as text for people. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from train.base.console import plain
from train.preflight.finding import ERROR, NOTE, WARNING, Finding

_MAX_NAMES = 6  # names in a sentence
_MOST_FINDINGS = 50  # with more, a user starts at the top anyway
_COLOURS = {ERROR: "\x1b[1;31m", WARNING: "\x1b[33m", NOTE: "\x1b[2m"}
_NO_COLOUR = "\x1b[0m"


class NamedHost(NamedTuple):
    """A host, and the address by which it is known, or "". As text: `b (192.168.7.2)`."""

    name: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.address not in ("", self.name) else self.name


def join_names(names: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`; of more than six, the first five and the count of the others."""
    said = [str(name) for name in names]
    if len(said) > _MAX_NAMES:
        said = [*said[: _MAX_NAMES - 1], f"{len(said) - _MAX_NAMES + 1} more"]
    *front, last = said or ["nobody"]
    return f"{', '.join(front)} and {last}" if front else last


def table(findings: Sequence[Finding], colour: bool, record_path: Path | None = None) -> str:
    """The findings as lines, without a newline at their end. `record_path`: the path of preflight.json, or None.

    Hosts with the same finding in the same words, such as one about a shared directory, stand in one line.
    A line is never wrapped here, so that a command can be copied and a log can be searched. Control characters are
    escaped, because names and causes came over the network.
    """
    return "\n".join(_lines(findings, colour, record_path))


def _lines(findings: Sequence[Finding], colour: bool, record_path: Path | None) -> Iterator[str]:
    rows: dict[Finding, list[str]] = {}
    for finding in findings:
        rows.setdefault(replace(finding, host=""), []).append(finding.host)
    for finding, hosts in islice(rows.items(), _MOST_FINDINGS):
        label = f"{finding.severity:7}  {finding.code:7}"
        if colour:
            label = f"{_COLOURS[finding.severity]}{label}{_NO_COLOUR}"
        yield f"{label}  {plain(join_names(hosts))}  {plain(finding.cause)}"
        yield f"  remedy: {plain(finding.remedy)}"
    if len(rows) > _MOST_FINDINGS:
        yield f"and {len(rows) - _MOST_FINDINGS} more"
    shown = {finding.code for finding in islice(rows, _MOST_FINDINGS)}
    yield f"more: ddpgen explain {' '.join(sorted(shown))}"
    if record_path is not None:
        yield f"all of it: {plain(str(record_path))}"
