"""metrics.jsonl in the store: one object for the rows of each checkpoint, so that none is rewritten.

Owns the objects `metrics/<first>-<last>.jsonl`, and builds metrics.jsonl from them on a machine that lacks it. Rows
after the last checkpoint (an evaluation, the last row) go into `metrics/<last + 1>-<last>.jsonl`, which holds no step.
If steps were done again, the objects have the rows of both times. The last row of a step counts.
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
    """The rows of one metrics.jsonl in the store. Not safe for two threads at once."""

    def __init__(self, store: Store, file: Path, names: Iterable[str], resumed: int) -> None:
        """`names`: the names of all segments in the store. `resumed`: the step from which the training goes on."""
        self._store, self._file, self._resumed = store, file, resumed
        found = ((int(m[2]), int(m[1])) for m in map(_NAME.fullmatch, names) if m)
        self._in_store = sorted(segment for segment in found if segment[0] <= resumed)
        self._last = max((last for last, _ in self._in_store), default=0)
        self._offset: int | None = None  # of the first row that is in no segment

    def restore(self) -> None:
        """Add to the file the rows up to the resumed step that it lacks. Raises OSError."""
        content = self._file.read_bytes() if self._file.exists() else b""
        newest = max((row["step"] for _, row in _rows(content)), default=-1)
        if newest >= self._resumed:
            return
        lacking = b"".join(
            line
            for last, first in self._in_store
            for line, row in _rows(self._store.read(_name(first, last)))
            if newest < row["step"] <= self._resumed  # later steps are done again
        )
        if lacking:
            line_end = b"\n" if content and not content.endswith(b"\n") else b""
            replace_file(self._file, content + line_end + lacking)

    def upload(self, step: int) -> None:
        """Write the rows since the last segment, up to the checkpoint of this step. Raises OSError."""
        if step > self._last:
            self._write(step)

    def close(self) -> None:
        """Write the rows after the last segment. Raises OSError."""
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
    """Yield each whole line that is a row, and the row."""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, TypeError, KeyError):
            continue  # cut off by a crash
        if line.endswith(b"\n"):
            yield line, row


def _end_of(content: bytes, step: int) -> int:
    """Return the offset after the row of `step`, or after the last row of an earlier step if `step` has no row."""
    ends = [
        line for line, row in _rows(content) if row.get("kind") == "step" and row["step"] <= step
    ]
    return content.rfind(ends[-1]) + len(ends[-1]) if ends else 0
