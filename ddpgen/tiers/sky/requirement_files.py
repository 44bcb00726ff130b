"""The files that a job's `requirements` have pip read: which ones travel, and what pip would refuse in them."""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.spec.fields import show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.sky.requirement import (
    CONDA_REMEDY,
    are_equal,
    fault,
    files_of,
    floats,
    lines_of,
    pins,
)

_CONSTRAINT = re.compile(r"-c|--constraint\b")
# A line of another kind of file, the kind, and what to do in its place.
_OTHER_FILES = (
    (re.compile(r"(name|channels|dependencies|prefix) *:.*"), "of conda", CONDA_REMEDY),
    (re.compile(r"\[\[?[\w.\"' -]+\]\]?"), "in TOML", "write its dependencies as lines like torch==2.13.0"),
)  # fmt: skip


def travelling(job: SkyJob, home: Path) -> dict[str, str]:
    """Return the files, each with the field that names it, or that names a file which names it.

    `home`: the spec's directory. A path is relative to it, or in `code`.
    """
    fields: dict[str, str] = {}
    for i, requirement in enumerate(job.requirements):
        waiting = files_of(requirement)
        while waiting:
            file = waiting.pop()
            if not file.startswith(("/", "~")) and file not in fields:
                fields[file] = f"requirements[{i}]"
                for _, line in _lines(file, job, home):
                    waiting += files_of(line, posixpath.dirname(file))
    return fields


def check(job: SkyJob, files: Mapping[str, str], home: Path) -> Iterator[Conflict]:
    """Yield a warning for each line at fault, and for the first one of a file without a version.

    `files`: those that travel, with their fields.
    """
    lines = {file: list(_lines(file, job, home)) for file in files}
    texts = [*job.requirements, *(line for each in lines.values() for _, line in each)]
    is_constrained = any(map(_CONSTRAINT.match, texts))
    pinned = {name: (version, "requirements") for _, name, version in pins(job.requirements)}
    for file, field in files.items():
        if kind := _other_kind(line for _, line in lines[file]):
            problem = f"{file} is a file {kind[0]}, and pip reads lines like torch==2.13.0"
            yield Conflict((field, "requirements"), problem, kind[1], False)
            continue
        for number, line in lines[file]:
            refused = fault(line)
            problem, remedy = (refused.problem, refused.remedy) if refused else ("", "")
            for _, name, version in pins([line]):
                other, place = pinned.setdefault(name, (version, file))
                if not are_equal(other, version):
                    problem = f"asks for {name}=={version}, and {place} for {name}=={other}"
                    remedy = "keep one of them"
            if problem:
                yield Conflict(
                    (field, "requirements"), f"{file}:{number}: {problem}", remedy, False
                )
        floating = (
            f"{file}:{n}: {show(line)}"
            for n, line in lines[file]
            if floats(line) and not fault(line)
        )
        if not is_constrained and (first := next(floating, "")):
            problem = f"{first} is another version next month, on the machine that takes over"
            remedy = "write NAME==VERSION there, or run ddpgen lock"
            yield Conflict((field, "requirements"), problem, remedy, False)


def _other_kind(lines: Iterable[str]) -> tuple[str, str] | None:
    """Return the kind of a file that is not of pip, and a remedy; None for one of pip."""
    for line in lines:
        for pattern, kind, remedy in _OTHER_FILES:
            if pattern.fullmatch(line):
                return kind, remedy
    return None


def _lines(file: str, job: SkyJob, home: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of `file`, with its number. Yields nothing if the file is no text.

    The file in `code` takes precedence, because the bundle contains that file.
    """
    try:
        path = code.find(job.code, home, file).get(file, home / file)
        if path.is_file() and not re.search(r"\.(whl|zip|gz|bz2|xz)$", file):
            content = path.read_bytes()
            is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
            yield from lines_of(text.replace("\0", ""))
    except (OSError, ValueError):
        return
