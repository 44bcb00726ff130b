"""A bundle says all that is needed to render it again, and where doing its run again would get in the run's way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ddpgen import job
from ddpgen.errors import BundleRefusedError, TargetUnavailableError
from ddpgen.reproduce import again
from tests.ddpgen.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def bundled(spec: Path, place: Path) -> Path:
    readings = job.load(str(spec))
    how = job.Render(output=place / "bundle")
    job.write_bundle(readings, job.resolve("all", readings), spec.parent, how)
    return place / "bundle"


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_rendered_alike_from_its_bundle(spec: Path, tmp_path: Path) -> None:
    said = again.compared(bundled(spec, tmp_path))
    assert said.endswith(" 0.1.0, renders the same bytes")


def test_what_another_version_rendered_is_named(tmp_path: Path) -> None:
    bundle = bundled(ROOT / "examples/toy.yaml", tmp_path)
    listing = json.loads((bundle / "bundle.json").read_text())
    listing["files"].update({"local.sh": "0", "train/old.py": "0", "code/mine.py": "0"})
    listing["ddpgen"] = "0.0.9"
    (bundle / "bundle.json").write_text(json.dumps(listing))
    told = again.compared(bundle)
    assert told.startswith("rendered by ddpgen 0.0.9; ")
    assert "0.1.0, renders another local.sh, train/old.py. " in told
    del listing["spec"]["local"]["train"]
    (bundle / "bundle.json").write_text(json.dumps(listing))
    assert "0.1.0, cannot render it: " in again.compared(bundle)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    assert again.new_directory(tmp_path / "ckpt", tmp_path / "new") == tmp_path / "new"
    assert again.new_directory(tmp_path / "gpt", None) == Path("build/gpt-reproduced").absolute()
    (tmp_path / "tried" / "bundle").mkdir(parents=True)
    assert again.new_directory(tmp_path / "ckpt", tmp_path / "tried") == tmp_path / "tried"
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(BundleRefusedError, match="is not empty"):
            again.new_directory(tmp_path / "ckpt", taken)


def test_the_runs_own_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleRefusedError, match="the run's own directory"):
        again.new_directory(tmp_path / "ckpt", tmp_path / "ckpt" / "again")


def test_it_is_launched_only_where_its_checkpoints_are_its_own(tmp_path: Path) -> None:
    bundle = bundled(ROOT / "examples/gpt.yaml", tmp_path)
    for tier in ("local", "slurm"):
        assert again.launched(bundle, tier, tmp_path)[1] == tmp_path / "checkpoints/gpt"
    for tier in ("hosts", "sky"):
        with pytest.raises(TargetUnavailableError, match=f"on {tier} "):
            again.launched(bundle, tier, tmp_path)
    shutil.rmtree(bundle)
    bundle = bundled(ROOT / "examples/toy.yaml", tmp_path)
    with pytest.raises(TargetUnavailableError, match="not for slurm"):
        again.launched(bundle, "slurm", tmp_path)
    toy = (ROOT / "examples/toy.yaml").read_text()
    for place in ("/data/toy", "~/toy"):
        (tmp_path / "toy.yaml").write_text(toy.replace("  every:", f"  dir: {place}\n  every:"))
        shutil.rmtree(bundle)
        bundle = bundled(tmp_path / "toy.yaml", tmp_path)
        with pytest.raises(TargetUnavailableError, match="on local "):
            again.launched(bundle, "local", tmp_path)
