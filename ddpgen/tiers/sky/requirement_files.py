"""The files that a job's `requirements` have pip read: which ones travel, and what pip would refuse in them."""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpgen.bundle import code
from ddpgen.spec.fields import show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.sky.requirement import (
    CONDA_REMEDY,
    absolute,
    are_equal,
    built_with_torch,
    directory,
    fault,
    files_of,
    floats,
    lines_of,
    pins,
)

_CONSTRAINT = re.compile(r"-c|--constraint\b")
# Where conda builds its packages, which pip freeze tells as their place.
_OF_A_BUILD = re.compile(
    r"/croot/|/(opt|tmp)/conda|.*/(feedstock_root|conda-bld)/|/private/tmp/|/tmp/abs_"
)
_TORCH = re.compile(r"2\.([0-9]{1,3})(?![0-9])")
# Package → its versions that are made for one torch 2.N, and the number to take from theirs for N.
_MADE_FOR = {
    "torchvision": (re.compile(r"(0)\.(1[5-9]|[2-9][0-9])(?![0-9])"), 15),
    "torchaudio": (re.compile(r"(2)\.([0-8])(?![0-9])"), 0),
}
# Another place of wheels than PyPI and torch's own.
_OTHER_INDEX = re.compile(
    r"(-[if]|--(index-url|extra-index-url|find-links))\b(?!.*download\.pytorch\.org)"
)
_KEEP_DISKS = {
    "k8s",
    "kubernetes",
    "slurm",
    "ssh",
}  # clouds whose machines may have a user's own files
# A line of another kind of file, the kind, and what to do in its place.
_OTHER_FILES = (
    (re.compile(r"(name|channels|dependencies|prefix) *:.*"), "of conda", CONDA_REMEDY),
    (re.compile(r"\[\[?[\w.\"' -]+\]\]?"), "in TOML", "write its dependencies as lines like torch==2.13.0"),
)  # fmt: skip


class _Place(NamedTuple):
    """A requirement, its field, and the file and the number of its line as the beginning of a message."""

    field: str
    prefix: str
    line: str

    @property
    def fields(self) -> tuple[str, str]:
        return self.field, "requirements"


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
    """Yield the requirements that name a place where nothing is. Yield a warning for each line of the files at fault.

    A line without a version is at fault, and only the first one of a file is told. `files`: those that travel, with
    their fields.
    """
    for i, requirement in enumerate(job.requirements):
        if lost := _lost(requirement, job, home):
            yield Conflict((f"requirements[{i}]", "requirements"), *lost)
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
            problem, remedy = (
                _wrong(line, job, home) or _contradicts(line, file, pinned) or ("", "")
            )
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
    places = [_Place(f"requirements[{i}]", "", line) for i, line in enumerate(job.requirements)]
    for file, field in files.items():
        places += [_Place(field, f"{file}:{number}: ", line) for number, line in lines[file]]
    yield from _pairs(places)
    yield from _built(job, places)


def _pairs(places: Iterable[_Place]) -> Iterator[Conflict]:
    """Yield a warning for each package that was made for another torch than the pinned one."""
    pinned: dict[str, tuple[_Place, str]] = {}
    for place in places:
        for _, name, version in pins([place.line]):
            pinned.setdefault(name, (place, version))
    torch = _TORCH.match(pinned["torch"][1]) if "torch" in pinned else None
    for name, (versions, offset) in _MADE_FOR.items():
        place, version = pinned.get(name, (_Place("", "", ""), ""))
        made = versions.match(version)
        if torch and made and int(made[2]) - offset != int(torch[1]):
            meant = f"torch 2.{int(made[2]) - offset}"
            problem = f"{place.prefix}{name} {version} is made for {meant}, and torch {torch[0]} is pinned"
            fitting = f"{made[1]}.{int(torch[1]) + offset}"
            remedy = "take a version that is made for it"
            if versions.match(fitting):
                remedy = f"write {name}=={fitting}.*"
            yield Conflict(place.fields, problem, remedy, False)


def _built(job: SkyJob, places: Sequence[_Place]) -> Iterator[Conflict]:
    """Yield a warning for each package whose build needs the torch of the job, which pip does not show to a build."""
    if any(name.startswith("PIP_") for name in job.env) or any(
        _OTHER_INDEX.match(place.line) for place in places
    ):
        return
    for place in places:
        if built_with_torch(place.line):
            problem = f"{place.prefix}{show(place.line)} is built with torch, and pip builds it apart from the job's torch"
            remedy = (
                "write the URL of a wheel, or install all by targets.sky.setup, "
                "the last line pip install --no-build-isolation NAME"
            )
            yield Conflict(place.fields, problem, remedy, False)


def _wrong(line: str, job: SkyJob, home: Path) -> tuple[str, str] | None:
    """Return the problem of a line by itself, and the remedy."""
    if refused := fault(line):
        return refused.problem, refused.remedy
    lost = _lost(line, job, home)
    return lost[:2] if lost else None


def _contradicts(
    line: str, file: str, pinned: dict[str, tuple[str, str]]
) -> tuple[str, str] | None:
    """Return the problem of a version that is not the one in `pinned`, and the remedy. Add the version to `pinned`."""
    for _, name, version in pins([line]):
        other, place = pinned.setdefault(name, (version, file))
        if not are_equal(other, version):
            problem = f"asks for {name}=={version}, and {place} for {name}=={other}"
            return problem, "keep one of them"
    return None


def _lost(line: str, job: SkyJob, home: Path) -> tuple[str, str, bool] | None:
    """Return the problem of a line that installs what is on no new machine, the remedy, and True if it is sure."""
    folder = directory(line)
    if folder and not job.code:
        problem = f"{folder} is a directory, and only those in code travel"
        return problem, f"write code: {folder}", True
    place = posixpath.normpath(folder)
    is_made = posixpath.basename(place) in "\n".join(job.setup)
    looks_into = line.startswith(("-f", "--find-links"))  # pip does without such a directory
    if folder and not (is_made or looks_into or code.find(job.code, home, place)):
        named = place in map(posixpath.normpath, job.code)
        remedy = "write its path inside code: ." if named else "correct the path, or add it to code"
        return f"{folder} is not in code ({', '.join(job.code)})", remedy, True
    path = absolute(line)
    is_new = not (job.setup or job.image or job.extra or job.clouds & _KEEP_DISKS)
    if _OF_A_BUILD.match(path) or (path and is_new):
        remedy = "write NAME==VERSION, or the path of a directory in code"
        return f"{path} is looked for on the new machine", remedy, False
    return None


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
