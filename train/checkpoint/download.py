"""The newest whole checkpoint, brought from the store to this machine's disk.

Owns which of those in the store are whole and newer than what is here, and what is said of those that are
not. Writes nothing to the store, and nothing here but whole checkpoints. Knows no owner.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from train.checkpoint import disk
from train.checkpoint.disk import BadCheckpointError, parse_marker
from train.console import say
from train.errors import TrainError
from train.layout import MARKER, step_directory
from train.store.places import Store, StoreError, why
from train.store.retries import with_retries

_LARGE = 256 << 20  # bytes; what takes long enough for a line that says so

Contents = dict[int, dict[str, int]]


class Download:
    """One look through what a store has, the newest first."""

    def __init__(self, store: Store, contents: Contents, directory: Path, attempt: str) -> None:
        self._store, self._contents, self._directory = store, contents, directory
        self._attempt = attempt
        # Steps in the store that are not whole.
        self.bad: set[int] = set()

    def newest(self, may_tidy: Callable[[], None]) -> int:
        """The step of the newest whole checkpoint, which is here then; 0 for none.

        Raises TrainError when it cannot be brought, and what `may_tidy` raises.
        """
        here = disk.newest_valid(self._directory, lambda step, why: None)
        newest_here = here.step if here is not None else 0
        for step in sorted(self._contents, reverse=True):
            if step <= newest_here:
                break
            if self._fetch(step, may_tidy):
                say(f"the checkpoint of step {step} comes from {self._store.name}")
                return step
        return newest_here

    def _fetch(self, step: int, may_tidy: Callable[[], None]) -> bool:
        """Whether the checkpoint of `step` is whole, and here now."""
        temporary = self._directory / f".tmp-step-{step:09d}-{self._attempt}-store"
        try:
            files, marker = self._marker(step)
            self._check_space(step, sum(size for size, _ in files.values()))
            may_tidy()
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            for name in files:
                self._download(f"{remote(step)}/{name}", temporary / name)
            (temporary / MARKER).write_bytes(marker)
            disk.read(temporary, step)
            may_tidy()
            disk.publish(temporary, self._directory, step)
        except BadCheckpointError as error:
            self.bad.add(step)
            say(f"the checkpoint of step {step} in {self._store.name} is not whole: {error}")
            return False
        except OSError as error:
            raise TrainError(
                f"the checkpoint of step {step} cannot be brought from {self._store.name} to "
                f"{self._directory}: {why(error)}"
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return True

    def _marker(self, step: int) -> tuple[dict[str, tuple[int, str]], bytes]:
        if MARKER not in self._contents[step]:
            raise BadCheckpointError(f"{MARKER} is missing: it was never written to the end")
        try:
            marker = with_retries(
                self._store.name, lambda: self._store.read(f"{remote(step)}/{MARKER}")
            )
        except FileNotFoundError:
            raise BadCheckpointError(f"{MARKER} is listed and not there") from None
        _, files = parse_marker(marker, step)
        for name, (size, _) in files.items():
            there = self._contents[step].get(name)
            if there is None:
                raise BadCheckpointError(f"{name} is missing")
            if there != size:
                raise BadCheckpointError(f"{name} has {there} bytes instead of {size}: truncated")
        return files, marker

    def _check_space(self, step: int, size: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if size > free:
            raise StoreError(
                f"it has {size >> 20} MiB, and the disk of {self._directory} has {free >> 20} MiB left; "
                "make room, or ask for a larger disk"
            )
        if size > _LARGE:
            say(f"bringing the checkpoint of step {step} from {self._store.name}: {size >> 20} MiB")

    def _download(self, name: str, target: Path) -> None:
        try:
            with_retries(self._store.name, lambda: self._store.get(name, target))
        except FileNotFoundError:
            raise BadCheckpointError(f"{target.name} is listed and not there") from None


def remote(step: int) -> str:
    """What the store calls the checkpoint of `step`."""
    return step_directory(Path(), step).name


def contents(store: Store) -> Contents:
    """The files of every step in the store, with their sizes in bytes. Raises OSError."""
    found: Contents = {}
    for name, size in store.list("step-").items():
        directory, _, file = name.partition("/")
        number = directory.removeprefix("step-")
        if file and number.isdecimal() and remote(int(number)) == directory:
            found.setdefault(int(number), {})[file] = size
    return found
