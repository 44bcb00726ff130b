"""Which files of the user's travel in the bundle, and whether the ones the spec names are there.

Owns exclusions, symbolic links and the size limit. Reads directories and opens no file but
.ddpgenignore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddpgen.errors import FileTroubleError
from ddpgen.rules import Conflict
from ddpgen.spec import JobSpec

IGNORE_FILE = ".ddpgenignore"
EXCLUDED = [
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".tox",
    ".nox",
    ".idea",
    ".vscode",
    ".DS_Store",
    "*.pyc",
    "*.pyo",
    "*.egg-info",
]
LIMIT_MIB = 100


class Source(NamedTuple):
    """A file to copy: its path in the bundle, and where it is now."""

    path: str
    file: Path


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """What is wrong with the files the job names; `home` is the spec's directory."""
    sound = True
    for path in job.code:
        for conflict in _check_path(path, home):
            sound = False
            yield conflict
    field = "train.script" if job.train.script else "train.workload"
    wanted = job.train.script or (job.train.workload or "").rpartition(":")[0]
    if not wanted or not job.code or not sound:
        return
    parts = wanted.split("/")
    if wanted.startswith("/") or ".." in parts:
        what = f"{wanted} leads out of code"
        yield Conflict((field,), what, "write its path inside code")
    elif not any(_holds(home / path, wanted) for path in job.code):
        what = f"{wanted} is not in code ({', '.join(job.code)})"
        yield Conflict((field, "code"), what, f"create it, or add the directory of {parts[-1]}")


def _check_path(path: str, home: Path) -> Iterator[Conflict]:
    what = ""
    if path.startswith(("/", "~")):
        what, remedy = f"{path} is not relative", "write a path relative to the spec's directory"
    elif not (home / path).exists():
        what, remedy = f"{path} does not exist beside the spec", "create it, or correct the path"
    elif not (home / path).resolve().is_relative_to(home.resolve()):
        what = f"{path} leads out of the spec's directory"
        remedy = "move the spec above it, so that the job is one folder"
    if what:
        yield Conflict(("code",), what, remedy)


def _holds(root: Path, wanted: str) -> bool:
    return (root / wanted).is_file() if root.is_dir() else root.name == wanted


def gather(job: JobSpec, home: Path, avoid: tuple[Path, ...], limit_mib: int) -> list[Source]:
    """The files of `code`, sorted by their path below code/.

    `avoid` are places never to be copied: the bundle itself, the checkpoints. Raises
    FileTroubleError for what cannot be copied, or is more than the limit.
    """
    found: dict[str, Path] = {}
    walk = _Walk(home.resolve(), tuple(path.resolve() for path in avoid))
    for path in job.code:
        for name, file in walk.files(home / path):
            if name in found:
                message = f"{found[name]} and {file} would both become code/{name}; rename one"
                raise FileTroubleError(message)
            found[name] = file
    size = sum(file.stat().st_size for file in found.values())
    if size > limit_mib << 20:
        largest = sorted(found.items(), key=lambda item: -item[1].stat().st_size)[:3]
        names = ", ".join(f"{name} ({file.stat().st_size >> 20} MiB)" for name, file in largest)
        raise FileTroubleError(
            f"code has {size >> 20} MiB, more than {limit_mib}; the largest are {names}. List what "
            f"the job does not need in {IGNORE_FILE}, or raise --max-code-mib"
        )
    return [Source(f"code/{name}", file) for name, file in sorted(found.items())]


class _Walk:
    """Lists files below a root, following links as long as they stay in the spec's directory."""

    def __init__(self, home: Path, avoid: tuple[Path, ...]):
        self.home, self.avoid = home, avoid

    def files(self, root: Path) -> Iterator[tuple[str, Path]]:
        if not root.is_dir():
            yield root.name, self._within(root)
            return
        patterns = [_pattern(line) for line in (*EXCLUDED, *_ignored(root))]
        yield from self._below(root, "", patterns, (root.resolve(),))

    def _below(
        self, directory: Path, prefix: str, patterns: list[re.Pattern[str]], seen: tuple[Path, ...]
    ) -> Iterator[tuple[str, Path]]:
        for entry in sorted(_scan(directory), key=lambda entry: entry.name):
            name, path = prefix + entry.name, directory / entry.name
            if any(pattern.fullmatch(name) for pattern in patterns):
                continue
            real = self._within(path) if entry.is_symlink() else path
            if entry.is_dir():
                inside = path.resolve()
                if inside in self.avoid or (inside / "bundle.json").is_file():
                    continue
                if inside in seen:
                    raise FileTroubleError(f"{path} is a link to a directory it is in; remove it")
                yield from self._below(path, name + "/", patterns, (*seen, inside))
            elif entry.is_file():
                yield name, real
            else:
                message = f"{path} is neither a file nor a directory; list it in {IGNORE_FILE}"
                raise FileTroubleError(message)

    def _within(self, path: Path) -> Path:
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            target = os.readlink(path) if path.is_symlink() else "nothing"
            message = f"{path} is a link to {target}, which leads nowhere; remove the link"
            raise FileTroubleError(message) from None
        if not real.is_relative_to(self.home):
            message = f"{path} is a link out of the spec's directory, to {real}; copy the file here"
            raise FileTroubleError(f"{message}, or list the link in {IGNORE_FILE}")
        return real


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError as error:
        raise FileTroubleError(f"{directory}: cannot be read: {error.strerror}") from None
    for entry in listed:
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            message = f"{os.fsencode(entry.path)!r}: the name is not UTF-8; rename the file"
            raise FileTroubleError(message) from None
    return listed


def _ignored(root: Path) -> list[str]:
    try:
        lines = (root / IGNORE_FILE).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise FileTroubleError(f"{root / IGNORE_FILE}: cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _pattern(line: str) -> re.Pattern[str]:
    """`data/` or `*.bin` anywhere, `sub/file` from the root; `*` stays within a name, `**` does not."""
    line = line.rstrip("/")
    parts = re.split(r"(\*\*|\*|\?)", line.removeprefix("/"))
    wild = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    body = "".join(wild.get(part, re.escape(part)) for part in parts)
    return re.compile(body if "/" in line else f"(?:.*/)?{body}", re.DOTALL)
