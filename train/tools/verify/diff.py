"""`python -m train diff A B`: two checkpoint directories, two checkpoints or two manifests.

Owns the reading of their files, the lines that are printed, and the exit code, as diff has it: 0 the same, 1 different,
2 trouble. Needs torch only if weights differ, and says so if torch is missing. Changes nothing.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from train.base import typed
from train.base.console import plain
from train.base.errors import EXIT_USAGE, TrainError
from train.base.files import open_file, read_file, sha256_of
from train.run import bundle, provenance
from train.run.layout import MARKER, MOST_MARKER_BYTES, step_directory, steps_on_disk
from train.run.metrics import RESERVED, as_json_value
from train.tools.verify.chained import first_other_link, other_weights
from train.tools.verify.compare import (
    LABELS,
    Difference,
    Origin,
    TensorDifference,
    environment_differences,
    first_loss_difference,
    table,
    tensor_differences,
    verdict,
)
from train.tools.verify.record import Rows, chain_faults, read_rows

_MODEL = "model.pt"
_MOST_TEXT = 1000  # characters of a line


class Weights(NamedTuple):
    """The first checkpoint of both runs whose weights differ.

    `tensor`: the first tensor that differs, or None; then `reason` says why it is not known. `damaged`: the files that
    were changed after they were written, in words, else "".
    """

    step: int
    tensor: TensorDifference | None
    reason: str
    damaged: str


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. `step`: the first step whose losses differ, or None. `losses`: both losses of it."""

    same: bool
    verdict: str
    differences: Sequence[Difference]
    step: int | None = None
    losses: Sequence[float] = ()
    weights: Weights | None = None

    def as_text(self) -> list[str]:
        lines = [self.verdict]
        if self.losses:
            lines.append("loss of step {}: {!r} in A, {!r} in B".format(self.step, *self.losses))
        if self.weights:
            lines.append(
                f"weights of step {self.weights.step}: {self.weights.tensor or self.weights.reason}"
            )
            if self.weights.damaged not in self.verdict:
                lines.append(self.weights.damaged)
        rows = table(self.differences)
        return [*lines, *(["", *rows] if rows else [])]

    def as_json(self) -> dict[str, Any]:
        weights = self.weights and self.weights._asdict()
        if weights and weights["tensor"]:
            weights["tensor"] = {
                k: as_json_value(v) for k, v in weights["tensor"]._asdict().items()
            }
        return {
            "same": self.same,
            "verdict": self.verdict,
            "step": self.step,
            "losses": as_json_value(list(self.losses)),
            "weights": weights,
            "differences": [
                {"bits": LABELS[each.rank], "name": each.name, "a": each.first, "b": each.second}
                for each in self.differences
            ],
        }


def main(argv: Sequence[str]) -> int:
    """Compare two of a kind, print the result, and return the exit code."""
    called = os.environ.get("DDPGEN_CALLED_AS", "python -m train diff")
    parser = argparse.ArgumentParser(prog=called, allow_abbrev=False)
    wants = "a checkpoint directory, a checkpoint in it, or a manifest.json"
    parser.add_argument("a", type=Path, metavar="A", help=wants)
    parser.add_argument("b", type=Path, metavar="B", help="another of the same kind")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    options = parser.parse_args(argv)
    try:
        found = diff(options.a, options.b)
    except TrainError as error:
        print(plain(f"{called}: {error}", _MOST_TEXT), file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:  # noqa: BLE001 - 1 would say that the two differ
        what = f"what they hold cannot be read ({type(error).__name__}: {error}); get it once more"
        print(plain(f"{called}: {what}", _MOST_TEXT), file=sys.stderr)
        return EXIT_USAGE
    lines = [json.dumps(found.as_json(), indent=1)]
    if not options.json:
        lines = [plain(line, _MOST_TEXT) for line in found.as_text()]
    print("\n".join(lines))
    return 0 if found.same else 1


def diff(a: Path, b: Path) -> Comparison:
    """Compare two of a kind. Raises TrainError if they cannot be read or compared."""
    kinds = [_kind(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        raise TrainError(f"{a} is a {kinds[0]} and {b} is a {kinds[1]}; give two of the same kind")
    compare = {"checkpoint directory": _runs, "checkpoint": _checkpoints, "manifest": _manifests}
    return compare[kinds[0]](a, b)


def _kind(path: Path) -> str:
    if not path.exists():
        raise TrainError(f"{path} is not there; give a checkpoint directory or a manifest.json")
    if not path.is_dir():
        return "manifest"
    return "checkpoint" if (path / MARKER).exists() else "checkpoint directory"


def _runs(a: Path, b: Path) -> Comparison:
    manifests = [provenance.read_manifest(each) for each in (a, b)]
    rows, changed_row = _rows(a, b)
    losses = [each.losses for each in rows]
    common = losses[0].keys() & losses[1].keys()
    checkpoints = sorted({*steps_on_disk(a)} & {*steps_on_disk(b)})
    if not common and not checkpoints:
        raise TrainError(
            f"{a} and {b} have no step and no checkpoint in common; nothing can be compared"
        )
    step = first_loss_difference(*losses)
    pairs = ((each, step_directory(a, each), step_directory(b, each)) for each in checkpoints)
    weights = next((found for pair in pairs if (found := _weights(*pair))), None)
    evaluation = _first_evaluation(*rows)
    digests = other_weights(*(each.digests for each in rows))
    candidates = step, weights and weights.step, evaluation, digests and digests.step
    parted = min((each for each in candidates if each), default=math.inf)
    starts = [_start_of(manifest, parted) for manifest in manifests]
    differences = environment_differences(*_origins((a, b), starts, manifests))
    ends = [max((*each, *steps_on_disk(place))) for each, place in zip(losses, (a, b), strict=True)]
    if changed_row:
        conclusion = changed_row
    elif step == parted:
        conclusion = verdict(f"the runs part at step {step}", differences)[0]
    elif digests and digests.step == parted:
        fact = f"the weights differ at step {parted}, first in {digests.name(a, b)}"
        conclusion = verdict(fact, differences)[0]
    elif evaluation == parted:
        conclusion = verdict(f"the evaluations differ at step {evaluation}", differences)[0]
    elif weights:
        fact = f"the weights differ at step {weights.step}, and no loss before it"
        conclusion = (
            f"{fact}: {weights.damaged}" if weights.damaged else verdict(fact, differences)[0]
        )
    else:
        what = f"{len(common)} losses, the weights of {len(checkpoints)} checkpoint(s)"
        conclusion = f"the same to the bit: {what}"
        if ends[0] != ends[1]:
            conclusion += f"; but A ends at step {ends[0]}, B at step {ends[1]}"
    same = parted == math.inf and ends[0] == ends[1] and not changed_row
    at_step = [each[step] for each in losses] if step is not None else ()
    return Comparison(same, conclusion, differences, step, at_step, weights)


def _checkpoints(a: Path, b: Path) -> Comparison:
    markers = [_marker(each) for each in (a, b)]
    steps = [marker.get("step") for marker in markers]
    if type(steps[0]) is not int or steps[0] != steps[1]:
        raise TrainError(
            f"{a} is of step {steps[0]}, {b} of step {steps[1]}; give two of the same step"
        )
    starts = [marker.get("start") for marker in markers]
    for place, start in zip((a, b), starts, strict=True):
        if not provenance.is_start(start):
            raise TrainError(f"{place / MARKER} does not say what wrote it: an earlier version did")
    weights = _weights(steps[0], a, b)
    differences = environment_differences(*_origins((a.parent, b.parent), starts, markers))
    if weights is None:
        return Comparison(
            True, f"the weights of step {steps[0]} are the same to the bit", differences
        )
    fact = f"the weights of step {steps[0]} differ"
    conclusion = f"{fact}: {weights.damaged}" if weights.damaged else verdict(fact, differences)[0]
    return Comparison(False, conclusion, differences, weights=weights)


def _manifests(a: Path, b: Path) -> Comparison:
    manifests = [provenance.load(path) for path in (a, b)]
    starts = [manifest["starts"][-1] for manifest in manifests]
    differences = environment_differences(*_origins((a.parent, b.parent), starts, manifests))
    fact, same = "the newest starts differ", not differences
    steps, weights = ([start.get(name) for start in starts] for name in ("step", "weights"))
    if all(weights) and steps[0] == steps[1]:
        same = weights[0] == weights[1]
        fact = f"the weights of step {steps[0]} differ"
    if not same:
        return Comparison(False, verdict(fact, differences)[0], differences)
    what = f"the weights of step {steps[0]} are" if all(weights) else "the newest starts are"
    return Comparison(True, f"{what} the same", differences)


# What is read.


def _rows(a: Path, b: Path) -> tuple[list[Rows], str]:
    """Return the rows of both runs, and a row that was changed after it was written, in words; "" without one.

    If the chains tell the first step that differs, the rows are of this step alone. Otherwise the chains are checked:
    equal links cannot belong to unequal rows.
    """
    try:
        step = first_other_link(a / "metrics.jsonl", b / "metrics.jsonl")
        if step is not None:
            rows = [read_rows(each, step) for each in (a, b)]
            parted = first_loss_difference(*(each.losses for each in rows)) is not None
            if parted or other_weights(*(each.digests for each in rows)):
                return rows, ""
        rows = [read_rows(each) for each in (a, b)]
        changed = [
            f"{name} is not as it was written: {fault}"
            for name, each, own in zip("AB", (a, b), rows, strict=True)
            if own.losses
            for fault in chain_faults(each)[:1]
        ]
        return rows, "; ".join(changed)
    except OSError as error:
        raise TrainError(f"{error.filename} cannot be read: {error.strerror}") from None


def _first_evaluation(a: Rows, b: Rows) -> int | None:
    """Return the first step that both have evaluated with different results, or None."""
    was, now = a.evaluations, b.evaluations
    both = sorted({*was} & {*now})
    return next((step for step in both if _result(was[step]) != _result(now[step])), None)


def _result(row: Mapping[str, Any]) -> str:
    """Return the metrics of a row as text, without its time and its start."""
    return json.dumps({name: value for name, value in row.items() if name not in RESERVED})


def _start_of(manifest: Mapping[str, Any], step: float) -> Mapping[str, Any]:
    """Return the start whose computation of `step` counts: the last one that began before this step."""
    before = [start for start in manifest["starts"] if start["from_step"] < step]
    return (before or manifest["starts"])[-1]  # type: ignore[no-any-return]


def _origins(
    directories: Sequence[Path], starts: Sequence[Any], manifests: Sequence[Mapping[str, Any]]
) -> list[Origin]:
    """Return the origin of each run. `places`: the checkpoint directories. The bundles count only if both keep one."""
    names = [start["bundle"] for start in starts]
    kept = [bundle.archive_path(*pair).is_file() for pair in zip(directories, names, strict=True)]
    files: list[Mapping[str, bytes]] = [{}, {}]
    if all(kept):
        packed = [bundle.contents(*pair) for pair in zip(directories, names, strict=True)]
        files = [{path: content for path, (content, _) in each.items()} for each in packed]
    known = [manifest.get("environments", {}) for manifest in manifests]
    return [Origin(*each) for each in zip(starts, known, files, strict=True)]


def _weights(step: int, a: Path, b: Path) -> Weights | None:
    """Return how the weights of two checkpoints differ, or None if they do not. Raises TrainError."""
    models = a / _MODEL, b / _MODEL
    tensor, reason = None, ""
    try:
        if filecmp.cmp(*models, shallow=False):
            return None
        tensor = tensor_differences(*models)
    except OSError as error:
        raise TrainError(f"{error.filename} cannot be read: {error.strerror}") from None
    except ImportError:
        reason = "they differ; without torch, which is not installed here, no tensor can be named"
    except Exception as error:  # noqa: BLE001 - whatever torch makes of a damaged file
        reason = f"they cannot be loaded: {error}"
    if tensor is None and not reason:
        return None  # another version of torch has written other bytes around the same tensors
    damaged = " and ".join(str(model) for model in models if not _as_written(model))
    return Weights(
        step, tensor, reason, f"{damaged} was changed after it was written" if damaged else ""
    )


def _as_written(model: Path) -> bool:
    """Return whether the file has the sha256 that its checkpoint's marker lists."""
    with open_file(model) as file:
        digest = sha256_of(file)
    files = _marker(model.parent).get("files")
    listed = files.get(_MODEL) if isinstance(files, dict) else None
    return isinstance(listed, dict) and listed.get("sha256") == digest


def _marker(checkpoint: Path) -> Mapping[str, Any]:
    try:
        found = typed.parse(dict, read_file(checkpoint / MARKER, MOST_MARKER_BYTES))
    except OSError as error:
        raise TrainError(f"{checkpoint / MARKER} cannot be read: {error.strerror}") from None
    if found is None:
        raise TrainError(f"{checkpoint / MARKER} is damaged: it is no whole JSON")
    return found
