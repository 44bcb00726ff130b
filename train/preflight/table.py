"""Findings as lines for people. Knows neither terminal nor file: text in, text out.

A line is as long as it is, for a terminal to wrap: so what is copied can be pasted, and what goes to a
log can be searched. Names and causes came over the network: whatever a terminal could act upon is made
visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from train.preflight.finding import ERROR, NOTE, WARNING, Finding

_COLOURS = {ERROR: "\x1b[1;31m", WARNING: "\x1b[33m", NOTE: "\x1b[2m"}
_PLAIN = "\x1b[0m"
_LONGEST = 2000  # characters; no honest cause has more
_MOST = 50  # findings; who has more starts at the top anyway


def render(findings: Sequence[Finding], colour: bool, kept: Path | None = None) -> str:
    """The lines, without a newline at their end. `kept`: where preflight.json lies."""
    return "\n".join(_lines(findings, colour, kept))


def _lines(findings: Sequence[Finding], colour: bool, kept: Path | None) -> Iterator[str]:
    shown = findings[:_MOST]
    for finding in shown:
        label = f"{finding.severity:7}  {finding.code:7}"
        if colour:
            label = f"{_COLOURS[finding.severity]}{label}{_PLAIN}"
        yield f"{label}  {visible(finding.host)}  {visible(finding.cause)}"
        yield f"  remedy: {visible(finding.remedy)}"
    if len(findings) > _MOST:
        yield f"and {len(findings) - _MOST} more"
    yield f"more: ddpgen explain {' '.join(sorted({finding.code for finding in shown}))}"
    if kept is not None:
        yield f"all of it: {visible(str(kept))}"


def visible(text: str) -> str:
    """The text with everything that does not print as itself written out: `\\x1b`, `\\n`, `\\u202e`."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
