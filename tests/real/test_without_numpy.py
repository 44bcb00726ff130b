"""Hosts that have torch and nothing else: no numpy, through which much of torch passes its objects."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.real import jobs

NO_NUMPY = 'raise ModuleNotFoundError("No module named numpy", name="numpy")\n'


@pytest.fixture
def without_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no" / "numpy").mkdir(parents=True)
    (tmp_path / "no" / "numpy" / "__init__.py").write_text(NO_NUMPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "no"))


TOY = {"workload": "toy", "steps": 4, "global_batch_size": 8, "micro_batch_size": 4}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "train",
    [
        pytest.param(TOY, id="toy"),
        pytest.param({**jobs.GPT, "steps": 4}, id="gpt"),
    ],
)
def test_built_in_workloads_train_and_go_on(
    train: dict[str, Any], without_numpy: None, tmp_path: Path
) -> None:
    job = jobs.spec(train, procs_per_node=2, checkpoint={"every": "1 steps", "keep": 9})
    bundle = jobs.render(tmp_path, job)
    ended = jobs.run(bundle)
    assert ended.process.returncode == 0, ended.output
    (directory,) = (tmp_path / "checkpoints").iterdir()
    weights = jobs.final_tensors(directory)
    for last in sorted(directory.glob("step-*"))[2:]:
        shutil.rmtree(last)
    ended = jobs.run(bundle)
    assert ended.process.returncode == 0, ended.output
    assert "Traceback" not in ended.output
    jobs.assert_same_bits(jobs.final_tensors(directory), weights)
