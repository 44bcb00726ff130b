"""Every example runs to its end from its bundle; the long ones are cut short by an argument."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.real import jobs
from tests.train.workloads.http_files import serving
from tests.train.workloads.idx_files import image_set

pytestmark = pytest.mark.real
EXAMPLES = jobs.ROOT / "examples"


def rendered(name: str, place: Path) -> Path:
    bundle = place / name
    done = jobs.ddpgen("render", EXAMPLES / f"{name}.yaml", "--target", "local", "-o", bundle)
    assert done.returncode == 0, done.stderr
    return bundle


def with_this_python() -> dict[str, str]:
    """The examples say python3: here it is the one that runs the tests."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_no_example_is_forgotten_here() -> None:
    elsewhere = {
        "three_vms",
        "two_desktops",
        "fast_and_slow",
        "elastic",  # tests/real/test_hosts*.py
        "cluster",
        "cluster_gpu",  # tests/real/test_slurm_jobs.py
        "spot",
        "spot_cpu",  # tests/sky
        "huggingface",
        "lightning",
        "accelerate",
        "fabric",
        "nanogpt",
        "resnet",
        "classifier",  # tests/real/test_own_scripts.py
    }
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == elsewhere | {
        "gpt", "mnist", "own_loop", "own_model", "toy",
    }  # fmt: skip


# What the documents have people type trains toy and gpt (tests/project/test_docs.py).
@pytest.mark.nightly
def test_a_model_of_ones_own_is_trained_to_its_end(tmp_path: Path) -> None:
    job = jobs.run(rendered("own_model", tmp_path), "--steps=40", env=with_this_python())
    assert job.process.returncode == 0, job.output
    (directory,) = (tmp_path / "checkpoints").iterdir()
    losses = [row["loss"] for row in jobs.rows(directory)]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert jobs.rows(directory, "eval")


@pytest.mark.nightly
def test_mnist_fetches_its_data_and_learns_digits(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * 15).astype("uint8")
    with serving(image_set(images, digits.target, held_out=197)) as site:
        sha256 = {name: hashlib.sha256(data).hexdigest() for name, data in site.files.items()}
        job = jobs.run(
            rendered("mnist", tmp_path),
            "--epochs=6",  # the examples' one epoch is of a data set forty times as large
            f"--arg=url={json.dumps(site.url)}",
            f"--arg=data_dir={json.dumps(str(tmp_path / 'data'))}",
            f"--arg=sha256={json.dumps(sha256)}",
            env=with_this_python(),
        )
    assert job.process.returncode == 0, job.output
    (directory,) = (tmp_path / "checkpoints").iterdir()
    assert jobs.rows(directory, "eval")[-1]["accuracy"] > 0.5  # guessing gives 0.1


@pytest.mark.nightly
def test_an_own_loop_is_stopped_goes_on_and_ends(tmp_path: Path) -> None:
    bundle = rendered("own_loop", tmp_path)
    # More than the example's 400, most of which are over before the stop arrives.
    first = jobs.Job(bundle, "--steps=1000000", env=with_this_python())
    first.until(r"step")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 75, first.output
    (directory,) = (tmp_path / "checkpoints").iterdir()
    assert (directory / "status").read_text().startswith("stopped ")
    stopped_at = torch.load(directory / "checkpoint.pt", weights_only=True)["step"]
    again = jobs.run(bundle, f"--steps={stopped_at + 100}", env=with_this_python())
    assert again.process.returncode == 0, again.output
    assert (directory / "status").read_text().startswith("done ")


@pytest.mark.nightly
def test_a_terminal_that_is_closed_ends_the_job_cleanly(tmp_path: Path) -> None:
    job = jobs.spec({**jobs.GPT, "steps": 100_000, "schedule": "constant"}, procs_per_node=2)
    bundle = jobs.render(tmp_path, job)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # Its controlling terminal, so that the terminal's end is a SIGHUP.
        ["setsid", "--ctty", "bash", str(bundle / "local.sh")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while not re.search(rb"step +3/", seen):
        seen += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(jobs.PATIENCE_S) == 75
    status = (tmp_path / "checkpoints" / "job" / "status").read_text()
    assert status.startswith("stopped ")
