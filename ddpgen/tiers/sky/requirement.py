"""A line of a requirements file, as pip reads it. Pure.

Sources: PEP 508 for a package, and pip's documentation of the format for options and URLs.
"""

from __future__ import annotations

import posixpath
import re

from ddpgen.spec.fields import Refused, Text, show
from ddpgen.spec.yamltree import Scalar

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = rf"( *\[ *({_NAME}( *, *{_NAME})*)? *\])?"
_VERSION = r"(===|[=~!<>]=|[<>]) *[A-Za-z0-9_.*+!-]+"
_VERSIONS = rf"{_VERSION}( *, *{_VERSION})*"
_AFTER = r"( *;[^\0-\x1f']+?)?( +--(hash|config-settings)[= ][^ ']+)*( +#[^\0-\x1f']*)?"
_PACKAGE = rf"{_NAME}{_EXTRAS}( *({_VERSIONS}|\( *{_VERSIONS} *\)))?"
_URL = r"(git|hg|svn|bzr)\+[^ ']+|(https?|file)://?[^ ']+"
_OPTION = (
    r"(-[rcif]|--(requirement|constraint|index-url|extra-index-url|find-links|no-binary|only-binary"
    r"|trusted-host|use-feature)[= ]) *[^ '=][^ ']*|--(no-index|pre|prefer-binary|require-hashes)"
)
_EXACT = re.compile(r"(?<![=~!<>])==(?!=) *([A-Za-z0-9_.+!-]+)(?![A-Za-z0-9_.*+!-])")
_READS_FILE = re.compile(r"(?:-[rc]|--(?:requirement|constraint)[= ]) *(.+)")


class Requirement(Text):
    """One line of a requirements file: a package, a URL or an option."""

    def __init__(self) -> None:
        super().__init__(
            rf"(?i:{_PACKAGE}|{_NAME}{_EXTRAS} *@ *[^ ']+|{_URL}){_AFTER}|{_OPTION}".replace(
                "(?i:", "("
            ),
            "one line of a requirements file, like torch==2.13.0 or -r FILE, without single quotes",
        )

    def parse(self, raw: Scalar) -> str:
        if re.match(r"(python3? -m )?pip3? +install\b", raw.text):
            raise Refused("is a command", "write what it installs alone, like torch==2.13.0")
        if re.fullmatch(rf"{_NAME}{_EXTRAS} *= *[0-9][^ =]*", raw.text):
            problem = f"{show(raw.text)} has one = before its version"
            raise Refused(problem, f"write {re.sub(' *= *', '==', raw.text)}")
        text = super().parse(raw)
        versions = _EXACT.findall(text.partition(";")[0])
        if len(set(versions)) > 1:
            problem = f"{show(text)} asks for {' and '.join(versions[:2])} at once"
            raise Refused(problem, "keep one of them")
        return text


def floats(requirement: str) -> bool:
    """True if the requirement may mean another version next month."""
    return (
        "==" not in requirement
        and "@" not in requirement
        and not re.match(rf"-|{_URL}", requirement)
    )


def file_of(requirement: str) -> str:
    """Return the file that the requirement has pip read; "" if it names none."""
    match = _READS_FILE.fullmatch(requirement)
    return posixpath.normpath(match[1]) if match else ""
