"""The troubleshooting guide, cut into one section for each code, as plain text. Pure.

Owns the form of the guide's sections; their text is docs/troubleshooting.md. Knows neither the terminal nor the
checks that find the faults.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpgen import resources
from ddpgen.spec.fields import Refused, did_you_mean, show
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

GUIDE = "troubleshooting.md"

_HEADING = re.compile(r"^### ([A-Z]+[0-9]{3}): ([^\n]+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)

_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


class Section(NamedTuple):
    """The guide's section about one code: its title, and its text in Markdown."""

    title: str
    text: str


def sections(guide: str) -> Mapping[str, Section]:
    """Return the guide's sections by code, in its order."""
    return {code: Section(title, text.strip()) for code, title, text in _HEADING.findall(guide)}


def check(job: JobSpec) -> Iterator[Conflict]:
    """Yield a conflict for each code in preflight.ignore that the guide does not list."""
    if not job.preflight.ignore:
        return
    known_codes = tuple(sections(resources.document(GUIDE)))
    for ignored in job.preflight.ignore:
        if ignored not in known_codes:
            remedy = did_you_mean(ignored, known_codes, "`ddpgen explain` lists all codes")
            yield Conflict(("preflight.ignore",), f"there is no code {ignored}", remedy)


def listing(guide: str) -> str:
    """Return a line for each code, with its title."""
    return "\n".join(f"{code:8} {section.title}" for code, section in sections(guide).items())


def explained(guide: str, codes: Sequence[str], width: int) -> str:
    """Return the sections of these codes, each once, in lines of `width` columns. Upper and lower case are the same.

    Raises Refused for a code that is not in the guide.
    """
    texts = sections(guide)
    for code in codes:
        if code.upper() not in texts:
            fallback = "`ddpgen explain` lists all codes"
            raise Refused(
                f"there is no code {show(code)}", did_you_mean(code, tuple(texts), fallback)
            )
    wanted_codes = dict.fromkeys(code.upper() for code in codes)
    return "\n\n\n".join(_plain(code, texts[code], width) for code in wanted_codes)


def _plain(code: str, section: Section, width: int) -> str:
    title = f"{code}: {section.title}"
    return "\n\n".join([title, *_paragraphs(section.text, width)])


def _paragraphs(markdown: str, width: int) -> Iterator[str]:
    """Yield prose wrapped and without Markdown's marks, and commands unchanged, indented by four spaces."""
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
