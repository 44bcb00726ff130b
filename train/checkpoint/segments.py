"""metrics.jsonl in the store: one object for the rows of each checkpoint, so that none is rewritten.

Owns the objects `metrics/<first>-<last>.jsonl`, which rows go into which, and the putting together of
metrics.jsonl on a machine that has none. What comes after the last checkpoint (an evaluation, the
last word) goes into `metrics/<last + 1>-<last>.jsonl`, which holds no step and is superseded by the
next segment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from train.files import replace_file
from train.store.places import Store

_NAME = re.compile(r"metrics/(\d{9,})-(\d{9,})\.jsonl")


class Segments:
    """The rows of one metrics.jsonl. Not for two threads at once."""

    def __init__(self, store: Store, file: Path, names: Iterable[str], resumed: int) -> None:
        """`names`: of all segments. `resumed`: the step that the training goes on from."""
        self._store, self._file = store, file
        self._resumed = resumed
        self._chain = chain(names, resumed)
        ends = [last for first, last in self._chain if first <= last]
        self._last = ends[-1] if ends else 0
        self._offset: int | None = None

    def restore(self) -> None:
        """Add to the file the rows up to the resumed step that it lacks. Raises OSError."""
        here = self._file.read_bytes() if self._file.exists() else b""
        newest = max((int(row.get("step", 0)) for _, row in _rows(here)), default=-1)
        if newest >= self._resumed:
            return
        lacking = b"".join(
            line
            for segment in self._chain
            for line, row in _rows(self._store.read(_name(*segment)))
            if int(row.get("step", 0)) > newest
        )
        if lacking:
            torn = b"\n" if here and not here.endswith(b"\n") else b""
            replace_file(self._file, here + torn + lacking)

    def upload(self, step: int) -> None:
        """Write the rows since the segment before, up to this step. Raises OSError."""
        rows = self._since()
        end = 0
        size = 0
        for line, row in rows:
            size += len(line)
            if row.get("kind") in ("step", "eval") and int(row["step"]) <= step:
                end = size
        if not end:
            return
        content = b"".join(line for line, _ in rows)[:end]
        self._store.write(_name(self._last + 1, step), content)
        assert self._offset is not None
        self._last, self._offset = step, self._offset + end

    def close(self) -> None:
        """Write what came after the last segment. Raises OSError."""
        content = b"".join(line for line, _ in self._since())
        if content:
            self._store.write(_name(self._last + 1, self._last), content)

    def _since(self) -> list[tuple[bytes, dict[str, Any]]]:
        if self._offset is None:
            here = self._file.read_bytes() if self._file.exists() else b""
            self._offset = _end_of(here, self._last)
        if not self._file.exists():
            return []
        with open(self._file, "rb") as file:
            file.seek(self._offset)
            return list(_rows(file.read()))


def chain(names: Iterable[str], upto: int) -> list[tuple[int, int]]:
    """The segments that give the rows of steps 1 to `upto`, and what was said after that.

    Where a training went back behind a checkpoint that was lost, there are segments of the steps that
    it did twice: those that continue each other are taken, from the end.
    """
    found = [(int(m[1]), int(m[2])) for m in map(_NAME.fullmatch, names) if m]
    taken: list[tuple[int, int]] = []
    needed = upto
    while needed > 0:
        fits = [(last, first) for first, last in found if first <= last <= needed]
        if not fits:
            break
        last, first = max(fits)
        taken.append((first, last))
        needed = first - 1
    taken.reverse()
    return taken + [segment for segment in found if segment == (upto + 1, upto)]


def _name(first: int, last: int) -> str:
    return f"metrics/{first:09d}-{last:09d}.jsonl"


def _rows(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line, with what it says; {} for one that says nothing."""
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            continue
        try:
            row = json.loads(line)
            step = int(row.get("step", 0))
        except (ValueError, TypeError, AttributeError, RecursionError):
            row, step = {}, 0
        yield line, {**row, "step": step}


def _end_of(content: bytes, step: int) -> int:
    """Where in the file the rows of `step` end, as far as a checkpoint of it takes them."""
    if step == 0:
        return 0
    at = end = 0
    beyond: int | None = None
    for line, row in _rows(content):
        if row.get("kind") == "step" and row["step"] > step and beyond is None:
            beyond = at
        at += len(line)
        if row.get("kind") == "step" and row["step"] == step:
            end = at
    return end or (at if beyond is None else beyond)
