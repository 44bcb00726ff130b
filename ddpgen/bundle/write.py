"""Artefacts and files → one directory, replaced as a whole or not at all.

Owns bundle.json, the refusal to overwrite what ddpgen did not write, and the atomic exchange. Knows
neither specs nor templates: it is handed finished texts and paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ddpgen.bundle import exchange
from ddpgen.errors import BundleRefusedError, FileTroubleError

LISTING = "bundle.json"
SCHEMA = 1
# What sbatch writes where it was called, which may be in here: it is the job's, and moves along.
_LOG = re.compile(r".+-[0-9]+(_[0-9]+)?\.log")


class Item(NamedTuple):
    """One file of a bundle: given as content, or as a file to copy."""

    path: str
    content: bytes | None = None
    file: Path | None = None
    executable: bool = False


class Written(NamedTuple):
    """What write() did. `dropped`: the tiers that the bundle was for before, and is not any more."""

    files: int
    changed: bool
    dropped: Sequence[str] = ()


def write(directory: Path, items: Sequence[Item], facts: Mapping[str, Any], force: bool) -> Written:
    """Make `directory` hold exactly `items` and bundle.json, whose other keys are `facts`.

    A directory that holds them already is left alone, so a job running from it is not disturbed.
    Raises BundleRefusedError when foreign or edited files would be lost (`force` gives up the
    edited ones), FileTroubleError when the system refuses.
    """
    try:
        directory = Path(os.path.abspath(directory))
        _refuse_odd_place(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exchange.alone(directory):
            exchange.clean_up(directory)
            with exchange.staging(directory) as stage:
                listing = _fill(stage, items, facts)
                if _same(directory, stage, listing):
                    return Written(len(items) + 1, changed=False)
                _refuse_losses(directory, force)
                _refuse_pulling_the_rug(directory)
                before = _facts(directory).get("targets", [])
                _take_logs_along(directory, stage)
                exchange.put(stage, directory)
    except OSError as error:
        raise _trouble(directory, error) from None
    dropped = [str(tier) for tier in before if tier not in facts.get("targets", [])]
    return Written(len(items) + 1, changed=True, dropped=dropped)


def refuse_inside_another(directory: Path) -> None:
    """Raise FileTroubleError: a bundle is replaced as a whole, with what somebody has put into it."""
    for above in Path(os.path.abspath(directory)).parents:
        if (above / LISTING).is_file() and (above / "train" / "__main__.py").is_file():
            raise FileTroubleError(
                f"{directory}: would lie inside the bundle {above}, which is replaced when it is "
                "rendered; go to another directory, or name one with -o"
            )


def copied_tree(source: Path, prefix: str) -> Iterator[Item]:
    """The training module's files as items, caches left out."""
    for root, names, files in os.walk(source):
        names[:] = sorted(name for name in names if name != "__pycache__")
        below = prefix + root[len(str(source)) :].replace(os.sep, "/")
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                yield Item(f"{below}/{name}", file=Path(root, name))


def _fill(stage: Path, items: Sequence[Item], facts: Mapping[str, Any]) -> bytes:
    sums = {}
    for below in {os.path.dirname(item.path) for item in items}:
        os.makedirs(os.path.join(stage, below), exist_ok=True)
    for item in sorted(items):
        target = os.path.join(stage, item.path)
        executable = item.executable
        if item.file is not None:
            with _opened(item.file) as source:
                executable = bool(os.fstat(source.fileno()).st_mode & 0o100)
                sums[item.path] = _copy(source, target)
        else:
            sums[item.path] = _put(item.content or b"", target)
        os.chmod(target, 0o755 if executable else 0o644)
    text = json.dumps({**facts, "files": sums}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    _put(text.encode(), os.path.join(stage, LISTING))
    os.chmod(os.path.join(stage, LISTING), 0o644)
    for root, names, _ in os.walk(stage):
        for name in names:
            os.chmod(os.path.join(root, name), 0o755)
    return text.encode()


def _put(content: bytes, target: str) -> str:
    with open(target, "wb") as file:
        file.write(content)
    return hashlib.sha256(content).hexdigest()


def _opened(source: Path) -> BinaryIO:
    try:
        return open(source, "rb")
    except OSError as error:
        raise FileTroubleError(
            f"{source}: cannot be read: {error.strerror}; correct that, or list the file in "
            ".ddpgenignore"
        ) from None


def _copy(source: BinaryIO, target: str) -> str:
    digest = hashlib.sha256()
    with open(target, "wb") as writing:
        while chunk := source.read(1 << 16):
            digest.update(chunk)
            writing.write(chunk)
    return digest.hexdigest()


def _same(directory: Path, stage: Path, listing: bytes) -> bool:
    """Whether the directory already holds what is in the stage, whatever else lies beside it."""
    try:
        if (directory / LISTING).read_bytes() != listing:
            return False
    except OSError:
        return False
    names = json.loads(listing)["files"]
    changed = _edited(directory, names)
    modes = (_mode(directory / name) == _mode(stage / name) for name in names)
    return not changed and all(modes)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _refuse_odd_place(directory: Path) -> None:
    if not directory.name:
        raise BundleRefusedError(f"{directory} cannot be a bundle; give another place with -o")
    if Path.cwd().is_relative_to(directory.resolve()):
        raise BundleRefusedError(
            f"{directory} is replaced as a whole, and you are standing in it; go out of it, or "
            "give another place with -o"
        )
    if directory.is_symlink():
        target = os.readlink(directory)
        message = f"{directory} is a symbolic link (to {target}); give -o the directory itself"
        raise BundleRefusedError(message)
    if directory.exists() and not directory.is_dir():
        raise BundleRefusedError(f"{directory} is a file; remove it, or give another place with -o")


def _refuse_losses(directory: Path, force: bool) -> None:
    if not directory.exists():
        return
    present = set(_present(directory))
    listed = _listed(directory)
    foreign = sorted(present - set(listed) - {LISTING, *_logs(directory)})
    if foreign:
        raise BundleRefusedError(
            f"{directory} holds what ddpgen did not write: {_some(foreign)}. Nothing was changed. "
            "Move it away, or give another place with -o"
        )
    edited = _edited(directory, {name: listed[name] for name in present & set(listed)})
    if edited and not force:
        raise BundleRefusedError(
            f"{directory} was edited by hand: {_some(edited)}. Nothing was changed. Take the edits "
            "over into the spec or --templates; --force gives them up"
        )


def _refuse_pulling_the_rug(directory: Path) -> None:
    if directory.exists() and exchange.in_use(directory):
        raise BundleRefusedError(
            f"a job runs from {directory} and needs its files to restart. Nothing was changed. Stop "
            "it (Ctrl-C where it was started; or touch the file stop in its checkpoint directory; or, for "
            "hosts, bash hosts/run.sh --stop), or render elsewhere with -o"
        )


def _present(directory: Path) -> Iterator[str]:
    """Everything below that is not a directory, and every empty one; Python's caches do not count."""
    for root, names, files in os.walk(directory):
        names[:] = [name for name in names if name != "__pycache__"]
        links = [name for name in names if os.path.islink(os.path.join(root, name))]
        for name in (*files, *links):
            yield Path(root, name).relative_to(directory).as_posix()
        if not names and not files and Path(root) != directory:
            yield Path(root).relative_to(directory).as_posix() + "/"


def _listed(directory: Path) -> dict[str, str]:
    """The files that an earlier render has written, with their digests."""
    return {name: str(digest) for name, digest in _facts(directory).get("files", {}).items()}


def _facts(directory: Path) -> dict[str, Any]:
    """The bundle.json of an earlier render; nothing when there is none that makes sense."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        facts = json.loads((directory / LISTING).read_bytes())
        kinds = {"files": dict, "targets": list}
        if isinstance(facts, dict) and all(
            isinstance(facts.get(name, kind()), kind) for name, kind in kinds.items()
        ):
            return facts
    return {}


def _edited(directory: Path, sums: Mapping[str, str]) -> list[str]:
    changed = []
    for name, expected in sorted(sums.items()):
        path = directory / name
        try:
            digest = "" if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            digest = ""
        if digest != expected:
            changed.append(name)
    return changed


def _logs(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if _LOG.fullmatch(name)]
    except OSError:
        return []


def _take_logs_along(directory: Path, stage: Path) -> None:
    """The very files, as a job may be writing to them."""
    for name in _logs(directory):
        os.link(directory / name, stage / name)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _trouble(directory: Path, error: OSError) -> FileTroubleError:
    what = error.strerror or str(error)
    remedy = "give another place with -o"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space; the earlier bundle, if any, is untouched"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"{remedy}, or ask for the permission"
    about = os.fsdecode(error.filename or "")
    ours = str(directory.with_name(f".{directory.name}.new-"))
    if about == str(directory) or about.startswith(ours):  # our own doings say nothing to the user
        about = ""
    return FileTroubleError(f"{directory}: {what}{f' ({about})' if about else ''}; {remedy}")
