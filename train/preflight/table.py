"""Findings as a table for people. Knows neither terminal nor file: text in, text out.

Names and causes came over the network: whatever a terminal could act upon is made visible. Nothing
but blanks separates the columns, and no word is broken, so that what is copied can be pasted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from train.preflight.finding import ERROR, NOTE, WARNING, Finding

_COLOURS = {ERROR: "\x1b[1;31m", WARNING: "\x1b[33m", NOTE: "\x1b[2m"}
_PLAIN = "\x1b[0m"
_LEAST = 40  # columns
_NARROW = 64  # columns; below, what is wrong stands under its host and not beside it
_BESIDE = 7 + 2 + 7 + 2  # columns before the host: severity and code
_LONGEST_HOST = 16  # columns
_LONGEST_TEXT = 2000  # characters; no honest cause has more
_MOST = 50  # findings; who has more starts at the top anyway


def render(findings: Sequence[Finding], width: int, colour: bool, kept: Path | None = None) -> str:
    """The table, without a newline at its end; empty when there is nothing to tell.

    `width`: columns of the terminal, 40 at least; only a single word may be longer than a line.
    `kept`: where preflight.json lies.
    """
    if not findings:
        return ""
    width = max(_LEAST, width)
    shown = findings[:_MOST]
    hosts = max(_columns(visible(finding.host)) for finding in shown)
    rows = _stacked if width < _NARROW or hosts > _LONGEST_HOST else _side_by_side
    lines = [line for finding in shown for line in rows(finding, width, hosts, colour)]
    if len(findings) > _MOST:
        lines.append(f"and {len(findings) - _MOST} more")
    return "\n".join([*lines, *_more(shown, width, kept)])


def visible(text: str) -> str:
    """The text with everything that does not print as itself written out: `\\x1b`, `\\n`, `\\u202e`."""
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _side_by_side(finding: Finding, width: int, hosts: int, colour: bool) -> Iterator[str]:
    host = visible(finding.host)
    head = f"{_label(finding, colour)}  {host}{' ' * (hosts - _columns(host))}  "
    indent = _BESIDE + hosts + 2
    first, *rest = _wrapped(visible(finding.cause), width - indent)
    yield head + first
    for line in (*rest, *_wrapped(f"remedy: {visible(finding.remedy)}", width - indent)):
        yield " " * indent + line


def _stacked(finding: Finding, width: int, _hosts: int, colour: bool) -> Iterator[str]:
    first, *rest = _wrapped(visible(finding.host), width - _BESIDE)
    yield f"{_label(finding, colour)}  {first}"
    for line in rest:
        yield " " * _BESIDE + line
    for text in (visible(finding.cause), f"remedy: {visible(finding.remedy)}"):
        for line in _wrapped(text, width - 2):
            yield f"  {line}"


def _label(finding: Finding, colour: bool) -> str:
    """Severity and code, in columns of seven: the longest words they have."""
    label = f"{finding.severity:7}  {finding.code:7}"
    return f"{_COLOURS[finding.severity]}{label}{_PLAIN}" if colour else label


def _more(findings: Sequence[Finding], width: int, kept: Path | None) -> Iterator[str]:
    """Where there is more to read, each command on a line of its own, to be copied whole."""
    codes = sorted({finding.code for finding in findings})
    command = "ddpgen explain"
    for line in _wrapped(" ".join(codes), width - len(command) - len("more: ") - 1):
        yield f"more: {command} {line}"
    if kept is not None:
        yield from _wrapped(f"all of it: {visible(str(kept))}", width)


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of `width` columns; a word that is longer has a line to itself."""
    lines: list[str] = []
    for word in text.split():
        if lines and _columns(lines[-1]) + 1 + _columns(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _columns(text: str) -> int:
    """How wide a terminal shows it: East Asian letters take two columns, accents none."""
    marks = ("Mn", "Me")
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in marks for c in text)
