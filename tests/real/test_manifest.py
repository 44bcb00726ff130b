"""What a job leaves behind of itself, as a user starts it: all of it, and no secret."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.real import jobs, planted
from train.run.bundle import unpack
from train.run.provenance import read_manifest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SECRET = "hunter2"
NAMES = (
    "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "GITHUB_TOKEN", "DATABASE_URL",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_DISPLAY_AFFINITY", "NCCL_SECRET", "DDPGEN_PRIVATE", "PS1",
)  # fmt: skip


def tree(bundle: Path) -> dict[str, tuple[int, bytes]]:
    """Each file that the bundle lists, and its list: mode and content."""
    names = ["bundle.json", *json.loads((bundle / "bundle.json").read_bytes())["files"]]
    return {name: ((bundle / name).stat().st_mode, (bundle / name).read_bytes()) for name in names}


@pytest.mark.nightly
def test_a_kill_and_a_stop_are_on_record_and_no_secret_is(tmp_path: Path) -> None:
    spec = jobs.spec(
        {
            **jobs.GPT,
            "workload": jobs.PACED,
            "args": {"pause": 0.02, "until": str(tmp_path / "hurry")},
        },
        procs_per_node=2,
        checkpoint={"every": "4 steps", "keep": 2},
        secrets=planted.field(tmp_path / "token"),
    )
    bundle = jobs.render(tmp_path, spec)
    directory = tmp_path / "checkpoints/job"
    planted.plant(tmp_path / "token")
    secrets = {name: f"/{SECRET}/{number}" for number, name in enumerate(NAMES)}
    secrets |= planted.IN_ENVIRONMENT
    without = jobs.run(bundle, env={**secrets, "HF_TOKEN": ""})
    assert without.process.returncode == 69
    assert "the secret HF_TOKEN is not set, or is empty; export HF_TOKEN" in without.output
    assert not directory.exists()
    with planted.in_no_argument():
        job = jobs.Job(bundle, env=secrets)
        job.until_committed(directory)
        os.kill(job.workers()[0], signal.SIGKILL)
        job.until(r"resuming at step (\d+)")
        job.until_step(1)
        assert planted.workers() == 2
        job.process.send_signal(signal.SIGINT)
        assert job.end() == 75, job.output
    (tmp_path / "hurry").touch()
    done = jobs.run(bundle, env=secrets)
    assert done.process.returncode == 0, done.output

    starts = read_manifest(directory)["starts"]
    assert [(each["end"], each["tier"], each["generation"]) for each in starts] == [
        ("crashed", "local", 1), ("stopped", "local", 2), ("done", "local", 1),
    ]  # fmt: skip
    assert [each["from_step"] for each in starts[1:]] == [each["step"] for each in starts[:2]]
    (name,) = {each["bundle"] for each in starts}
    again = tmp_path / "again"
    unpack(directory, name, again)
    kept, ran = (tree(place) for place in (again, bundle))
    assert kept == ran
    assert "train/__main__.py" in kept
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"manifest.json", "checkpoint.json", "preflight.json"} <= {path.name for path in written}
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert planted.in_files(tmp_path) == [tmp_path / "token"]
