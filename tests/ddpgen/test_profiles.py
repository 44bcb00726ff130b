"""The layers below a spec and above it: what wins, where a fault is, and what a bundle keeps of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpgen import job
from ddpgen.errors import SpecInvalidError, report
from tests.ddpgen.conftest import GPT, Run

# Files whose layers have a fault, under its place and the decisive word. The first file is the spec.
WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"job.yaml": f"extends: no.yaml\n{GPT}"}, "job.yaml:1:10: extends:", "No such file"),
    ({"job.yaml": f"extends: [.]\n{GPT}"}, "job.yaml:1:11: extends[0]:", "directory"),
    ({"job.yaml": f"extends: {{a: b}}\n{GPT}"}, "job.yaml:1:10: extends:", "a mapping"),
    ({"job.yaml": f"extends: job.yaml\n{GPT}"}, "job.yaml:1:10: extends:", "already"),
    (
        {"job.yaml": f"extends: a/b.yaml\n{GPT}", "a/b.yaml": "extends: ../job.yaml\n"},
        "a/b.yaml:1:10: extends:",
        "already",
    ),
    ({"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "a: [1\n"}, "b.yaml:1:4:", "bracket"),
    ({"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "- a\n"}, "b.yaml:1:1:", "mapping"),
    (
        {"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "restarts: 1\nnods: 2\n"},
        "b.yaml:2:1: nods:",
        "nodes",
    ),
]


def write(files: Mapping[str, str], directory: Path) -> str:
    """Write these files, and return the path of the first one relative to `directory`."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return next(iter(files))


def errors(files: Mapping[str, str], directory: Path) -> list[str]:
    """Return the lines about these files, which are wrong; the first one is the spec, in the working directory."""
    try:
        job.load(write(files, directory))
    except SpecInvalidError as error:
        return report(error.filename, error.findings)
    raise AssertionError(f"{files} is a spec")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("files", "where", "word"), WRONG)
def test_a_fault_in_a_layer_is_at_its_file_and_line(
    files: dict[str, str], where: str, word: str, tmp_path: Path
) -> None:
    (line,) = errors(files, tmp_path)
    assert line.startswith(where)
    assert word in line


def listing(bundle: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((bundle / "bundle.json").read_text())
    return loaded


def test_the_later_layer_wins_field_by_field_and_lists_are_replaced(tmp_path: Path) -> None:
    files = {
        "job.yaml": f"extends: [one.yaml, team/two.yaml]\nenv: {{C: spec}}\n{GPT}",
        "one.yaml": "restarts: 1\nenv: {A: one, B: one, C: one}\ncode: [one, all]\n",
        "team/two.yaml": "extends: three.yaml\nenv: {B: two, C: two}\ncode: [two]\nnic: eth2\n",
        "team/three.yaml": "restarts: 3\nnic: eth3\n",
    }
    read = job.load(write(files, tmp_path))["local"].job
    assert read.env == {"A": "one", "B": "two", "C": "spec"}
    assert (read.restarts, read.code, read.nic, read.train.steps) == (3, ("two",), "eth2", 300)


def test_one_of_two_fields_that_exclude_each_other_gives_way_to_the_later_layer(
    tmp_path: Path,
) -> None:
    files = {
        "job.yaml": "extends: base.yaml\ntrain: {epochs: 2}\ntargets: {slurm: {train: {steps: 7}}}\n",
        "base.yaml": f"{GPT}targets: {{slurm: {{train: {{epochs: 9}}, time: 2h}}}}\n",
    }
    read = job.load(write(files, tmp_path))
    assert [read["local"].job.train.steps, read["local"].job.train.epochs] == [None, 2]
    assert [read["slurm"].job.train.steps, read["slurm"].job.train.epochs] == [7, None]


@pytest.mark.parametrize("targets", ["", "targets:\n", "targets: {slurm: }\n"])
def test_a_tier_without_fields_keeps_those_of_the_layer_below(targets: str, tmp_path: Path) -> None:
    files = {
        "job.yaml": f"extends: base.yaml\n{GPT}{targets}",
        "base.yaml": "targets: {slurm: {time: 2h, partition: gpu}}\n",
    }
    assert vars(job.load(write(files, tmp_path))["slurm"].job)["partition"] == "gpu"


def test_what_two_files_extend_is_read_once(tmp_path: Path) -> None:
    files = {f"{n}.yaml": f"extends: [{n + 1}.yaml, ./{n + 1}.yaml]\n" for n in range(40)}
    files = {"job.yaml": f"extends: 0.yaml\n{GPT}", **files, "40.yaml": "restarts: 7\n"}
    assert job.load(write(files, tmp_path))["local"].job.restarts == 7


def test_a_bundle_names_the_layers_and_needs_none(run: Run, tmp_path: Path) -> None:
    files = {
        "here/job.yaml": f"extends: ../team/base.yaml\n{GPT}",
        "team/base.yaml": "targets: {slurm: {time: 2h, partition: gpu}}\n",
    }
    spec = write(files, tmp_path)
    assert run("render", tmp_path / spec, "--target", "all", "-o", "b").code == 0
    kept = listing(Path("b"))["layers"]
    assert set(kept["files"]) == {"job.yaml", "../team/base.yaml"}
    (tmp_path / "team/base.yaml").write_text("# another comment\n" + files["team/base.yaml"])
    assert "unchanged" in run("render", spec, "--target", "all", "-o", "b").err
    assert listing(Path("b"))["layers"] == kept
    (tmp_path / "team/base.yaml").unlink()
    assert vars(job.bundle_jobs(Path("b"))["slurm"])["partition"] == "gpu"
    assert run("status", "b", "--target", "local").code == 0


def test_the_bundle_of_a_spec_alone_names_no_layers(run: Run, tmp_path: Path) -> None:
    write({"job.yaml": GPT}, tmp_path)
    assert run("render", "job.yaml", "--target", "local").code == 0
    assert "layers" not in listing(Path("build/gpt"))
