"""Packages that a script imports, and that the requirements of a new machine do not install."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.lint.packages import _NEEDS, check
from ddpgen.tiers.registry import read


def with_requirements(requirements: str, more: str = "") -> str:
    sky = f"{{bucket: s3://bbb, requirements: {requirements}}}"
    return f"name: a\ncode: code\ntrain: {{script: t.py}}\n{more}targets: {{sky: {sky}}}\n"


IMPORTS = "import torch, numpy as np\nfrom transformers.models import gpt2\nimport sklearn.svm\nfrom PIL import Image\n"
# The requirements, the script, the problems.
MISSING = [
    ("[torch==2.4.0]", IMPORTS, ["t.py:2 imports transformers, ", "t.py:3 imports sklearn, ", "t.py:4 imports PIL, "]),
    ("[torch==2.4.0, scikit-learn==1.5, timm==1.0]", IMPORTS, ["t.py:2 imports transformers, "]),
    ("[torch==2.4.0, Scikit_Learn==1.5]", "import torch, sklearn, cv2, cv2.dnn\n", ["t.py:1 imports cv2, and no requirement installs opencv-python"]),
    ("['--index-url https://x.org/whl', torch==2.4.0]", "import wandb\n", ["t.py:1 imports wandb, "]),
]  # fmt: skip
ENOUGH = [
    ("[torch==2.4.0, peft==0.12, torchvision==0.19, scikit-learn==1.5]", IMPORTS, ""),
    # These may bring anything.
    ("[-r requirements.txt]", IMPORTS, ""),
    ("[torch==2.4.0, 'accelerate[all]==1.0']", IMPORTS, ""),
    ("[torch==2.4.0, ours==1.0]", IMPORTS, ""),
    ("[torch==2.4.0, ./wheels/ours-1.0-py3-none-any.whl]", IMPORTS, ""),
    ("[torch==2.4.0]", IMPORTS, "python: {activate: source x}\n"),
    ("[torch==2.4.0]", IMPORTS, "environment: locked\n"),
    ("[torch==2.4.0]", "try:\n  import wandb\nexcept ImportError:\n  wandb = None\n", ""),
    ("[torch==2.4.0]", "def f():\n  import transformers\n", ""),
    ("[torch==2.4.0]", "from .transformers import x\nimport own, einops, unheard_of, json\n", ""),
    ("[einops==0.8]", "import torch\n", ""),
]


def problems(place: Path, spec: str, text: str) -> list[str]:
    (place / "code").mkdir()
    (place / "code/t.py").write_text(text)
    (place / "code/einops").mkdir()  # one of the user's own
    (place / "code/einops/__init__.py").touch()
    return [each.problem for each in check(read(spec.encode(), "a.yaml")["sky"].job, place)]


@pytest.mark.parametrize(("requirements", "text", "expected"), MISSING)
def test_each_package_that_nothing_installs_is_named(
    tmp_path: Path, requirements: str, text: str, expected: list[str]
) -> None:
    found = problems(tmp_path, with_requirements(requirements), text)
    assert len(found) == len(expected)
    assert all(problem.startswith(words) for problem, words in zip(found, expected, strict=True))


@pytest.mark.parametrize(("requirements", "text", "more"), ENOUGH)
def test_nothing_is_said_where_a_package_may_come_from_elsewhere(
    tmp_path: Path, requirements: str, text: str, more: str
) -> None:
    assert problems(tmp_path, with_requirements(requirements, more), text) == []


# The files of `code`, the program.
OWN = [
    (
        ["m/w.py", "datasets/__init__.py"],
        "workload: m/w.py:build, steps: 1, global_batch_size: 1, micro_batch_size: 1",
    ),
    (["m/w.py", "lib/datasets/folder.py"], "script: m/w.py"),
    (["m/w.py", "datasets.cpython-311-x86_64-linux-gnu.so"], "script: m/w.py"),
]


@pytest.mark.parametrize(("files", "train"), OWN)
def test_a_module_of_code_is_nobody_elses_package(
    tmp_path: Path, files: list[str], train: str
) -> None:
    for name in files:
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text("from datasets import folder\nimport wandb\n")
    (tmp_path / "code/wandb/run-1").mkdir(parents=True)  # what a run has left
    (tmp_path / "code/wandb/run-1/notes").touch()
    spec = with_requirements("[torch==2.4.0]").replace("script: t.py", train)
    found = [*check(read(spec.encode(), "a.yaml")["sky"].job, tmp_path)]
    assert [each.problem.split(",")[0] for each in found] == ["w.py:2 imports wandb"]


def test_the_table_is_closed_and_has_the_names_of_the_index() -> None:
    assert all(name == name.lower().replace("_", "-") for name in _NEEDS)
    assert {name for needs in _NEEDS.values() for name in needs.split()} <= _NEEDS.keys()
