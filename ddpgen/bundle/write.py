"""Artefacts and files → one directory, replaced as a whole or not at all.

Owns bundle.json, the refusal to overwrite files that ddpgen did not write, and the lock that makes renders take
turns. Knows neither specs nor templates: it gets finished texts and paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ddpgen.driver.wording import first_names
from ddpgen.errors import BundleRefusedError, FileTroubleError, SpecUnreadableError

if sys.platform != "win32":  # Windows writes bundles without locks
    import fcntl

_log = logging.getLogger(__name__)
LISTING = "bundle.json"
SCHEMA = 1
# The log of a Slurm job. It lies in the bundle if sbatch was called there, and the next render keeps it.
_LOG = re.compile(r".+-[0-9]+(_[0-9]+)?\.log")


class Item(NamedTuple):
    """One file of a bundle: its content, or a file to copy."""

    path: str
    content: bytes | None = None
    file: Path | None = None
    executable: bool = False


class WriteResult(NamedTuple):
    """The result of write() or preview(). `dropped`: the tiers of the earlier render that this render leaves out.

    `sizes`: the size in bytes of each file. `listing`: the content of bundle.json. Only preview() fills these two.
    """

    files: int
    changed: bool
    dropped: Sequence[str] = ()
    sizes: Mapping[str, int] = MappingProxyType({})
    listing: bytes = b""


def write(
    directory: Path, items: Sequence[Item], facts: Mapping[str, Any], force: bool
) -> WriteResult:
    """Make `directory` hold exactly `items` and bundle.json, whose other keys are `facts`.

    A directory that holds them already stays untouched, so a job that runs from it is not disturbed.
    Raises BundleRefusedError if foreign or edited files would be lost (`force` gives up the edited
    files), and FileTroubleError if the operating system refuses.
    """
    files, sums = _files(items)
    directory = Path(os.path.abspath(directory))
    try:
        _refuse_unusable(directory)
        stage, old = _temporary(directory, "new"), _temporary(directory, "old")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(directory):
            _clean_up(directory, stage, old)
            old_facts = listing(directory)
            if _is_current(directory, files, {**facts, "files": sums}, old_facts):
                return WriteResult(len(files), changed=False)
            _refuse_losses(directory, old_facts, force)
            try:
                _fill(stage, files)
                _replace(directory, stage, old)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        raise _trouble(directory, error) from None
    return WriteResult(len(files), changed=True, dropped=_dropped(facts, old_facts))


def preview(
    directory: Path, items: Sequence[Item], facts: Mapping[str, Any], force: bool
) -> WriteResult:
    """Return the result of write() with these arguments, and write nothing. Raise its errors."""
    files, sums = _files(items)
    directory = Path(os.path.abspath(directory))
    try:
        _refuse_unusable(directory)
        old_facts = listing(directory)
        is_changed = not _is_current(directory, files, {**facts, "files": sums}, old_facts)
        if is_changed:
            _refuse_losses(directory, old_facts, force)
            if directory.exists():
                _refuse_in_use(directory)
    except OSError as error:
        raise _trouble(directory, error) from None
    sizes = {path: len(content) for path, (content, _) in sorted(files.items())}
    dropped = _dropped(facts, old_facts) if is_changed else ()
    return WriteResult(len(files), is_changed, dropped, sizes, files[LISTING][0])


def _files(items: Sequence[Item]) -> tuple[dict[str, tuple[bytes, int]], dict[str, str]]:
    """Return the content and mode of each file, and the hash of each file."""
    files = {item.path: _content(item) for item in items}
    return files, {path: hashlib.sha256(file[0]).hexdigest() for path, file in files.items()}


def _is_current(
    directory: Path,
    files: dict[str, tuple[bytes, int]],
    facts: Mapping[str, Any],
    old_facts: Mapping[str, Any],
) -> bool:
    """Add bundle.json to `files`, and return True if the directory holds all of them."""
    # The same files at another commit, or from other layers, are the same bundle.
    origin = {name: old_facts.get(name) for name in ("source", "layers")}
    files[LISTING] = _listing({**facts, **origin})
    differ = (path for path, file in files.items() if not _holds(directory / path, *file))
    if (first := next(differ, None)) is None:
        return True
    _log.debug(f"write {directory}: {first} is missing there, or differs")
    files[LISTING] = _listing(facts)
    return False


def _dropped(facts: Mapping[str, Any], old_facts: Mapping[str, Any]) -> list[str]:
    targets = facts.get("targets", [])
    return [str(tier) for tier in old_facts.get("targets", []) if tier not in targets]


def listing(directory: Path) -> dict[str, Any]:
    """Return the bundle.json of this directory; {} if it is missing or invalid."""
    file = directory / LISTING
    if not file.is_file():  # opening a pipe would wait for ever
        return {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        facts = json.loads(file.read_bytes())
        kinds = {"files": dict, "spec": dict, "targets": list}
        if isinstance(facts, dict) and all(
            isinstance(facts.get(name, kind()), kind) for name, kind in kinds.items()
        ):
            return facts
    return {}


def read(bundle: Path) -> dict[str, Any]:
    """Return the bundle.json of a bundle, which has files and a spec. Raise SpecUnreadableError."""
    facts = listing(bundle)
    if not {"files", "spec"} <= facts.keys():
        raise unreadable(bundle)
    _log.debug(f"read {bundle / LISTING}")
    return facts


def unreadable(bundle: Path) -> SpecUnreadableError:
    """Return the error for an invalid bundle.json."""
    return SpecUnreadableError(
        f"{bundle / LISTING} cannot be read, or another version wrote it; render the job again"
    )


def _listing(facts: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return bundle.json and its mode. Facts that are None are left out."""
    known = {name: value for name, value in facts.items() if value is not None}
    return f"{json.dumps(known, indent=2, sort_keys=True, ensure_ascii=False)}\n".encode(), 0o644


def _replace(directory: Path, stage: Path, old: Path) -> None:
    """Put the finished `stage` in the place of `directory`."""
    if directory.exists():
        _refuse_in_use(directory)
        for name in _logs(directory):  # linked, not copied, because a job may be writing to them
            os.link(directory / name, stage / name)
        os.rename(directory, old)
    os.rename(stage, directory)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def exclusive_lock(directory: Path) -> Iterator[None]:
    """Wait until no other ddpgen renders into the parent of `directory`, and make others wait meanwhile.

    The lock is on the parent directory itself, so it leaves no file. Without locks (on Windows and some network
    file systems) nobody waits.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(directory.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _temporary(directory: Path, role: str) -> Path:
    """Return the path of a directory that exists only during the replacement. EXCLUDED in code.py lists its name."""
    return directory.with_name(f".{directory.name}.ddpgen-{role}")


def _clean_up(directory: Path, stage: Path, old: Path) -> None:
    """Remove the leftovers of a killed render, and restore the bundle if that render had moved it aside."""
    if old.exists() and not directory.exists():
        os.rename(old, directory)
    for leftover in (old, stage):
        if leftover.exists():
            shutil.rmtree(leftover)


def _is_in_use(directory: Path) -> bool:
    """True if a job that was started from this directory holds its lock."""
    if sys.platform == "win32":
        return False
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(handle)
    return False


def refuse_inside_another(directory: Path) -> None:
    """Raise FileTroubleError if `directory` lies in another bundle, whose next render would remove it."""
    for parent in Path(os.path.abspath(directory)).parents:
        if (parent / LISTING).is_file() and (parent / "train" / "__main__.py").is_file():
            raise FileTroubleError(
                f"{directory}: would lie inside the bundle {parent}, which is replaced when it is "
                "rendered; go to another directory, or name one with -o"
            )


def copied_tree(source: Path, prefix: str) -> Iterator[Item]:
    """Yield the files of a directory as items, without Python's caches."""
    for path in sorted(filter(Path.is_file, source.rglob("*"))):
        relative = path.relative_to(source)
        if "__pycache__" not in relative.parts and path.suffix not in (".pyc", ".pyo"):
            yield Item(f"{prefix}/{relative.as_posix()}", file=path)


def _fill(stage: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    for path, (content, mode) in files.items():
        target = stage / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    for directory in (stage, *filter(Path.is_dir, stage.rglob("*"))):
        directory.chmod(0o755)


def _content(item: Item) -> tuple[bytes, int]:
    """Return the content of the file, and its mode."""
    if item.file is None:
        return item.content or b"", 0o755 if item.executable else 0o644
    try:
        return item.file.read_bytes(), 0o755 if item.file.stat().st_mode & 0o100 else 0o644
    except OSError as error:
        raise FileTroubleError(
            f"{item.file}: cannot be read: {error.strerror}; correct that, or list the file in "
            ".ddpgenignore"
        ) from None


def _holds(path: Path, content: bytes, mode: int) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777 == mode and _read(path) == content
    return False


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing, or a link."""
    with contextlib.suppress(OSError):
        return None if path.is_symlink() else path.read_bytes()
    return None


def _refuse_unusable(directory: Path) -> None:
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


def _refuse_losses(directory: Path, old_facts: Mapping[str, Any], force: bool) -> None:
    present, sums = set(_present(directory)), old_facts.get("files", {})
    foreign = sorted(present - set(sums) - {LISTING, *_logs(directory)})
    if foreign:
        raise BundleRefusedError(
            f"{directory} holds what ddpgen did not write: {first_names(foreign)}. Nothing was changed. "
            "Move it away, or give another place with -o"
        )
    edited = [
        name
        for name in sums
        if name in present
        and hashlib.sha256(_read(directory / name) or b"").hexdigest() != sums[name]
    ]
    if edited and not force:
        raise BundleRefusedError(
            f"{directory} was edited by hand: {first_names(edited)}. Nothing was changed. Take the edits "
            "over into the spec or --templates; --force gives them up"
        )


def _refuse_in_use(directory: Path) -> None:
    if _is_in_use(directory):
        raise BundleRefusedError(
            f"a job runs from {directory} and needs its files to restart. Nothing was changed. Stop "
            "it (Ctrl-C where it was started; or touch the file stop in its checkpoint directory; or, "
            "for hosts, bash hosts/run.sh --stop), or render elsewhere with -o"
        )


def _present(directory: Path) -> Iterator[str]:
    """Yield the path of each file and each empty directory in `directory`, without Python's caches."""
    for root, names, files in os.walk(directory):
        names[:] = [name for name in names if name != "__pycache__"]
        links = [name for name in names if os.path.islink(os.path.join(root, name))]
        for name in (*files, *links):
            yield Path(root, name).relative_to(directory).as_posix()
        if not names and not files and Path(root) != directory:
            yield Path(root).relative_to(directory).as_posix() + "/"


def _logs(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("*.log") if _LOG.fullmatch(path.name)]


def _trouble(directory: Path, error: OSError) -> FileTroubleError:
    reason = error.strerror or str(error)
    remedy = "give another place with -o"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space; the earlier bundle, if any, is untouched"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"{remedy}, or ask for the permission"
    path = os.fsdecode(error.filename or "")
    temporary_prefix = str(_temporary(directory, ""))
    # Our own directories tell a user nothing.
    if path == str(directory) or path.startswith(temporary_prefix):
        path = ""
    return FileTroubleError(f"{directory}: {reason}{f' ({path})' if path else ''}; {remedy}")
