"""The troubleshooting guide, cut into what it says of each code, as plain text.

Owns the shape of the guide's sections; what they say is in docs/troubleshooting.md. Knows neither the
terminal nor what finds the faults. Pure.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpgen.spec.fields import Refused, did_you_mean, show

GUIDE = "troubleshooting.md"

_HEADING = re.compile(r"^### ([A-Z]+[0-9]{3}): ([^\n]+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)

_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


class Section(NamedTuple):
    """What the guide says of one code: its title, and its text in Markdown."""

    title: str
    text: str


def sections(guide: str) -> Mapping[str, Section]:
    """All of the guide by code, in its order."""
    return {code: Section(title, text.strip()) for code, title, text in _HEADING.findall(guide)}


def listing(guide: str) -> str:
    """Every code with its title, a line each."""
    return "\n".join(f"{code:8} {section.title}" for code, section in sections(guide).items())


def explained(guide: str, codes: Sequence[str], width: int) -> str:
    """The sections of these codes in lines of `width` columns; codes in any case, each told once.

    Raises Refused for one that is not in the guide.
    """
    known = sections(guide)
    for code in codes:
        if code.upper() not in known:
            more = "`ddpgen explain` lists all codes"
            raise Refused(f"there is no code {show(code)}", did_you_mean(code, tuple(known), more))
    wanted = dict.fromkeys(code.upper() for code in codes)
    return "\n\n\n".join(_plain(code, known[code], width) for code in wanted)


def _plain(code: str, section: Section, width: int) -> str:
    title = f"{code}: {section.title}"
    return "\n\n".join([title, *_paragraphs(section.text, width)])


def _paragraphs(markdown: str, width: int) -> Iterator[str]:
    """Prose wrapped and without its marks, commands as they are behind four blanks."""
    end = 0
    for fenced in _FENCED.finditer(markdown):
        yield from _prose(markdown[end : fenced.start()], width)
        yield textwrap.indent(fenced[1].rstrip("\n"), "    ")
        end = fenced.end()
    yield from _prose(markdown[end:], width)


def _prose(markdown: str, width: int) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", markdown.strip()):
        if text := _LINK.sub(r"\1 (\2)", paragraph).replace("**", ""):
            yield textwrap.fill(
                " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
            )
