"""The errors of ddpgen, with one exit code for each class. Knows no YAML, no templates, no files.

The codes follow sysexits(3) if it has a code for the case, so that a script can tell a wrong spec
from a full disk. `docs/cli.md` lists them; a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ddpgen.driver.wording import printable

MAX_SHOWN = 50  # lines of findings; with more, a reader starts at the top anyway


class Position(NamedTuple):
    """A position in the spec, or in `file`; lines and columns count from 1, as editors do.

    Line 0: `file` is an option or a variable of the environment.
    """

    line: int = 1
    column: int = 1
    file: str = ""

    def within(self, filename: str) -> str:
        """Return file:line, or the option. `filename`: the spec's name."""
        return f"{self.file or filename}:{self.line}" if self.line else self.file


class Finding(NamedTuple):
    """One fault of a spec: its position, the path of its field, the fault and the remedy."""

    position: Position
    path: str
    problem: str
    remedy: str
    fatal: bool = True

    def line(self, filename: str) -> str:
        line, column, file = self.position
        kind = "" if self.fatal else "warning: "
        path = f"{_short(self.path, 100)}: " if self.path else ""
        head = (
            f"{file or filename}:{line}:{column}: {kind}{path}" if line else f"{file} {path}{kind}"
        )
        return printable(f"{head}{_short(self.problem, 400)}; {_short(self.remedy, 400)}")

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        """Sort the findings of one file together, and those of the spec first."""
        return (self.position.file, *self) < (other[0].file, *other)


class DdpgenError(Exception):
    """An error with a message for the user. Never shown as a traceback."""

    exit_code = 1


class SpecInvalidError(DdpgenError):
    """The spec describes a job that cannot run."""

    exit_code = 65

    def __init__(self, filename: str, findings: Iterable[Finding]):
        self.filename = filename
        self.findings = sorted(findings)
        super().__init__("\n".join(report(filename, self.findings)))


class OptionRefusedError(DdpgenError):
    """An option is missing, or has a value that does not fit the job."""

    exit_code = 2


class SpecUnreadableError(DdpgenError):
    """The named spec or job is missing, is something else, or may not be read."""

    exit_code = 66


class TargetUnavailableError(DdpgenError):
    """The requested tier is unknown or absent from the spec, or a program or machine it needs is not available."""

    exit_code = 69


class BugError(DdpgenError):
    """A fault of ddpgen itself, not of the user."""

    exit_code = 70


class BundleRefusedError(DdpgenError):
    """Writing the bundle would destroy something that ddpgen did not write."""

    exit_code = 73


class FileTroubleError(DdpgenError):
    """The operating system refused to read or write: full disk, permission, a broken link."""

    exit_code = 74


def report(filename: str, findings: Iterable[Finding]) -> list[str]:
    """Return the findings as lines, sorted by position, each once, and at most the first MAX_SHOWN."""
    lines = list(dict.fromkeys(finding.line(filename) for finding in sorted(findings)))
    more = len(lines) - MAX_SHOWN
    return [*lines[:MAX_SHOWN], f"and {more} more"] if more > 0 else lines


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
