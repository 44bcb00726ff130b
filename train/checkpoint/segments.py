"""metrics.jsonl in the store: one object for the rows of each checkpoint, so that none is rewritten.

Owns the objects `metrics/<first>-<last>.jsonl`, and the putting together of metrics.jsonl on a machine
that has none. What comes after the last checkpoint (an evaluation, the last row) goes into
`metrics/<last + 1>-<last>.jsonl`, which holds no step. Where steps were done again, both are there: the
last row of a step is the one that counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from train.base.files import replace_file
from train.checkpoint.store.places import Store

_NAME = re.compile(r"metrics/(\d{9,})-(\d{9,})\.jsonl")


class Segments:
    """The rows of one metrics.jsonl. Not for two threads at once."""

    def __init__(self, store: Store, file: Path, names: Iterable[str], resumed: int) -> None:
        """`names`: of all segments. `resumed`: the step that the training goes on from."""
        self._store, self._file, self._resumed = store, file, resumed
        found = ((int(m[2]), int(m[1])) for m in map(_NAME.fullmatch, names) if m)
        self._there = sorted(each for each in found if each[0] <= resumed)
        self._last = max((last for last, _ in self._there), default=0)
        self._offset: int | None = None  # of the first row that is in none

    def restore(self) -> None:
        """Add to the file the rows up to the resumed step that it lacks. Raises OSError."""
        here = self._file.read_bytes() if self._file.exists() else b""
        newest = max((row["step"] for _, row in _rows(here)), default=-1)
        if newest >= self._resumed:
            return
        lacking = b"".join(
            line
            for last, first in self._there
            for line, row in _rows(self._store.read(_name(first, last)))
            if newest < row["step"] <= self._resumed  # what comes after it is done again
        )
        if lacking:
            torn = b"\n" if here and not here.endswith(b"\n") else b""
            replace_file(self._file, here + torn + lacking)

    def upload(self, step: int) -> None:
        """Write the rows since the segment before, with the checkpoint of this step. Raises OSError."""
        if step > self._last:
            self._write(step)

    def close(self) -> None:
        """Write what came after the last segment. Raises OSError."""
        self._write(self._last)

    def _write(self, last: int) -> None:
        content = self._file.read_bytes() if self._file.exists() else b""
        if self._offset is None:
            self._offset = _end_of(content, self._last)
        end = content.rfind(b"\n") + 1
        if end > self._offset:
            self._store.write(_name(self._last + 1, last), content[self._offset : end])
            self._last, self._offset = last, end


def _name(first: int, last: int) -> str:
    return f"metrics/{first:09d}-{last:09d}.jsonl"


def _rows(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line that is a row, with what it says."""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # cut off by a crash
        if line.endswith(b"\n"):
            yield line, row


def _end_of(content: bytes, step: int) -> int:
    """Where in the file the last row of a step up to this one ends."""
    ends = [
        line for line, row in _rows(content) if row.get("kind") == "step" and row["step"] <= step
    ]
    return content.rfind(ends[-1]) + len(ends[-1]) if ends else 0
