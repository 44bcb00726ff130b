"""Download of the newest whole checkpoint from a store to this machine's disk.

Owns the list of steps in a store, and the check that a step is whole. Writes nothing to the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from train.base.console import say
from train.base.errors import TrainError
from train.checkpoint import disk
from train.checkpoint.disk import BadCheckpointError, parse_marker
from train.checkpoint.store.places import Store, StoreError, describe_error
from train.checkpoint.store.retries import with_retries
from train.run.layout import MARKER, step_directory

_LARGE = 256 << 20  # bytes; a download of this size takes long enough to announce it

# The files of each step, with their sizes in bytes.
Contents = dict[int, dict[str, int]]


def object_name(step: int) -> str:
    """Return the name of the checkpoint of `step` in the store."""
    return step_directory(Path(), step).name


def contents(store: Store) -> Contents:
    """Return the files of every step in the store, with their sizes in bytes. Raises OSError."""
    found: Contents = {}
    for name, size in store.list("step-").items():
        directory, _, file = name.partition("/")
        number = directory.removeprefix("step-")
        if file and number.isdecimal() and object_name(int(number)) == directory:
            found.setdefault(int(number), {})[file] = size
    return found


def bring_newest(
    store: Store, stored: Contents, directory: Path, attempt: str, may_tidy: Callable[[], None]
) -> tuple[int, set[int]]:
    """Download the newest whole checkpoint to `directory`, unless the newest one there is at least as new.

    Returns the step of the newest checkpoint now in `directory`, or 0, and the steps in the store that are not whole.
    Raises TrainError when the download fails, and any error of `may_tidy`.
    """
    local = disk.newest_valid(directory, lambda step, why: None)
    newest_here, bad = local.step if local is not None else 0, set[int]()
    for step in sorted(stored, reverse=True):
        if step <= newest_here:
            break
        temporary = directory / f".tmp-step-{step:09d}-{attempt}-store"
        try:
            files, marker = _read_marker(store, step, stored[step])
            _check_space(store, step, sum(size for size, _ in files.values()), directory)
            may_tidy()
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            for name in files:
                _download(store, f"{object_name(step)}/{name}", temporary / name)
            (temporary / MARKER).write_bytes(marker)
            disk.read(temporary, step)
            may_tidy()
            disk.publish(temporary, directory, step)
        except BadCheckpointError as error:
            bad.add(step)
            say(f"the checkpoint of step {step} in {store.name} is not whole: {error}")
        except OSError as error:
            raise TrainError(
                f"the checkpoint of step {step} cannot be brought from {store.name} to {directory}: {describe_error(error)}"
            ) from None
        else:
            say(f"the checkpoint of step {step} comes from {store.name}")
            return step, bad
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return newest_here, bad


def _read_marker(
    store: Store, step: int, stored: dict[str, int]
) -> tuple[dict[str, tuple[int, str]], bytes]:
    """Return the files that the marker lists, and the marker itself.

    Raises BadCheckpointError if a file is missing or truncated.
    """
    if MARKER not in stored:
        raise BadCheckpointError(f"{MARKER} is missing: it was never written to the end")
    try:
        marker = with_retries(store.name, lambda: store.read(f"{object_name(step)}/{MARKER}"))
    except FileNotFoundError:
        raise BadCheckpointError(f"{MARKER} is listed and not there") from None
    _, files = parse_marker(marker, step)
    for name, (size, _) in files.items():
        if name not in stored:
            raise BadCheckpointError(f"{name} is missing")
        if stored[name] != size:
            raise BadCheckpointError(
                f"{name} has {stored[name]} bytes instead of {size}: truncated"
            )
    return files, marker


def _check_space(store: Store, step: int, size: int, directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if size > free:
        raise StoreError(
            f"it has {size >> 20} MiB, and the disk of {directory} has {free >> 20} MiB left; make room, or "
            "ask for a larger disk"
        )
    if size > _LARGE:
        say(f"bringing the checkpoint of step {step} from {store.name}: {size >> 20} MiB")


def _download(store: Store, name: str, target: Path) -> None:
    try:
        with_retries(store.name, lambda: store.get(name, target))
    except FileNotFoundError:
        raise BadCheckpointError(f"{target.name} is listed and not there") from None
