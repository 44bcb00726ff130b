"""`ddpgen diff` of specs and bundles: fields with their places, then what they are rendered to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.ddpgen.conftest import GPT, Run, ddpgen

SPEC = f"""{GPT}  seed: 3
targets:
  local: {{procs_per_node: 1}}
  slurm: {{nodes: 2, time: "1:00:00"}}
"""


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two specs: another learning rate and no seed in the second, and one node less on Slurm."""
    for name, text in {
        "a.yaml": SPEC,
        "b.yaml": SPEC.replace("  seed: 3\n", "  lr: 0.5\n").replace("nodes: 2", "nodes: 1"),
    }.items():
        (tmp_path / name).write_text(text)
    return Path("a.yaml"), Path("b.yaml")


def test_specs_differ_in_fields_and_in_what_they_render_to(
    run: Run, two: tuple[Path, Path]
) -> None:
    found = run("diff", *two)
    assert (found.code, found.err) == (1, "")
    fields, _, local = found.out.partition("--- a.yaml: local.sh\n")
    assert fields == (
        "train.lr: 0.001 (default) -> 0.5 (b.yaml:8)\n"
        "train.seed: 3 (a.yaml:8) -> 0 (default)\n"
        "nodes (slurm): 2 (a.yaml:11) -> 1 (b.yaml:11)\n\n"
    )
    local, _, slurm = local.partition("--- a.yaml: slurm.sbatch\n+++ b.yaml: slurm.sbatch\n")
    assert "-  run --workload=gpt" in local
    assert "\n-#SBATCH --nodes=2\n+#SBATCH --nodes=1\n" in slurm


def test_what_means_the_same_is_the_same(run: Run, two: tuple[Path, Path], tmp_path: Path) -> None:
    again = SPEC.replace(
        "steps: 300", "# a comment, and a default written out\n  lr: 1e-3\n  steps: 300"
    )
    (tmp_path / "b.yaml").write_text(again)
    assert run("diff", *two) == (0, "the same\n", "")
    assert json.loads(run("diff", "--json", *two).out) == {
        "same": True, "fields": [], "only": [], "files": {},
    }  # fmt: skip


def test_a_tier_of_one_spec_only_is_named(run: Run, two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(SPEC.partition("  slurm")[0])
    assert run("diff", *two) == (1, "only in a.yaml: tier slurm\n", "")


def test_bundles_differ_in_their_specs_and_their_files_as_they_are_now(
    run: Run, two: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "code" / "table.bin").write_bytes(b"\0\xff")
    (tmp_path / "a.yaml").write_text(f"code: code\n{SPEC}")
    for name in ("a", "b"):
        assert run("render", "a.yaml", "--target=local", "-o", name).code == 0
    assert run("diff", "a", "b") == (0, "the same\n", "")
    changed = tmp_path / "b"
    (changed / "code" / "model.py").write_text("x = 1\ny = 3\n")
    (changed / "code" / "table.bin").write_bytes(b"\0\xfe\0")
    (changed / "train" / "checkpoint" / "state.py").unlink()
    listing = json.loads((changed / "bundle.json").read_text())
    listing["spec"]["local"]["train"]["args"] = {"depth": 2}
    (changed / "bundle.json").write_text(json.dumps(listing))
    assert run("diff", "a", "b").out == (
        "train.args.depth: - -> 2\n"
        "only in a: train/checkpoint/state.py\n"
        "\n"
        "--- a: code/model.py\n"
        "+++ b: code/model.py\n"
        "@@ -1,2 +1,2 @@\n"
        " x = 1\n"
        "-y = 2\n"
        "+y = 3\n"
        "code/table.bin: 2 bytes, sha256 06eb7d6a69ee -> 3 bytes, sha256 ea5cb94fd022\n"
    )


def test_of_much_that_differs_the_beginning_is_shown(
    run: Run, two: tuple[Path, Path], tmp_path: Path
) -> None:
    assert run("render", "a.yaml", "--target=local", "-o", "a").code == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in [*(tmp_path / "b" / "train").glob("*.py")]:
        path.write_text("# all is new\n" * 10)
    (tmp_path / "b" / "local.sh").write_text("# all is new\n" * 300)
    *lines, count, nothing, train = run("diff", "a", "b").out.splitlines()
    assert len(lines) == 200
    assert count.startswith("... and ")
    assert nothing == ""
    assert train.startswith("train/, the training module: ")
    assert " files differ (train/__init__.py, train/__main__.py, " in train


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("a.yaml", "nowhere.yaml"),
            "nowhere.yaml is not there; ",
        ),
        (("bundle", "nowhere"), "nowhere is not there; "),
        (
            ("a.yaml", "bundle"),
            "a.yaml is a spec and bundle is a bundle; ",
        ),
        (("bundle", "bundle"), "bundle/bundle.json cannot be read"),
        (("a.yaml", "garbage.yaml"), "garbage.yaml:1:1: "),
        (("a.yaml", "unfit.yaml"), "unfit.yaml:1:7: code: "),
    ],
)
def test_trouble_has_exit_code_2(
    words: tuple[str, str], said: str, run: Run, two: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("{}")
    (tmp_path / "garbage.yaml").write_text("garbage")
    (tmp_path / "unfit.yaml").write_text(f"code: nowhere\n{GPT}")
    found = run("diff", *words)
    assert (found.code, found.out) == (2, "")
    assert said in found.err


def test_runs_are_compared_by_the_training_module(tmp_path: Path) -> None:
    """Under the name the user knows, by names relative to where the user is."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = ddpgen("diff", "a", "b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddpgen diff: {tmp_path}/a/manifest.json is not there; ")
