"""The user's files that travel in the bundle, and the checks of the files that a spec names.

Owns exclusions, symbolic links and the size limit. Reads directories. Opens only .ddpgenignore, and the
bundle.json by which it recognizes bundles to leave out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpgen.bundle.write import listing
from ddpgen.errors import FileTroubleError
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

DIRECTORY = "code"  # in the bundle
IGNORE_FILE = ".ddpgenignore"
EXCLUDED = [
    ".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "node_modules", "__pycache__", "*.pyc", "*.pyo",
    "*.egg-info", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".idea", ".vscode",
    ".DS_Store",
    "*-[0-9]*.log",  # of Slurm
    "*.launched.json",
    ".*.ddpgen-new", ".*.ddpgen-old",  # directories of a render that still runs, or was killed
]  # fmt: skip
# Files that hold secrets by custom, and are no code. One travels only if `code` names it.
SECRETS = [
    ".env", ".env.*", ".envrc", ".netrc", ".git-credentials", ".pypirc", ".ssh", ".aws", "id_rsa", "id_ecdsa",
    "id_ed25519",
]  # fmt: skip
_STEP = re.compile(r"step-[0-9]{9,}")


class CodeFiles(NamedTuple):
    """Files by their path in the bundle, and the paths of files that stay behind because they may hold secrets."""

    files: dict[str, Path]
    withheld: list[Path]


def check(job: JobSpec, home: Path, extra: Mapping[str, str]) -> Iterator[Conflict]:
    """Yield the faults of the files that the job names.

    `home`: the spec's directory. `extra`: the files that the tier's own fields name, each with its field. A file's
    path is relative to `home` or in `code`.
    """
    faults = [conflict for path in job.code for conflict in _check_path(path, home)]
    yield from faults
    if faults:
        return
    yield from _collisions(job.code, home)
    yield from _check_secrets(job, home)
    if job.train.user_file and job.code:
        yield from _check_file(f"train.{job.train.program_field}", job.train.user_file, job, home)
    for file, field in extra.items():
        fields = (field, field.partition("[")[0])
        if file.startswith("../") or not (home / file).resolve().is_relative_to(home.resolve()):
            problem = f"{file} leads out of the spec's directory"
            yield Conflict(fields, problem, "move it below the spec")
        elif not (home / file).is_file() and file not in find(job.code, home, file):
            problem = f"{file} does not exist beside the spec, nor in code"
            remedy = f"create it, correct the path, or take it out of {IGNORE_FILE}"
            yield Conflict(fields, problem, remedy)


def _collisions(code: Sequence[str], home: Path) -> Iterator[Conflict]:
    """Yield a conflict for the first two files that would have one path in the bundle."""
    files: dict[str, Path] = {}
    for entry in code if len(code) > 1 else ():
        for name, file in find([entry], home, ".").items():
            if name in files and name != IGNORE_FILE:
                problem = f"{files[name]} and {file} would both become code/{name}"
                yield Conflict(("code",), problem, "rename one")
                return
            files[name] = file


def _check_file(field: str, file: str, job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a conflict if the file that `field` names is not in `code`."""
    parts = file.split("/")
    if file.startswith("/") or ".." in parts:
        yield Conflict((field,), f"{file} leads out of code", "write its path inside code")
        return
    if file in find(job.code, home, file):
        return
    problem = f"{file} is not in code ({', '.join(job.code)})"
    remedy = f"create it, or add the directory of {parts[-1]}"
    inner = ("/".join(parts[i:]) for i in range(1, len(parts)))
    meant = (*inner, file.rsplit(maxsplit=1)[-1])  # or the last word of a command
    if inside := next((path for path in meant if path in find(job.code, home, path)), ""):
        remedy = f"write its path inside code: {inside}"
    if any((home / path / file).is_file() for path in job.code):
        problem = f"{file} is there, but is left out of what travels in code"
        remedy = f"take it out of {IGNORE_FILE}, or move it out of a directory that stays behind"
    yield Conflict((field, "code"), problem, remedy)


def _check_secrets(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a conflict for each file of a secret that would travel in `code`."""
    for secret in job.secrets:
        file = Path(os.path.realpath(os.path.expanduser(secret.file)))
        for entry in job.code if secret.file else ():
            root = (home / entry).resolve()
            if not file.is_relative_to(root):
                continue
            name = root.name if file == root else file.relative_to(root).as_posix()
            if name in find([entry], home, name):
                problem = (
                    f"{secret.file} is in code ({entry}), and the bundle would hold {secret.name}"
                )
                remedy = f"move it out of the spec's directory, or list it in {IGNORE_FILE}"
                yield Conflict((f"secrets.{secret.name}", "secrets", "code"), problem, remedy)


def _check_path(path: str, home: Path) -> Iterator[Conflict]:
    problem = ""
    if path.startswith(("/", "~")):
        problem, remedy = f"{path} is not relative", "write a path relative to the spec's directory"
    elif not (home / path).exists():
        problem, remedy = f"{path} does not exist beside the spec", "create it, or correct the path"
    elif not (home / path).resolve().is_relative_to(home.resolve()):
        problem = f"{path} leads out of the spec's directory"
        remedy = "move the spec above it, so that the job is one folder"
    elif not ((home / path).is_file() or (home / path).is_dir()):
        problem, remedy = f"{path} is neither a file nor a directory", "name one that can be copied"
    if problem:
        yield Conflict(("code",), problem, remedy)


def find(code: Iterable[str], home: Path, path: str) -> dict[str, Path]:
    """Return the files of a spec's `code` that lie at or below `path` in the bundle's code/, by their path in code/.

    Skips entries of `code` that check() refuses. Raises FileTroubleError for a file that cannot be copied.
    """
    walk = _Walk(home.resolve(), ())
    roots = [home / entry for entry in code if not any(_check_path(entry, home))]
    files = (item for root in roots for item in walk.files(root, path))
    return {name: file for name, file in files if _below(name, path)}


def gather(
    code: Sequence[str], home: Path, avoid: Sequence[Path], extra: Iterable[str] = ()
) -> CodeFiles:
    """Return the files of a spec's `code`, and those of `extra` that `code` does not hold.

    `avoid`: directories that must not be copied, such as the bundle itself and the checkpoints. Raises
    FileTroubleError for a file that cannot be copied.
    """
    files: dict[str, Path] = {}
    walk = _Walk(home.resolve(), tuple(path.resolve() for path in avoid))
    for path in code:
        for name, file in walk.files(home / path):
            if not name.isascii() and os.fsencode(name) != name.encode("utf-8", "replace"):
                raise FileTroubleError(
                    f"{os.fsencode(file)!r}: the name is not UTF-8; rename the file"
                )
            files[name] = file
    files.update({name: home / name for name in extra if name not in files})
    bundle_files = {f"{DIRECTORY}/{name}": file for name, file in files.items()}
    return CodeFiles(bundle_files, walk.withheld)


def refuse_too_much(files: Mapping[str, Path], limit_mib: int) -> None:
    """Raise FileTroubleError if these files have more than `limit_mib` MiB in all, or if one cannot be read."""
    sizes = {name: _size(file) for name, file in files.items()}
    total = sum(sizes.values())
    if total > limit_mib << 20:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        names = ", ".join(
            f"{name.removeprefix(f'{DIRECTORY}/')} ({size >> 20} MiB)" for name, size in largest
        )
        raise FileTroubleError(
            f"code has {total >> 20} MiB, more than {limit_mib}; the largest are {names}. List "
            f"what the job does not need in {IGNORE_FILE}, or raise --max-code-mib"
        )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        message = f"{file}: cannot be read: {error.strerror}; render again once it is there to stay"
        raise FileTroubleError(message) from None


class _Walk:
    """Lists the files of a directory, and follows links that stay in the spec's directory."""

    def __init__(self, home: Path, avoid: tuple[Path, ...]):
        self.home, self.avoid = home, avoid
        self.withheld: list[Path] = []

    def files(self, root: Path, wanted: str = ".") -> Iterator[tuple[str, Path]]:
        """Yield each file's path below the root, and its path on disk. Fill `withheld`.

        `wanted`: a path below the root. The walk skips directories that do not lead to it.
        """
        if not root.is_dir():
            yield root.name, self._resolve(root)
            return
        patterns = _patterns(root)
        secrets = [_pattern(line) for line in SECRETS]
        for parent, names, files in os.walk(root, onerror=_unreadable, followlinks=True):
            directory = Path(parent)
            for name in sorted((*names, *files)):
                path = directory / name
                relative = path.relative_to(root).as_posix()
                unwanted = not _below(relative, wanted) and not _below(wanted, relative)
                left_out = unwanted or self._left_out(relative, path, patterns)
                if not left_out and any(pattern.fullmatch(relative) for pattern in secrets):
                    left_out = True
                    self.withheld.append(path)
                if left_out:
                    if name in names:
                        names.remove(name)
                    continue
                real = self._resolve(path) if path.is_symlink() else path
                if path.is_file():
                    yield relative, real
                elif not path.is_dir():
                    message = f"{path} is neither a file nor a directory; list it in {IGNORE_FILE}"
                    raise FileTroubleError(message)
                elif path.is_symlink() and directory.resolve().is_relative_to(real):
                    raise FileTroubleError(
                        f"{path} is a symbolic link to a directory it is in; remove it"
                    )

    def _left_out(self, name: str, path: Path, patterns: list[re.Pattern[str]]) -> bool:
        if any(pattern.fullmatch(name) for pattern in patterns):
            return True
        if not path.is_dir():
            return False
        return path.resolve() in self.avoid or _is_bundle(path) or _is_checkpoints(path)

    def _resolve(self, path: Path) -> Path:
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            target = os.readlink(path) if path.is_symlink() else "nothing"
            message = f"{path} is a symbolic link to {target}, which leads nowhere; remove the link"
            raise FileTroubleError(message) from None
        if not real.is_relative_to(self.home):
            message = f"{path} is a symbolic link out of the spec's directory, to {real}; copy the file here"
            raise FileTroubleError(f"{message}, or list the link in {IGNORE_FILE}")
        return real


def _below(path: str, directory: str) -> bool:
    """True if the path lies below the directory, or is the same."""
    return directory == "." or f"{path}/".startswith(f"{directory}/")


def _unreadable(error: OSError) -> None:
    raise FileTroubleError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _is_bundle(directory: Path) -> bool:
    """True if ddpgen wrote this directory. A bundle.json of another program does not count."""
    return {"ddpgen", "schema", "files"} <= listing(directory).keys()


def _is_checkpoints(directory: Path) -> bool:
    """True if a job keeps its checkpoints in this directory."""
    if (directory / "lock").is_file() and (directory / "status").is_file():
        return True
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    steps = (name for name in names if _STEP.fullmatch(name))
    return any((directory / name / "checkpoint.json").is_file() for name in steps)


def _patterns(root: Path) -> list[re.Pattern[str]]:
    """Return the patterns of files to leave out: those of every job, and those of the user's .ddpgenignore."""
    file = root / IGNORE_FILE
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        raise FileTroubleError(f"{file} is no file; remove it")
    try:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise FileTroubleError(f"{file}: cannot be read: {error}") from None
    ignored = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [_pattern(line) for line in (*EXCLUDED, *ignored)]


def _pattern(line: str) -> re.Pattern[str]:
    """Return the pattern of a line of .ddpgenignore. `data/` and `*.bin` match anywhere, `sub/file` from the root.

    `*` matches within a name, `**` across directories.
    """
    line = line.rstrip("/")
    parts = re.split(r"(\*\*|\*|\?)", line.removeprefix("/"))
    wild = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    body = "".join(wild.get(part, re.escape(part)) for part in parts)
    return re.compile(body if "/" in line else f"(?:.*/)?{body}", re.DOTALL)
