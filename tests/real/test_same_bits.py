"""The same spec on 1, 2, 3 and 4 processes ends in the same weights, to the bit.

By the launch script and torchrun; what decides it is shown without them in tests/train/test_same_bits.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_digits

from tests.real import jobs
from tests.train.workloads.http_files import serving
from tests.train.workloads.idx_files import image_set

pytestmark = [pytest.mark.real, pytest.mark.nightly]
PROCESSES = (1, 2, 3, 4)


def trained(
    tmp_path: Path, train: dict[str, Any], processes: int, code: dict[str, str] | None = None
) -> Path:
    bundle = jobs.render(
        tmp_path / str(processes), jobs.spec(train, procs_per_node=processes), code
    )
    done = jobs.run(bundle)
    assert done.process.returncode == 0, done.output
    assert f"{processes} processes, backend gloo" in done.output.replace(
        "1 process,", "1 processes,"
    )
    return tmp_path / str(processes) / "checkpoints" / "job"


def assert_all_equal(directories: list[Path]) -> None:
    expected = jobs.final_tensors(directories[0])
    history = [(row["step"], row["loss"], row["lr"]) for row in jobs.rows(directories[0])]
    evaluations = [without_marks(row) for row in jobs.rows(directories[0], "eval")]
    assert history
    assert evaluations
    for directory in directories[1:]:
        jobs.assert_same_bits(jobs.final_tensors(directory), expected)
        assert [(r["step"], r["loss"], r["lr"]) for r in jobs.rows(directory)] == history
        assert [without_marks(row) for row in jobs.rows(directory, "eval")] == evaluations


def without_marks(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("attempt", "time", "generation")}


def test_gpt_with_dropout(tmp_path: Path) -> None:
    train = {**jobs.GPT, "steps": 12, "eval_every": "5 steps"}
    assert_all_equal([trained(tmp_path, train, n) for n in PROCESSES])


def test_mnist_with_batch_norm_downloaded_from_a_server(tmp_path: Path) -> None:
    digits = load_digits()
    images = (digits.images * 15).astype("uint8")
    with serving(image_set(images, digits.target, held_out=197)) as site:
        train = {
            "workload": "mnist",
            "epochs": 0.5,
            "global_batch_size": 72,
            "micro_batch_size": 12,
            "optimizer": "sgd",
            "lr": 0.05,
            "args": {
                "url": site.url,
                "data_dir": str(tmp_path / "data"),
                "sha256": sha256_of(site.files),
                "batch_norm": True,
                "dropout": 0.1,
            },
        }
        directories = [trained(tmp_path, train, n) for n in PROCESSES]
        # Four files, fetched once each: by the first job, by one of its processes.
        assert len(site.requests) == 4
    assert_all_equal(directories)
    tensors = jobs.final_tensors(directories[0])
    means = [t for name, t in tensors.items() if name.endswith("running_mean")]
    assert means
    assert all(t.abs().sum() > 0 for t in means)


def sha256_of(files: dict[str, bytes]) -> dict[str, str]:
    import hashlib

    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_uneven_shares_and_worker_processes_for_the_data_change_nothing(tmp_path: Path) -> None:
    train = {**jobs.GPT, "steps": 6}
    expected = jobs.final_tensors(trained(tmp_path, train, 1))
    bundle = jobs.render(tmp_path / "uneven", jobs.spec(train, procs_per_node=2))
    done = jobs.run(bundle, "--shares=7,1", "--data-workers=2")
    assert done.process.returncode == 0, done.output
    got = jobs.final_tensors(tmp_path / "uneven" / "checkpoints" / "job")
    jobs.assert_same_bits(got, expected)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reduction", ["tree", "allreduce"])
def test_a_run_that_was_stopped_and_resumed_equals_the_undisturbed_one(
    tmp_path: Path, reduction: str
) -> None:
    train = {**jobs.SLOW_GPT, "reduction": reduction, "global_batch_size": 9}
    whole = trained(tmp_path / "whole", train, 3, jobs.SLOW)
    bundle = jobs.render(tmp_path / "halves", jobs.spec(train, procs_per_node=3), jobs.SLOW)
    directory = tmp_path / "halves" / "checkpoints" / "job"
    first = jobs.Job(bundle, env={"SLOW": "0.15"})  # far from its end when the stop arrives
    first.until_step(7)
    (directory / "stop").touch()
    assert first.end() == 75, first.output
    stopped_at = int((directory / "status").read_text().split()[2])
    assert (directory / "status").read_text().startswith("stopped ")
    assert 7 <= stopped_at < 30
    second = jobs.run(bundle)
    assert second.process.returncode == 0, second.output
    assert f"resuming at step {stopped_at} of 30" in second.output
    jobs.assert_same_bits(jobs.final_tensors(directory), jobs.final_tensors(whole))
