"""Reads the requirements files that a job's `requirements` name: what pip would refuse, or would not find."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.spec.fields import Refused
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.sky.requirement import fault, files_of, floats, lines_of

_CONSTRAINT = re.compile(r"-c|--constraint\b")


def check(job: SkyJob, files: Mapping[str, str], home: Path) -> Iterator[Conflict]:
    """Yield a warning for each line at fault, and for the first one of a file without a version.

    `files`: those that travel, with their fields. `home`: the spec's directory.
    """
    for file, field in files.items():
        if file.endswith((".txt", ".in", ".lock")):
            fields = (field, "requirements")
            floating: list[str] = []
            lines = list(lines_of(_content(file, job, home)))
            for number, line in lines:
                if refused := fault(line) or _missing(line, file, files, job, home):
                    problem = f"{file}:{number}: {refused.problem}"
                    yield Conflict(fields, problem, refused.remedy, fatal=False)
                elif floats(line):
                    floating.append(f"{file}:{number}: {line}")
            others = (*job.requirements, *(line for _, line in lines))
            if floating and not any(map(_CONSTRAINT.match, others)):
                problem = (
                    f"{floating[0]} is another version next month, on the machine that takes over"
                )
                remedy = "write NAME==VERSION there, or run ddpgen lock"
                yield Conflict(fields, problem, remedy, fatal=False)


def _content(file: str, job: SkyJob, home: Path) -> str:
    """Return the text of the file, which lies beside the spec or in `code`; "" if it cannot be read."""
    path = home / file
    try:
        path = path if path.is_file() else code.find(job.code, home, file)[file]
        return path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    except (OSError, ValueError, KeyError):
        return ""


def _missing(
    line: str, file: str, files: Mapping[str, str], job: SkyJob, home: Path
) -> Refused | None:
    """Return the fault of a line that has pip read another file, which neither `requirements` nor `code` has."""
    for name in files_of(line):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
        travels = path in files or code.find(job.code, home, path)
        if not travels and not path.startswith(("/", "~")):
            option = "-c" if _CONSTRAINT.match(line) else "-r"
            return Refused(
                f"{path} does not travel with {file}", f"add {option} {path} to requirements"
            )
    return None
