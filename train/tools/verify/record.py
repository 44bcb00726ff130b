"""The record of a run's steps: their losses, the starts that computed them, the kept checkpoints.

Owns the choice of steps for one replay: all must have the same settings, code and training module. Needs no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from train.base.errors import EXIT_USAGE, Refusal, TrainError
from train.base.files import open_text
from train.run.bundle import contents
from train.run.chain import Digest, digest_in
from train.run.layout import steps_on_disk
from train.run.provenance import MANIFEST, Start, differences, key_of, read_manifest, weights_of
from train.run.status import read_status
from train.tools.report import history
from train.tools.verify.chained import STEP, faults

MOST_FAULTS = 3  # one change causes up to three, as the rows after it follow another row


@dataclass(frozen=True)
class Record:
    """The record in a checkpoint directory.

    `losses`, `starts`: each step's loss and start, from the row that counts. `checkpoint_steps`: those of the checkpoints,
    ascending. `weights`: the hash of the weights at each step at which a start ended.
    `digests`: see Rows.
    """

    directory: Path
    losses: Mapping[int, float]
    starts: Mapping[int, Start]
    environments: Mapping[str, Mapping[str, Any]]
    checkpoint_steps: Sequence[int]
    weights: Mapping[int, str] = field(default_factory=dict)
    digests: Mapping[int, Digest] = field(default_factory=dict)

    def before(self, step: int) -> int | None:
        """Return the step of the newest checkpoint before `step`, or None."""
        return max((kept for kept in self.checkpoint_steps if kept < step), default=None)


@dataclass(frozen=True)
class ReplayRange:
    """Steps that one replay computes: after the checkpoint of `begin` (0: a fresh start) up to `end`.

    `start`: the start that computed the last of them. `points`: the steps of the kept checkpoints on the way.
    `border`: why the part ends before the requested step, or "".
    """

    begin: int
    end: int
    start: Start
    points: Sequence[int]
    border: str = ""


def read_record(directory: Path) -> Record:
    """Read the record in `directory`. Raises TrainError."""
    if read_status(directory) is not None and not (directory / MANIFEST).exists():
        raise TrainError(
            f"{directory} has no {MANIFEST}, as that of a script of your own (train.script): what such a script computes "
            "is known to nobody else, so nothing can be replayed; two runs of it can be compared by their saves"
        )
    manifest = read_manifest(directory)
    starts = {key_of(start): start for start in manifest["starts"]}
    rows = read_rows(directory)
    if not rows.losses:
        raise TrainError(
            f"{directory / 'metrics.jsonl'} has no losses: nothing that a replay could be compared with; "
            "copy the file from where the run was"
        )
    of_steps = {step: starts[key] for step, key in rows.starts.items() if key in starts}
    weights = dict[int, str]()
    for start in manifest["starts"]:
        known = weights_of(start)
        # If a later start did the step again, this hash is of weights that no longer count.
        if known and (last := of_steps.get(known[0])) and last["started"] <= start["started"]:
            weights[known[0]] = known[1]
    kept = steps_on_disk(directory)
    return Record(
        directory, rows.losses, of_steps, manifest["environments"], kept, weights, rows.digests
    )


class Rows(NamedTuple):
    """The rows that count, by their steps: the last one of each.

    `starts`: the key of the start that computed the step.
    """

    losses: Mapping[int, float]
    starts: Mapping[int, tuple[Any, Any]]
    evaluations: Mapping[int, history.Row]
    digests: Mapping[int, Digest]


def read_rows(directory: Path, step: int | None = None) -> Rows:
    """Read metrics.jsonl; without the file there are no rows. Raises OSError.

    `step`: of all steps only this one, in the form in which MetricsLog writes it, because parsing a row takes longest.
    """
    losses, starts = dict[int, float | None](), dict[int, tuple[Any, Any]]()
    evaluations, digests = dict[int, history.Row](), dict[int, Digest]()
    wanted = ("",) if step is None else (f"{STEP}{step}, ", '{"kind": "eval"')
    with (
        contextlib.suppress(FileNotFoundError),
        open_text(directory / "metrics.jsonl") as lines,
    ):
        for row in history.read(line for line in lines if line.startswith(wanted)):
            if row["kind"] == "step":
                losses[row["step"]] = history.loss_of(row)
                starts[row["step"]] = key_of(row)
            elif row["kind"] == "eval":
                evaluations[row["step"]] = row
            if (digest := digest_in(row)) is not None:
                digests[digest.step] = digest
    known = {number: loss for number, loss in losses.items() if loss is not None}
    return Rows(known, starts, evaluations, digests)


def chain_faults(directory: Path) -> list[str]:
    """Return the faults in the chain of metrics.jsonl, in words: the first few. Raises OSError, TrainError."""
    starts = read_manifest(directory)["starts"]
    with open_text(directory / "metrics.jsonl") as lines:
        return list(map(str, itertools.islice(faults(lines, starts), MOST_FAULTS)))


def choose(record: Record, begin: int | None, steps: int | None) -> tuple[int, int]:
    """Return the range that `--from` and `--steps` mean: the step before the first one, and the last one. Raises
    Refusal."""
    kept, newest = record.checkpoint_steps, max(record.losses)
    if begin is not None and begin not in (0, *kept):
        there = ", ".join(map(str, (0, *kept)))
        raise Refusal(EXIT_USAGE, f"--from={begin}: there is no such checkpoint; there is {there}")
    if steps is None:
        end = kept[-1] if kept else newest
        begin = (record.before(end) or 0) if begin is None else begin
    else:
        if begin is None:
            begin = random.choice([0, *(step for step in kept if step < newest)])
        end = min(begin + steps, newest)
    if begin >= end:
        raise Refusal(EXIT_USAGE, f"--from={begin}: no step after it is on record")
    return begin, end


def replay_range(record: Record, begin: int, end: int) -> ReplayRange:
    """Return the part of these steps that one replay can compute. Raises TrainError."""
    first: Start | None = None
    newest: Start = {}
    last, border = begin, ""
    for step in sorted(step for step in record.losses if begin < step <= end):
        if (start := record.starts.get(step)) is None:
            border = f"manifest.json has no entry for the start that computed step {step}"
            break
        first = first or start
        if start is not newest and (why := _change_between(record.directory, first, start)):
            border = f"from step {step} on the run had {why}"
            break
        last, newest = step, start
    if first is None or last == begin:
        why = border or "its loss is not on record"
        raise TrainError(f"step {begin + 1} cannot be replayed: {why}")
    last = last if border else end
    return ReplayRange(
        begin, last, newest, [k for k in record.checkpoint_steps if begin < k <= last], border
    )


def _change_between(directory: Path, first: Start, start: Start) -> str:
    """Return what `start` has that `first` has not: other settings, code or training module; "" if they agree."""
    if changed := differences(first["settings"], start["settings"]):
        return f"other settings: {'; '.join(changed)}"
    if first["code"] != start["code"]:
        return "other code"
    if first["settings"].get("reduction") == "allreduce" and first["shares"] != start["shares"]:
        return "other shares of the ranks, in whose order an all-reduce adds"
    names = first["bundle"], start["bundle"]
    if names[0] != names[1] and _module(directory, names[0]) != _module(directory, names[1]):
        return "another version of ddpgen's training module"
    return ""


def _module(directory: Path, name: str) -> Any:
    """Return the training module in a kept bundle; if the bundle is not kept, its name."""
    try:
        files = contents(directory, name)
    except TrainError:
        return name
    return {path: content for path, content in files.items() if path.startswith("train/")}
