"""The chain in metrics.jsonl, read back: rows that are not as they were written, and the first row where two runs part.

Owns both searches. The definition of a link is in run/chain.py. Needs torch only for the name of a tensor.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from train.base.files import open_file
from train.run.chain import TENSOR_HASH_BYTES, Digest, digest_in, first_link, link, receipt
from train.run.layout import step_directory, steps_on_disk
from train.tools.report import history
from train.tools.verify.compare import first_loss_difference

_TAILS = (
    1 << 12,
    1 << 16,
    1 << 20,
)  # bytes of the end of a file that are searched for its last step
_ENDS = ("done", "stopped")


class Fault(NamedTuple):
    """A row that is not as it was written, or that stands in another place."""

    line: int
    step: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line} of metrics.jsonl, step {self.step}: {self.what}"


def faults(lines: Iterable[str], starts: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Yield the faults in the chain of these rows. `starts`: the manifest's. Rows without a chain are passed over.

    After a fault the chain goes on from the link in its row, so a changed loss is one fault.
    """
    chain, number, unreadable = _Chain(starts), 0, ""
    for number, line in enumerate(lines, 1):
        if not (rows := list(history.read([line]))):  # no fault if a crash has cut the line off
            unreadable = f"; line {number} cannot be read"
        for row in rows:
            for what in chain.faults_of(row):
                yield Fault(number, row["step"], f"{what}{unreadable}")
            unreadable = ""
    if chain.lacks_its_end():
        yield Fault(number, chain.step, "the file ends here, before the end in manifest.json")


class _Chain:
    """The chain up to a row. `last`: the newest link, "" in a start without a chain; `step`: its step."""

    last, step = "", 0
    _key: tuple[Any, Any] = (None, None)

    def __init__(self, starts: Sequence[Mapping[str, Any]]) -> None:
        self._keys = [_key(start) for start in starts]
        self._receipts = {_key(start): start["receipt"] for start in starts if "receipt" in start}
        self._links: dict[int, str] = {}

    def lacks_its_end(self) -> bool:
        """True if the newest start has an end in the manifest, and its rows do not reach it."""
        return any(key in self._receipts for key in (self._key, *self._keys[-1:]))

    def faults_of(self, row: history.Row) -> Iterator[str]:
        """Go on to this row, and yield its faults in words."""
        if row["kind"] == "start":
            yield from self._begin(row)
        elif row["kind"] == "step" and self.last:
            yield from self._add(row)
        elif row["kind"] in _ENDS:
            expected = receipt(self.last, self.step, digest_in(row))
            if self._receipts.pop(_key(row), expected) != expected:
                yield "it and the rows above do not lead to the receipt in manifest.json"

    def _begin(self, row: history.Row) -> Iterator[str]:
        before, self._key = self._key, _key(row)
        self.last, self.step = str(row.get("chain", "")), row["step"]
        if before in self._receipts:
            yield "the end of the start above is missing"
        if self.last in ("", first_link(self.step)):
            return  # no chain, or one that begins here
        # Between two starts in a file, the manifest may have another one, whose rows are on another machine.
        follows = (before, self._key) in zip(self._keys, self._keys[1:], strict=False)
        if self._links.get(self.step, self.last) != self.last:
            yield "this start does not go on from the chain above"
        elif self.step not in self._links and follows:
            yield "rows above this start are missing, up to its step"

    def _add(self, row: history.Row) -> Iterator[str]:
        step, written = row["step"], str(row.get("chain"))
        if step != self.step + 1:
            yield f"it follows step {self.step}: rows are missing, or stand in another order"
        elif written != link(self.last, step, row.get("loss"), digest_in(row)):
            yield "its loss, its digest or its link in the chain was changed"
        self.last, self.step = written, step
        self._links[step] = written


def _key(start: Mapping[str, Any]) -> tuple[Any, Any]:
    return start.get("attempt"), start.get("generation")


class OtherWeights(NamedTuple):
    """The first digests that differ, and the positions of the tensors that differ in them."""

    step: int
    tensors: Sequence[int]
    total: int

    def name(self, *directories: Path) -> str:
        """Name the first tensor, by a checkpoint in these directories if there is one and torch is installed."""
        if not self.tensors:
            return "no tensor, so a digest was changed"
        first, more = f"tensor {self.tensors[0] + 1} of {self.total}", len(self.tensors) - 1
        for directory in directories:
            for step in steps_on_disk(directory)[-1:]:
                names = _tensor_names(step_directory(directory, step) / "model.pt")
                if len(names) == self.total:
                    first = names[self.tensors[0]]
        return f"{first}{f' (and {more} more)' if more else ''}"


def other_weights(first: Digest | None, second: Digest | None) -> OtherWeights | None:
    """Compare the digests of a step in two runs."""
    if first is None or second is None or first == second:
        return None
    digits = 2 * TENSOR_HASH_BYTES
    one, other = (
        [tensors[n : n + digits] for n in range(0, len(tensors), digits)]
        for tensors in (first.tensors, second.tensors)
    )
    pairs = enumerate(itertools.zip_longest(one, other))
    return OtherWeights(first.step, [n for n, (a, b) in pairs if a != b], max(len(one), len(other)))


def _tensor_names(model: Path) -> Sequence[str]:
    try:
        import torch

        from train.checkpoint.disk import unpickle

        state = unpickle(model, mapped=True)
    except Exception:  # noqa: BLE001 - no torch, or whatever torch makes of a damaged file
        return ()
    return [name for name, value in state.items() if isinstance(value, torch.Tensor)]


class Line(NamedTuple):
    """A row, and the bytes of the file that hold it."""

    begin: int
    end: int
    row: history.Row

    @property
    def step(self) -> int:
        return int(self.row["step"])


class StepRows:
    """The step rows with a chain in a metrics.jsonl, by their steps. Reads only the lines that a search looks at.

    After a restart, steps come again with the same bits, so it does not matter which row of a step is found. All methods
    raise LookupError if there is no such row.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size

    def first(self) -> Line:
        return next(filter(_is_link, self._lines(0)), None) or _nothing()

    def last(self) -> Line:
        for tail in _TAILS:
            rows = list(filter(_is_link, self._lines(max(0, self._size - tail))))
            if rows:
                return rows[-1]
        return _nothing()

    def find(self, step: int, low: Line, high: Line) -> Line:
        """Find a row of `step` between the rows `low` and `high`, or one of these.

        Rows have nearly the same length, so guess where the row would be if all had. Every other guess halves what is
        left, for files that are otherwise.
        """
        if step in (low.step, high.step):
            return low if step == low.step else high
        begin, end, halve = low.end, high.begin, False
        while begin < end:
            part = 0.5 if halve else (step - low.step - 1.5) / (high.step - low.step)
            guess, halve = begin + int((end - begin) * max(0.0, part)), not halve
            line = next(filter(_is_link, self._lines(guess)), None)
            if line is None or line.begin >= end:
                end = guess
            elif line.step == step:
                return line
            elif line.step < step:
                begin, low = line.end, line
            else:
                end, high = guess, line
        return _nothing()

    def _lines(self, offset: int) -> Iterator[Line]:
        """Yield the whole rows that begin at `offset` or later."""
        self._file.seek(max(0, offset - 1))
        end = offset - 1 + len(self._file.readline()) if offset else 0
        while content := self._file.readline():
            begin, end = end, end + len(content)
            for row in history.read([content.decode("utf-8", "replace")]):
                yield Line(begin, end, row)


def _is_link(line: Line) -> bool:
    return line.row["kind"] == "step" and isinstance(line.row.get("chain"), str)


def _nothing() -> NoReturn:
    raise LookupError


class Parting(NamedTuple):
    """The first step whose link differs in two runs: its loss in each, or the digests in these links if they differ."""

    losses: Sequence[Mapping[int, float]]
    weights: OtherWeights | None


def parting(first: Path, second: Path) -> Parting | None:
    """Find where two metrics.jsonl part, by their chains, and read few of their rows.

    Returns None if the chains do not say it. Then all rows have to be compared.
    """
    try:
        with open_file(first) as one, open_file(second) as other:
            return _parting(StepRows(one), StepRows(other))
    except (OSError, LookupError):
        return None


def _parting(*runs: StepRows) -> Parting | None:
    lows, highs = [run.first() for run in runs], [run.last() for run in runs]

    def rows_of(step: int) -> list[Line]:
        return [run.find(step, *ends) for run, *ends in zip(runs, lows, highs, strict=True)]

    begin = rows_of(max(line.step for line in lows))
    highs = rows_of(min(line.step for line in highs))
    lows = begin
    if not _same(lows) or _same(highs):
        return None
    while (low := lows[0].step) < (high := highs[0].step) - 1:
        middle = rows_of((low + high) // 2)
        lows, highs = (middle, highs) if _same(middle) else (lows, middle)
    losses = [
        {line.step: value} for line in highs if (value := history.loss_of(line.row)) is not None
    ]
    if first_loss_difference(*losses) is not None:
        return Parting(losses, None)
    weights = other_weights(*(digest_in(line.row) for line in highs))
    return Parting(losses, weights) if weights is not None else None


def _same(rows: Sequence[Line]) -> bool:
    return len({line.row["chain"] for line in rows}) == 1
