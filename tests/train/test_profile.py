"""A profile of some steps: a trace for each rank and a table, and the same weights."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from tests.train import workers

PARTS = Path(__file__).with_name("own_parts.py")


def table(output: str) -> list[list[float]]:
    """Per rank: step, compute, communication, waiting, data."""
    lines = re.findall(r"^ +\d((?: +[\d.]+){5})$", output, re.MULTILINE)
    return [[float(word) for word in line.split()] for line in lines]


def steps_in(trace: Path) -> int:
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return sum(str(event.get("name")).startswith("Optimizer.step") for event in events)


@pytest.mark.slow
def test_every_rank_traces_its_steps_and_the_bits_stay(tmp_path: Path) -> None:
    workers.import_compiler()
    plain = workers.run(tmp_path / "plain", f"{PARTS}:no_split", 2)
    run = workers.run(tmp_path / "run", f"{PARTS}:no_split", 2, "--profile=2..4", "--log-every=1")
    assert run.codes == [0, 0], run.output
    assert [steps_in(tmp_path / f"run/profile/rank-{rank}.json.gz") for rank in (0, 1)] == [3, 3]
    assert "profile of steps 2 to 4, traces in " in run.output
    rows = table(run.output)
    assert len(rows) == 2
    for step, *parts in rows:
        assert step > 0
        assert abs(step - sum(parts)) < 0.3  # the rounding of five numbers
    assert min(waiting for _, _, _, waiting, _ in rows) == 0
    assert re.search(r"^  aten::\w+ +[\d.]+ +\d+$", run.output, re.MULTILINE)
    mine, theirs = run.tensors(), plain.tensors()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_start_within_the_range_traces_what_is_left_of_it(tmp_path: Path) -> None:
    workers.import_compiler()
    args = ("--profile=2..9", "--checkpoint-every=1 steps", "--steps=6")
    args += (f"--arg=killed={json.dumps(str(tmp_path / 'killed'))}",)
    run = workers.run(tmp_path, f"{PARTS}:augmented", 2, *args)
    assert run.codes != [0, 0]
    assert not (tmp_path / "profile").exists()
    first = max(int(place.name[5:]) for place in tmp_path.glob("step-*")) + 1
    run = workers.run(tmp_path, f"{PARTS}:augmented", 2, *args)
    assert run.codes == [0, 0], run.output
    assert f"profile of steps {first} to 6, " in run.output
    assert steps_in(tmp_path / "profile/rank-0.json.gz") == 7 - first


def test_a_profile_that_cannot_be_written_costs_a_line(tmp_path: Path) -> None:
    workers.import_compiler()
    (tmp_path / "profile").touch()
    run = workers.run(tmp_path, f"{PARTS}:no_split", 1, "--profile=2..3")
    assert run.codes == [0], run.output
    assert "the profile cannot be written to " in run.output
    assert len(table(run.output)) == 1
