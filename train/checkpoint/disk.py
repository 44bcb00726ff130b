"""Checkpoints on disk, written so that no reader takes half of one for a whole one.

Owns the layout `step-000000200/{model.pt, optimizer.pt, checkpoint.json}`, its writing in two
phases, its verification and retention. Knows nothing of models or ranks: it writes named objects and loads them again.

`checkpoint.json` is written last, with the size and sha256 of every other file. This marker makes a directory a
checkpoint. A rename gives the directory its own name after everything in it is on disk. If a rename is not atomic
(object-store mounts), the order with the marker last is enough.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from train.base import typed
from train.base.files import open_file, read_file, sha256_of
from train.run.layout import MARKER, MOST_MARKER_BYTES, best_step, step_directory, steps_on_disk


class BadCheckpointError(Exception):
    """A directory that looks like a checkpoint but is not a whole one. The message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk: `files` maps file name to size in bytes and sha256."""

    step: int
    meta: dict[str, Any]
    directory: Path
    files: dict[str, tuple[int, str]]

    def load(self, name: str, mapped: bool = False) -> Any:
        """Return one file's content, see `unpickle`. Raises OSError too."""
        return unpickle(self.directory / name, mapped)


def unpickle(source: Path | BinaryIO, mapped: bool = False) -> Any:
    """Load with `weights_only`, so that a checkpoint cannot run code. Tensors are on the CPU.

    `mapped`: if `source` is a path, leave the tensors in the file until somebody reads them.
    """
    torch.serialization.add_safe_globals(list(_named_tuples(tuple)))
    if isinstance(source, Path):
        open_file(source).close()  # refuse a pipe, because torch would wait there for a writer
    mapped = mapped and isinstance(source, Path)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)


def _named_tuples(kind: type) -> Iterator[type]:
    """Yield the named tuples that this process has defined. They are safe to load, because they only hold values."""
    children: list[type] = kind.__subclasses__()
    for child in children:
        if hasattr(child, "_fields"):
            yield child
        yield from _named_tuples(child)


def read(directory: Path, step: int) -> Checkpoint:
    """Verify the checkpoint of `step` in a directory of any name, and return it. Reads all of its bytes.

    Raises BadCheckpointError.
    """
    try:
        marker = read_file(directory / MARKER, MOST_MARKER_BYTES)
    except FileNotFoundError:
        raise BadCheckpointError(f"{MARKER} is missing: the write was never completed") from None
    except OSError as error:
        raise BadCheckpointError(f"{MARKER} cannot be read: {error.strerror}") from None
    meta, listed = parse_marker(marker, step)
    for name, (size, sha256) in listed.items():
        _verify(directory / name, size, sha256)
    return Checkpoint(step, meta, directory, listed)


def parse_marker(content: bytes, step: int) -> tuple[dict[str, Any], dict[str, tuple[int, str]]]:
    """Return the whole marker of `step`, and from it each file's size in bytes and sha256.

    Raises BadCheckpointError.
    """
    try:
        meta = typed.load(content)
        files = {str(n): (int(f["size"]), str(f["sha256"])) for n, f in meta["files"].items()}
        if meta["step"] != step or not files or any("/" in name for name in files):
            raise ValueError
        if any(type(meta[name]) is not dict for name in ("settings", "facts") if name in meta):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise BadCheckpointError(f"{MARKER} is damaged") from None
    return meta, files


def _verify(path: Path, size: int, sha256: str) -> None:
    try:
        with open_file(path) as file:
            found, sum_ = os.fstat(file.fileno()).st_size, sha256_of(file)
    except OSError as error:
        raise BadCheckpointError(f"{path.name} cannot be read: {error.strerror}") from None
    if found != size:
        raise BadCheckpointError(f"{path.name} has {found} bytes instead of {size}: truncated")
    if sum_ != sha256:
        raise BadCheckpointError(
            f"{path.name} does not match its sha256 in {MARKER}: one of the two was changed"
        )


def newest_valid(directory: Path, reject: Callable[[int, str], None]) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, or None. Calls `reject(step, why)` for each newer, bad one."""
    for step in reversed(steps_on_disk(directory)):
        try:
            return read(step_directory(directory, step), step)
        except BadCheckpointError as error:
            reject(step, str(error))
    return None


def set_aside(directory: Path, step: int) -> Path:
    """Rename a bad checkpoint, so that it is kept for inspection but not used. Returns the new path."""
    place = step_directory(directory, step)
    for n in range(1000):
        aside = place.with_name(f"{place.name}.corrupt" + (f"-{n}" if n else ""))
        if not aside.exists():
            os.rename(place, aside)
            return aside
    raise OSError(errno.EEXIST, "a thousand bad checkpoints lie here", str(place))


def write(
    directory: Path,
    step: int,
    objects: Mapping[str, Any],
    meta: Mapping[str, Any],
    writer: str,
    may_publish: Callable[[], None],
) -> None:
    """Write one checkpoint and make it durable.

    `writer` is part of the temporary directory's name, so that two writers never use the same one. `may_publish` is
    called when all is on disk, just before the checkpoint gets its name. The call may wait, or raise an error to
    abandon the checkpoint. Raises OSError (disk full, …) and then leaves nothing behind.
    """
    temporary = directory / f".tmp-step-{step:09d}-{writer}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        files = {name: _write_object(temporary / name, o) for name, o in objects.items()}
        marker = {**meta, "step": step, "files": files}
        with open(temporary / MARKER, "xb") as file:
            file.write(json.dumps(marker, indent=1, sort_keys=True).encode() + b"\n")
            _to_disk(file)
        _sync_directory(temporary)
        may_publish()
        publish(temporary, directory, step)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def publish(temporary: Path, directory: Path, step: int) -> None:
    """Rename the whole checkpoint in `temporary` to its own name. Raises OSError."""
    place = step_directory(directory, step)
    try:
        os.rename(temporary, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Something has this name already. If it is a whole checkpoint of this step, keep it: another attempt of the
        # same run wrote the same bits.
        try:
            read(place, step)
        except BadCheckpointError:
            set_aside(directory, step)
            os.rename(temporary, place)
        else:
            shutil.rmtree(temporary, ignore_errors=True)
    _sync_directory(directory)


class _Hashing:
    """A file that computes the size and sha256 of the bytes written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        written = self._file.write(data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _write_object(path: Path, content: Any) -> dict[str, Any]:
    with open(path, "xb") as file:
        hashing = _Hashing(file)
        try:
            torch.save(content, hashing)  # type: ignore[arg-type]
        except RuntimeError as error:
            # torch's zip writer turns an OSError of the file below it into a RuntimeError.
            cause = error.__context__ if isinstance(error.__context__, OSError) else None
            raise cause or OSError(
                errno.EIO, f"{path.name} could not be written: {error}"
            ) from None
        _to_disk(file)
        return {"size": hashing.size, "sha256": hashing.hexdigest()}


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        # Some mounts cannot sync a directory. The order with the marker last makes the sync unnecessary there.
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def prune(directory: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best one. Call it only after a checkpoint was written
    whole."""
    best = best_step(directory)
    for step in steps_on_disk(directory)[:-keep]:
        if step == best:
            continue
        checkpoint = step_directory(directory, step)
        # Delete the marker first, so that a half-deleted directory does not look like a checkpoint.
        with suppress(OSError):
            (checkpoint / MARKER).unlink()
            shutil.rmtree(checkpoint)


def remove_leftovers(directory: Path, writer: str = "") -> None:
    """Delete the temporary directories of writers that died while writing. Only the lock's holder may call it.

    With `writer`: delete this writer's directory, even while it goes on writing; its write then fails.
    """
    pattern = f".tmp-step-*-{glob.escape(writer)}" if writer else ".tmp-step-*"
    for leftover in directory.glob(pattern):
        if writer:
            # Rename it first, so that the writer adds no more files while these are deleted.
            with suppress(OSError):
                leftover = leftover.rename(f"{leftover}.gone")
        shutil.rmtree(leftover, ignore_errors=True)
