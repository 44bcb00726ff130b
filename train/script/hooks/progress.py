"""The progress of a user's script: its optimizer steps, its saves, and whether it went on from them.

Owns the record of saves, `<directory>/saves-<rank>.jsonl`: a line for each path, the newest last. Knows no
library: the hooks call it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from train.base.console import say
from train.base.files import replace_file
from train.script.hooks.order import DataPosition, Iteration, order_fault

_MAX_NAMED = 3


class Save(NamedTuple):
    """A save. `by`: the framework, or "". `whole`: true if it was completed. `place`: the position in the data."""

    step: int
    by: str
    whole: bool
    place: DataPosition = DataPosition()


class BeginsAnewError(Exception):
    """The script starts from its first step although an earlier start of it has saved its progress."""


class Progress:
    """The progress of one process.

    `steps_taken`: the optimizer steps of this start, the same on all ranks. `step`: these steps plus the step of the
    save that the script has loaded, as far as this rank knows that step.
    """

    def __init__(
        self,
        record: Path,
        from_scratch: bool = False,
        in_bucket: bool = False,
        head: Path | None = None,
    ) -> None:
        """`record`: the file of this rank's saves. `head`: the file of rank 0's saves, because rank 0 often saves for
        all ranks. `in_bucket`: true if the record is in a bucket, where a file cannot be renamed. `from_scratch`: true
        if the script may start over and overwrite earlier saves."""
        self._record, self._in_bucket = record, in_bucket
        self._may_begin_anew = from_scratch
        self.step = self.steps_taken = 0
        self.saved_at = 0.0
        self._saves = {p: save for p, save in _read_record(record).items() if os.path.exists(p)}
        self._steps_of_head = (
            {p: save.step for p, save in _read_record(head).items()} if head else {}
        )
        self._warned = False
        # Rank 0 moves a directory with an interrupted save away, so this rank's files in it are no progress.
        torn_ones = tuple(p + os.sep for p, save in self._saves.items() if not save.whole)
        self._earlier = {
            path
            for path, save in self._saves.items()
            if save.whole and not path.startswith(torn_ones)
        }
        self._went_on = from_scratch or not self._earlier
        # The path that the script has loaded before its first step: its newest save, else the file loaded last.
        self.loaded_path, self._read_a_save = "", False
        self._iteration: Iteration | None = None
        self._at_save: Iteration | None = None
        self._loaded: Save | None = None

    @property
    def draft_prefix(self) -> str:
        """The prefix of this rank's temporary directories for unfinished saves."""
        return f".{self._record.stem}-"

    def remove_drafts(self) -> None:
        """Delete the temporary directories that killed processes have left next to the saves."""
        for folder in {os.path.dirname(place) for place in self._saves}:
            for draft in Path(folder).glob(f"{self.draft_prefix}*"):
                shutil.rmtree(draft, ignore_errors=True)

    def loaded(self, path: str) -> None:
        """Note that the script has read `path`. A file in a checkpoint's directory counts as the checkpoint."""
        real_path = _real_path(path)
        if not self.steps_taken and not self._read_a_save:
            self.loaded_path = real_path
        for earlier in self._earlier:
            if real_path == earlier or real_path.startswith(earlier + os.sep):
                self._went_on = True
                if not self.steps_taken and self._saves[earlier].step >= self.step:
                    self._loaded = self._saves[earlier]
                    self._goes_on(earlier, self._loaded.step)
        for earlier, step in self._steps_of_head.items():
            if not self.steps_taken and (
                real_path == earlier or real_path.startswith(earlier + os.sep)
            ):
                self._goes_on(earlier, max(self.step, step))

    def _goes_on(self, path: str, step: int) -> None:
        self.loaded_path, self._read_a_save, self.step = path, True, step

    @property
    def newest_of_rank_0(self) -> tuple[str, int]:
        """The newest save of an earlier rank 0 on this disk, and its step; ("", 0) without one, or if the script may
        start over."""
        if self._may_begin_anew:
            return "", 0
        existing = [item for item in self._steps_of_head.items() if os.path.exists(item[0])]
        return existing[-1] if existing else ("", 0)

    @contextlib.contextmanager
    def saving(self, path: str, framework: str = "") -> Iterator[None]:
        """Within this context the script saves several files into the directory `path`. At the end of the context the
        checkpoint is whole. After an exception, it is as whole as before. Raises BeginsAnewError."""
        self.check(path)
        before = self._saves.get(_real_path(path))
        self._record_save(path, "", whole=False)
        try:
            yield
        except Exception:
            if before is not None:  # the library has refused to save over it
                self._saves[_real_path(path)] = before
                self._write_record()
            raise
        self.saved(path, framework)

    def saved(self, path: str, framework: str = "") -> None:
        """Note that the save at `path` is whole. `framework`: the framework that can go on from it."""
        self.saved_at = time.monotonic()
        self._record_save(path, framework, whole=True)

    def renamed(self, source: str, target: str) -> None:
        """Note that the script is about to rename or hard-link `source` to `target`. Both names count from now on,
        because a kill may come before the rename or after it. Raises BeginsAnewError."""
        before, after = _name(source), _name(target)
        names = {*self._saves, *self._steps_of_head}
        inside = [p for p in names if p == before or p.startswith(before + os.sep)]
        for path in inside:
            renamed = after + path[len(before) :]
            if path in self._steps_of_head:
                self._steps_of_head[renamed] = self._steps_of_head[path]
            if path not in self._saves:
                continue
            if path in self._earlier:
                self._earlier.add(renamed)
            else:
                self.check(renamed)
            save = self._saves[path]
            self._saves.pop(renamed, None)
            self._saves[renamed] = save
        if inside:
            self._write_record()

    def stepped(self) -> None:
        """Count an optimizer step. Raises BeginsAnewError before the result of the first step can be saved."""
        self.step += 1
        self.steps_taken += 1
        self.check()

    def order_fault(self) -> str:
        """After the first step, return the fault of the batches with which the script went on; "" if none is known."""
        if self._loaded is None or self._iteration is None:
            return ""
        return order_fault(self._loaded.place, self._iteration.given_batches)

    def note_batch(self, iteration: Iteration) -> None:
        """Note that the script has received the next batch of this iteration."""
        batch = iteration.note_given(before_first_step=not self.steps_taken)
        if self._at_save is iteration:
            self._at_save = None
            newest = next(reversed(self._saves.values()))
            known = newest._replace(place=newest.place._replace(next=batch))
            # The save may have been renamed, or have several names.
            for path in [path for path, save in self._saves.items() if save == newest]:
                self._saves[path] = known
            self._write_record()
        self._iteration = iteration

    def check(self, path: str = "") -> None:
        """Raise BeginsAnewError if the script has not read the saves of an earlier start and is about to lose them.

        That is the case at the first step, and at a save over an earlier one (`path`).
        """
        if not self._went_on and (not path or _real_path(path) in self._earlier):
            newest = [place for place in self._saves if place in self._earlier][-_MAX_NAMED:]
            raise BeginsAnewError(
                f"the script starts over, and an earlier start has saved {', '.join(newest)}; say in "
                "train.resume how it resumes (exists: and args:), let the script load it, or set "
                "train.resume: scratch to train over it"
            )

    def _record_save(self, path: str, framework: str, whole: bool) -> None:
        self._saves.pop(_real_path(path), None)  # the newest is the last one
        # A save in the background (torch.distributed.checkpoint) belongs to an earlier batch, so its place is unknown.
        known = self._iteration if threading.current_thread() is threading.main_thread() else None
        place = known.position() if known else DataPosition()
        self._saves[_real_path(path)] = Save(self.step, framework, whole, place)
        self._at_save = self._iteration if place.batches and not place.next else None
        self._write_record()

    def _write_record(self) -> None:
        rows = ({"path": place, **save._asdict()} for place, save in self._saves.items())
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            if self._in_bucket:
                self._record.write_bytes(data)
            else:
                replace_file(self._record, data)
        except OSError as error:
            if not self._warned:
                say(f"the record of saves cannot be kept ({error.strerror}); the script goes on")
            self._warned = True


def whole_checkpoints(record: Path) -> dict[str, str]:
    """Return the whole checkpoints that still exist, oldest first, each with its framework."""
    saves = _read_record(record).items()
    return {path: save.by for path, save in saves if save.whole and os.path.exists(path)}


def interrupted_saves(record: Path) -> list[str]:
    """Return the checkpoint directories whose save was interrupted."""
    saves = _read_record(record).items()
    return [path for path, save in saves if not save.whole and os.path.isdir(path)]


def _real_path(path: str) -> str:
    return os.path.realpath(path)


def _name(path: str) -> str:
    """Return the name that a rename changes: if `path` is a link, the link itself."""
    folder, name = os.path.split(path.rstrip(os.sep))
    return os.path.join(os.path.realpath(folder), name)


def _read_record(record: Path) -> dict[str, Save]:
    """Return the saves by their paths, oldest first."""
    try:
        rows = [json.loads(line) for line in record.read_text("utf-8", "replace").splitlines()]
        return {
            row["path"]: Save(
                int(row["step"]), row["by"], row["whole"], DataPosition(*row.get("place", ()))
            )
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
