"""The chain in metrics.jsonl, read back: rows that are not as they were written, and the first row where two runs part.

The definition of a link is in run/chain.py. Needs torch only for the name of a tensor.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.base.files import open_file
from train.run.chain import TENSOR_HASH_BYTES, Digest, digest_in, first_link, link, receipt
from train.run.layout import step_directory, steps_on_disk
from train.run.provenance import key_of
from train.tools.report import history

STEP = '{"kind": "step", "step": '
"""The beginning of a step's line, before its number."""
_STEP = re.compile(rf"{re.escape(STEP)}(\d+), ".encode())
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
        self._keys = [key_of(start) for start in starts]
        self._receipts = {key_of(start): start["receipt"] for start in starts if "receipt" in start}
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
            if self._receipts.pop(key_of(row), expected) != expected:
                yield "it and the rows above do not lead to the receipt in manifest.json"

    def _begin(self, row: history.Row) -> Iterator[str]:
        before, self._key = self._key, key_of(row)
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


def other_weights(first: Mapping[int, Digest], second: Mapping[int, Digest]) -> OtherWeights | None:
    """Return the first digests that differ, of a step that both runs have. The digests are by their steps."""
    step = min((step for step in first if second.get(step, first[step]) != first[step]), default=0)
    if not step:
        return None
    digits = 2 * TENSOR_HASH_BYTES
    one, other = (
        [tensors[n : n + digits] for n in range(0, len(tensors), digits)]
        for tensors in (first[step].tensors, second[step].tensors)
    )
    pairs = enumerate(itertools.zip_longest(one, other))
    return OtherWeights(step, [n for n, (a, b) in pairs if a != b], max(len(one), len(other)))


def _tensor_names(model: Path) -> Sequence[str]:
    try:
        import torch

        from train.checkpoint.disk import unpickle

        state = unpickle(model, mapped=True)
    except Exception:  # noqa: BLE001 - no torch, or whatever torch makes of a damaged file
        return ()
    return [name for name, value in state.items() if isinstance(value, torch.Tensor)]


def first_other_link(first: Path, second: Path) -> int | None:
    """Return the first step whose last rows in two metrics.jsonl have other links. Returns None without such a step,
    and if a step has no link.

    Equal links prove equal losses and digests, so the rows before this step need not be parsed. Another link proves
    nothing: the chains may have begun at other steps.
    """
    try:
        links, others = _links(first), _links(second)
    except OSError:
        return None
    return min(
        (step for step in links if others.get(step, links[step]) != links[step]), default=None
    )


def _links(metrics: Path) -> dict[int, bytes]:
    links = dict[int, bytes]()
    with open_file(metrics) as lines:
        for line in lines:
            if row := _STEP.match(line):
                _, name, links[int(row[1])] = line.rpartition(b'"chain": ')
                if not name:
                    return {}
    return links
