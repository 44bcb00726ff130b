"""How far a user's script has come: its optimizer steps, what it saved, and whether it went on from that.

Owns the record of saves, `<directory>/saves-<rank>.jsonl`: a line for each path, the newest last. Knows no
library; the hooks tell it.
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
from train.script.hooks.order import DataPosition, Iteration, fault

_SHOWN = 3


class Save(NamedTuple):
    """A save: at which step, by which framework, whether it came to its end, and where in the data."""

    step: int
    by: str
    whole: bool
    place: DataPosition = DataPosition()


class BeginsAnewError(Exception):
    """The script starts from its first step although an earlier start of it has saved its progress."""


class Progress:
    """One process' script. `taken`: its optimizer steps since it was started, the same on all ranks; `step`:
    those and the ones before what it has loaded, as far as this rank knows."""

    def __init__(
        self,
        record: Path,
        from_scratch: bool = False,
        in_bucket: bool = False,
        head: Path | None = None,
    ) -> None:
        """`record`: the file of this rank's saves; `head`: that of rank 0, which often saves for all; `in_bucket`:
        where a file cannot be renamed. `from_scratch`: it may begin anew over what is there."""
        self._record, self._in_bucket = record, in_bucket
        self._may_begin_anew = from_scratch
        self.step = self.taken = 0
        self.saved_at = 0.0
        self._saves = {p: save for p, save in _read(record).items() if os.path.exists(p)}
        self._steps_of_head = {p: save.step for p, save in _read(head).items()} if head else {}
        self._told = False
        # Rank 0 moves a directory whose saving was cut off away, and this rank's files in it are no progress.
        torn_ones = tuple(p + os.sep for p, save in self._saves.items() if not save.whole)
        self._earlier = {
            place
            for place, save in self._saves.items()
            if save.whole and not place.startswith(torn_ones)
        }
        self._went_on = from_scratch or not self._earlier
        # The file that the script has loaded before its first step: the newest save, else the last file.
        self.read, self._read_a_save = "", False
        self._iteration: Iteration | None = None
        self._at_save: Iteration | None = None
        self._loaded: Save | None = None

    @property
    def draft_prefix(self) -> str:
        """How the names of directories begin in which this rank writes what is not whole yet."""
        return f".{self._record.stem}-"

    def remove_drafts(self) -> None:
        """Those that kills have left beside what was saved."""
        for folder in {os.path.dirname(place) for place in self._saves}:
            for draft in Path(folder).glob(f"{self.draft_prefix}*"):
                shutil.rmtree(draft, ignore_errors=True)

    def loaded(self, path: str) -> None:
        """The script has read `path`; what lies in a checkpoint's directory counts as that."""
        place = _place(path)
        if not self.taken and not self._read_a_save:
            self.read = place
        for earlier in self._earlier:
            if place == earlier or place.startswith(earlier + os.sep):
                self._went_on = True
                if not self.taken and self._saves[earlier].step >= self.step:
                    self._loaded = self._saves[earlier]
                    self._goes_on(earlier, self._loaded.step)
        for earlier, step in self._steps_of_head.items():
            if not self.taken and (place == earlier or place.startswith(earlier + os.sep)):
                self._goes_on(earlier, max(self.step, step))

    def _goes_on(self, path: str, step: int) -> None:
        self.read, self._read_a_save, self.step = path, True, step

    @property
    def kept(self) -> tuple[str, int]:
        """The newest save of an earlier rank 0 on this disk, and its step; ("", 0) without one, or if the script may
        start over."""
        if self._may_begin_anew:
            return "", 0
        there = [item for item in self._steps_of_head.items() if os.path.exists(item[0])]
        return there[-1] if there else ("", 0)

    @contextlib.contextmanager
    def saving(self, path: str, by: str = "") -> Iterator[None]:
        """A checkpoint of several files, in the directory `path`: whole at the end of this. Raises BeginsAnewError."""
        self.check(path)
        before = self._saves.get(_place(path))
        self._write(path, "", whole=False)
        try:
            yield
        except Exception:  # what is there is what was there before
            self._saves.pop(_place(path), None)
            if before is not None:
                self._saves[_place(path)] = before
            self._keep()
            raise
        self.saved(path, by)

    def saved(self, path: str, by: str = "") -> None:
        """`path` is whole. `by`: the framework that can go on from it."""
        self.saved_at = time.monotonic()
        self._write(path, by, whole=True)

    def renamed(self, source: str, target: str) -> None:
        """The script is about to give `source` the name `target`, or a second name. Both count from here on: the kill may
        come before the rename or after it. Raises BeginsAnewError."""
        before, after = _name(source), _name(target)
        names = {*self._saves, *self._steps_of_head}
        inside = [p for p in names if p == before or p.startswith(before + os.sep)]
        for place in inside:
            renamed = after + place[len(before) :]
            if place in self._steps_of_head:
                self._steps_of_head[renamed] = self._steps_of_head[place]
            if place not in self._saves:
                continue
            if place in self._earlier:
                self._earlier.add(renamed)
            else:
                self.check(renamed)
            save = self._saves[place]
            self._saves.pop(renamed, None)
            self._saves[renamed] = save
        if inside:
            self._keep()

    def stepped(self) -> None:
        """One more optimizer step. Raises BeginsAnewError before the first one's result can be saved."""
        self.step += 1
        self.taken += 1
        self.check()

    def order_fault(self) -> str:
        """After the first step: what is wrong with the batch that it went on with; "" if nothing is known to be."""
        if self._loaded is None or self._iteration is None:
            return ""
        return fault(self._loaded.place, self._iteration.given)

    def gave(self, iteration: Iteration) -> None:
        """The script has got the next batch of this iteration."""
        batch = iteration.gave(before_first_step=not self.taken)
        if self._at_save is iteration:
            self._at_save = None
            newest = next(reversed(self._saves.values()))
            known = newest._replace(place=newest.place._replace(next=batch))
            # It may have been renamed, or have several names.
            for path in [path for path, save in self._saves.items() if save == newest]:
                self._saves[path] = known
            self._keep()
        self._iteration = iteration

    def check(self, path: str = "") -> None:
        """Raise BeginsAnewError when what an earlier start saved was not read, and is about to be lost: at
        the first step, or at a save over it."""
        if not self._went_on and (not path or _place(path) in self._earlier):
            newest = [place for place in self._saves if place in self._earlier][-_SHOWN:]
            raise BeginsAnewError(
                f"the script begins anew, and an earlier start has saved {', '.join(newest)}; say in "
                "train.resume how it goes on (exists: and args:), let the script load it, or set "
                "train.resume: scratch to train over it"
            )

    def _write(self, path: str, by: str, whole: bool) -> None:
        self._saves.pop(_place(path), None)  # the newest is the last one
        # One that is written in the background (torch.distributed.checkpoint) is of some batches ago.
        known = self._iteration if threading.current_thread() is threading.main_thread() else None
        place = known.place() if known else DataPosition()
        self._saves[_place(path)] = Save(self.step, by, whole, place)
        self._at_save = self._iteration if place.batches and not place.next else None
        self._keep()

    def _keep(self) -> None:
        rows = ({"path": place, **save._asdict()} for place, save in self._saves.items())
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            if self._in_bucket:
                self._record.write_bytes(data)
            else:
                replace_file(self._record, data)
        except OSError as error:
            if not self._told:
                say(f"the record of saves cannot be kept ({error.strerror}); the script goes on")
            self._told = True


def whole(record: Path) -> dict[str, str]:
    """What is there of the checkpoints that were saved whole, oldest first, each with the framework it is of."""
    saves = _read(record).items()
    return {place: save.by for place, save in saves if save.whole and os.path.exists(place)}


def torn(record: Path) -> list[str]:
    """The checkpoint directories whose saving was cut off."""
    saves = _read(record).items()
    return [place for place, save in saves if not save.whole and os.path.isdir(place)]


def _place(path: str) -> str:
    return os.path.realpath(path)


def _name(path: str) -> str:
    """The name that a rename changes. If `path` is a link, that is the link itself."""
    folder, name = os.path.split(path.rstrip(os.sep))
    return os.path.join(os.path.realpath(folder), name)


def _read(record: Path) -> dict[str, Save]:
    """The saves by their paths, oldest first."""
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
