"""How far a user's script has come: its optimizer steps, what it saved, and whether it went on from that.

Owns the record of saves, `<directory>/saves-<rank>.jsonl`: a line when a checkpoint is begun and one when it is
whole. Knows no library; the hooks tell it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

_SHOWN = 3


class BeginsAnewError(Exception):
    """The script starts from its first step although an earlier start of it has saved its progress."""


class Progress:
    """One process' script. `taken`: its optimizer steps since it was started, the same on all ranks; `step`:
    those and the ones before what it has loaded, as far as this rank knows."""

    def __init__(self, record: Path, from_scratch: bool = False) -> None:
        """`record`: the file of this rank's saves. `from_scratch`: it may begin anew over what is there."""
        self._record = record
        self.step = self.taken = 0
        self.loss = float("nan")
        self.saved_at = 0.0
        self._steps = {path: step for path, step, by, whole in _read(record) if whole}
        self._earlier = {path for path in self._steps if os.path.exists(path)}
        self._went_on = from_scratch or not self._earlier

    def loaded(self, path: str) -> None:
        """The script has read `path`; what lies in a checkpoint's directory counts as that."""
        place = _place(path)
        for earlier in self._earlier:
            if place == earlier or place.startswith(earlier + os.sep):
                self._went_on = True
                if not self.taken:
                    self.step = max(self.step, self._steps[earlier])

    def begins_saving(self, path: str) -> None:
        """A checkpoint of several files is about to be written to the directory `path`."""
        self._write(path, "", whole=False)

    def saved(self, path: str, by: str = "") -> None:
        """`path` is whole. `by`: the framework that can go on from it."""
        self._steps[_place(path)] = self.step
        self.saved_at = time.monotonic()
        self._write(path, by, whole=True)

    def stepped(self) -> None:
        """One more optimizer step. Raises BeginsAnewError before the first one's result can be saved."""
        self.step += 1
        self.taken += 1
        self.check()

    def check(self, path: str = "") -> None:
        """Raise BeginsAnewError when what an earlier start saved was not read, and is about to be lost: at
        the first step, or at a save over it."""
        if not self._went_on and (not path or _place(path) in self._earlier):
            newest = sorted(self._earlier, key=lambda place: self._steps[place])[-_SHOWN:]
            raise BeginsAnewError(
                f"the script begins anew, and an earlier start has saved {', '.join(newest)}; say in "
                "train.resume how it goes on (exists: and args:), let the script load it, or set "
                "train.resume: scratch to train over it"
            )

    def _write(self, path: str, by: str, whole: bool) -> None:
        row = {"path": _place(path), "step": self.step, "by": by, "whole": whole}
        with open(self._record, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a kill has cut the last line off
                    file.write(b"\n")
            file.write(json.dumps(row).encode() + b"\n")


def whole(record: Path) -> dict[str, str]:
    """What is there of the checkpoints that were saved whole, oldest first, each with the framework it is of."""
    rows: dict[str, str] = {}
    for path, _, by, is_whole in _read(record):
        rows.pop(path, None)
        if is_whole and os.path.exists(path):
            rows[path] = by
    return rows


def torn(record: Path) -> list[str]:
    """The checkpoint directories whose saving was cut off."""
    last = {path: is_whole for path, _, _, is_whole in _read(record)}
    return [path for path, is_whole in last.items() if not is_whole and os.path.isdir(path)]


def _place(path: str) -> str:
    return os.path.realpath(path)


def _read(record: Path) -> Iterator[tuple[str, int, str, bool]]:
    try:
        lines = record.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
            yield str(row["path"]), int(row["step"]), str(row["by"]), bool(row["whole"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a kill
