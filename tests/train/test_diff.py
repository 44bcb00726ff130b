"""`diff` of what runs left behind: the cause in the first line, whatever it is, and trouble as one clear error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.real import jobs
from tests.train.workers import run
from train.tools.verify.diff import main

# Its first loss has a softmax that depends on the instruction set, the bytes of a file and a line of code.
OWN = """
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from train.workload import Workload

DATA = "~/train.bin"


def build(context):
    numbers = torch.frombuffer(bytearray(Path(DATA).expanduser().read_bytes()), dtype=torch.uint8)
    wide = (torch.arange(100_000) * 7919 % 1009).float().reshape(-1, 250) / 1009

    def loss(model, batch):
        spread = wide * model(batch[0]).mean()
        return functional.softmax(spread * 8, dim=1).double().square().sum()

    rows = numbers.float() / 256
    return Workload(nn.Linear(64, 32), [(row,) for row in rows.reshape(-1, 64)], loss, data_files=[DATA])
"""

LINE = "rows = numbers.float() / 256"


class Made(NamedTuple):
    """How a run differs from the first: words for `train run`, and its environment."""

    argument: str = ""
    variable: tuple[str, str] = ("", "")
    line: str = LINE
    byte: int = 7


RUNS = {
    "first": Made(),
    "again": Made(),
    "seed": Made(argument="--seed=1"),
    "isa": Made(variable=("ATEN_CPU_CAPABILITY", "default")),
    "code": Made(line="rows = numbers.float() / 255"),
    "data": Made(byte=8),
}


# Torch is imported once for all runs. It has computed nothing before the forks, so each reads its own variables.
TRAIN = """
import json, os, runpy, sys, torch
for bundle, variables, argv in json.loads(sys.argv[1]):
    if not os.fork():
        os.environ.update(variables)
        os.chdir(bundle)
        sys.path[0], sys.argv[1:] = bundle, argv
        runpy.run_module("train", run_name="__main__", alter_sys=True)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint directories of RUNS, by name: each trained from a bundle of its own."""
    top = tmp_path_factory.mktemp("runs")
    starts = [start(top / name, made) for name, made in RUNS.items()]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, json.dumps(starts)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return top


def start(place: Path, made: Made) -> tuple[str, dict[str, str], list[str]]:
    """A bundle, the variables and the words of its training."""
    job = {"workload": "own.py:build", "steps": 3, "global_batch_size": 4, "micro_batch_size": 2}
    bundle = jobs.render(
        place, {"name": "own", "train": job}, {"own.py": OWN.replace(LINE, made.line)}
    )
    (place / "train.bin").write_bytes(
        bytes([made.byte, *(i * 31 % 251 for i in range(8 * 64 - 1))])
    )
    argv = [
        "run", "--workload=own.py:build", "--code-dir=code", "--steps=3", "--global-batch-size=4",
        "--micro-batch-size=2", "--optimizer=sgd", "--lr=0.1", f"--checkpoint-dir={place}",
        *filter(None, [made.argument]),
    ]  # fmt: skip
    return str(bundle), {"HOME": str(place), **dict(filter(all, [made.variable]))}, argv


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param("seed", "the runs part at step 1: seed: 0 -> 1", marks=pytest.mark.nightly),
        ("isa", "the runs part at step 1: ATEN_CPU_CAPABILITY: - -> default (and 2 more, below)"),
        (
            "code",
            "the runs part at step 1: own.py:21: rows = numbers.float() / 256 -> rows = numbers.float() / 255",
        ),
        pytest.param(
            "data",
            "the runs part at step 1: train.bin has another sha256",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_was_changed_is_the_cause_in_the_first_line(
    name: str, first: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / "first"), str(runs / name)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == first
    assert said[1].startswith("loss of step 1: ")
    assert said[2].startswith("weights of step 3: weight: ")
    assert said[4].startswith("bits          what")
    # A checkpoint knows by itself what wrote it, and so does a manifest.
    steps = [str(runs / each / "step-000000003") for each in ("first", name)]
    assert main(steps) == 1
    cause = first.removeprefix("the runs part at step 1")
    assert capsys.readouterr().out.startswith(f"the weights of step 3 differ{cause}\n")
    assert main([str(runs / each / "manifest.json") for each in ("first", name)]) == 1
    told = capsys.readouterr().out
    if (
        name != "code"
    ):  # the hash of all code is in the manifest, the lines are in the bundles beside it
        assert told.startswith(f"the weights of step 3 differ{cause}\n")


@pytest.mark.slow
def test_the_same_run_is_the_same_to_the_bit(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / "first"), str(runs / "again")]) == 0
    said = "the same to the bit: 3 losses, the weights of 1 checkpoint(s)\n"
    assert capsys.readouterr().out == said


Copy = Callable[[], Path]


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Copy:
    """Make a copy of the first run, to be changed."""
    return lambda: shutil.copytree(runs / "first", tmp_path / "copy")


def test_a_bit_that_was_flipped_later_is_the_cause(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = torch.load(runs / "first" / "step-000000003" / "model.pt", weights_only=True)
    weights["bias"][5] = torch.nextafter(weights["bias"][5], torch.tensor(1.0))
    model = copy() / "step-000000003" / "model.pt"
    torch.save(weights, model)
    assert main([str(runs / "first"), str(model.parents[1])]) == 1
    said = capsys.readouterr().out.splitlines()
    told = f"{model} was changed after it was written"
    assert said[0] == f"the weights differ at step 3, and no loss before it: {told}"
    assert said[1].startswith("weights of step 3: bias: 1 of 32 elements, ")
    model.write_bytes(b"garbage")
    assert main([str(runs / "first" / "step-000000003"), str(model.parent)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"the weights of step 3 differ: {told}"
    assert said[1].startswith("weights of step 3: they cannot be loaded: ")


def test_a_run_that_ended_earlier_is_not_the_same(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copy()
    shutil.rmtree(place / "step-000000003")
    rows = (place / "metrics.jsonl").read_text().splitlines(keepends=True)
    (place / "metrics.jsonl").write_text("".join(row for row in rows if '"step": 3' not in row))
    assert main([str(runs / "first"), str(place)]) == 1
    what = "2 losses, the weights of 0 checkpoint(s); but A ends at step 3, B at step 2"
    assert capsys.readouterr().out == f"the same to the bit: {what}\n"


def test_an_evaluation_that_differs_is_told(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = [directory / "metrics.jsonl" for directory in (copy(), runs / "first")]
    row = {"kind": "eval", "step": 3, "attempt": "a", "generation": 1, "loss": 0.5, "time": 1.0}
    was = metrics[1].read_text()
    try:
        for file, loss in zip(metrics, (0.5, 0.25), strict=True):
            file.write_text(f"{was}{json.dumps({**row, 'loss': loss})}\n")
        assert main([str(runs / "first"), str(metrics[0].parent)]) == 1
    finally:
        metrics[1].write_text(was)
    told = "the evaluations differ at step 3; nothing on record explains it\n"
    assert capsys.readouterr().out == told


@pytest.mark.slow
def test_the_start_that_computed_the_step_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B goes on after its third step with another learning rate, which acts from the fourth step on."""
    run(tmp_path / "a", "toy", 1)
    run(tmp_path / "b", "toy", 2, "--steps=3")
    assert run(tmp_path / "b", "toy", 1, "--lr=0.1", "--accept-changes").codes == [0]
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "the runs part at step 5: lr: 0.05 -> 0.1"
    assert said[-1].split() == ["changes", "bits", "lr", "0.05", "0.1"]


def test_without_torch_all_but_the_tensor_is_said(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([str(runs / "first"), str(runs / "seed")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "the runs part at step 1: seed: 0 -> 1"
    assert said[2].startswith("weights of step 3: they differ; ")
    assert "without torch, which is not installed here, no tensor can be named" in said[2]


def test_json_holds_all_of_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(runs / "first"), str(runs / "seed")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["same"], found["verdict"]) == (False, "the runs part at step 1: seed: 0 -> 1")
    assert (found["step"], len(found["losses"]), found["weights"]["step"]) == (1, 2, 3)
    assert found["weights"]["tensor"]["name"] == "weight"
    assert found["differences"] == [{"bits": "changes bits", "name": "seed", "a": "0", "b": "1"}]


# Every way is in test_manifest.py.
def test_a_manifest_that_cannot_be_read_is_one_clear_error(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = copy() / "manifest.json"
    manifest.write_text('{"schema": 3}')
    for a, b in ((runs / "first", manifest.parent), (runs / "first" / "manifest.json", manifest)):
        assert main([str(a), str(b)]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert said.err.startswith(f"python -m train diff: {manifest} has schema 3, ")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copy()
    for name in ("step-000000003/model.pt", "metrics.jsonl", "manifest.json"):
        (place / name).unlink()
        os.mkfifo(place / name)
        assert main([str(runs / "first"), str(place)]) in (1, 2)
        assert "no ordinary file" in "".join(capsys.readouterr())


def test_what_cannot_be_compared_is_told(
    runs: Path, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    first, place = runs / "first", copy()
    (place / "metrics.jsonl").unlink()
    other = (place / "step-000000003").rename(place / "step-000000004")
    marker = json.loads((other / "checkpoint.json").read_text())
    (other / "checkpoint.json").write_text(json.dumps({**marker, "step": 4}))
    pairs = {
        (first, first / "step-000000003"): (
            f"{first} is a checkpoint directory and {first}/step-000000003 is a checkpoint; give two of the same kind"
        ),
        (
            first,
            first / "nothing",
        ): f"{first}/nothing is not there; give a checkpoint directory or a manifest.json",
        (
            first,
            place,
        ): f"{first} and {place} have no step and no checkpoint in common; nothing can be compared",
        (first / "step-000000003", other): (
            f"{first}/step-000000003 is of step 3, {other} of step 4; give two of the same step"
        ),
    }
    for (a, b), why in pairs.items():
        assert main([str(a), str(b)]) == 2
        assert capsys.readouterr().err == f"python -m train diff: {why}\n"
