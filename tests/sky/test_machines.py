"""The exact bash that SkyPilot runs on each machine, on two machines.

Every story ends as SkyPilot sees it, by the exit codes that it acts on: 0 done, 175 start it again, 130
leave it, 1 failed, 69 it could not start. Whole recoveries are told in tests/real/test_sky_jobs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.ci import do_without
from tests.real import jobs
from tests.real.rig import Host, Rig, unavailable
from tests.sky import machines
from tests.sky.machines import EVERY, STEPS, Task, ends, said
from tests.sky.skypilot import SkyPilot

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MakeTask = Callable[..., Task]


@pytest.fixture(scope="module")
def rig(sky_possible: None) -> Iterator[Rig]:
    do_without("rig of hosts", unavailable())
    with Rig([Host("m0", shared=machines.BUCKET), Host("m1", shared=machines.BUCKET)]) as rig:
        yield rig


@pytest.fixture
def task(skypilot: SkyPilot, rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> MakeTask:
    """A task, called after the test: the tests share machines and bucket, and nothing in them."""
    name = re.sub("[^A-Za-z0-9]+", "-", request.node.name)[-40:].strip("-")

    def task(**job: object) -> Task:
        return Task(skypilot, rig, tmp_path, machines.spec(name, **job))

    return task


OWN_LOOP = Path(__file__).parents[2] / "examples" / "code" / "own_loop" / "my_train.py"


@pytest.mark.nightly
def test_a_loop_of_your_own_stops_for_the_object_and_the_next_task_goes_on(
    skypilot: SkyPilot, rig: Rig, tmp_path: Path
) -> None:
    train = {"script": OWN_LOOP.name, "args": {"steps": 1_000_000}}
    wanted = {**machines.spec("own-loop"), "train": train}
    job = Task(skypilot, rig, tmp_path, wanted, {OWN_LOOP.name: OWN_LOOP.read_text()})
    checkpoint = job.bucket / "checkpoint.pt"
    runs = job.start()
    job.until(checkpoint.exists, runs)
    # For a while the machine's own disk does not take it.
    in_the_way = job.directory(rig["m0"]) / "stop"
    in_the_way.symlink_to("nowhere")
    (job.bucket / "stop").write_text("")
    runs[0].until("a stop was asked for in")
    in_the_way.unlink()
    assert ends(runs) == [130, 130], said(runs)
    assert said(runs).count(f"a stop was asked for in {machines.BUCKET}/own-loop") == 1
    stopped_at = torch.load(checkpoint, weights_only=True)["step"]
    assert stopped_at > 0
    # A recovery stays stopped, a task launched by somebody does not.
    runs = job.start()
    assert ends(runs) == [130, 130], said(runs)
    assert (job.bucket / "stop").exists()
    job.another()
    runs = job.start(DDPGEN_ARGS=f"--steps={stopped_at + 100}")
    assert ends(runs) == [0, 0], said(runs)
    assert torch.load(checkpoint, weights_only=True)["step"] == stopped_at + 100
    assert not [*job.bucket.glob("stop*")]
    assert rig.strays(within=30) == []


@pytest.mark.nightly
def test_sky_cancel_loses_no_step(task: MakeTask, rig: Rig) -> None:
    job = task(train={"args": {"pause": 0.5}})
    runs = job.start()
    job.until(lambda: job.step() >= EVERY, runs)
    job.cancel()
    assert ends(runs) == [175, 175], said(runs)
    steps = [row["step"] for row in jobs.rows(job.directory(rig["m0"]))]
    assert job.step() == steps[-1]
    assert steps[-1] < STEPS
    assert rig.strays(within=30) == []


def test_a_bucket_that_is_not_mounted_is_no_directory_to_write_into(
    task: MakeTask, rig: Rig
) -> None:
    job = task(tier={"bucket": {"url": "s3://my-checkpoints", "path": "/bucket"}})
    for machine in job.machines:
        machine.run(["mkdir", "/bucket"], user="root", check=True)
    runs = job.start()
    assert ends(runs) == [69, 69], said(runs)
    assert said(runs).count("s3://my-checkpoints is not mounted at /bucket") == 2
    assert not [*rig["m0"].path("/bucket").iterdir(), *rig["m1"].path("/bucket").iterdir()]


# What stands in the log of a mount that has uploaded everything.
FLUSHED = "vfs cache: cleaned: objects 3 (was 3) in use 0, to upload 0, uploading 0, total size 1Ki"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param({}, 0, marks=pytest.mark.nightly),
        ({"SKYPILOT_TASK_ID": None}, 69),
        ({"DDPGEN_ARGS": "--no-such"}, 2),
    ],
)
def test_however_it_ends_skypilot_waits_for_the_uploads_of_a_cached_mount(
    task: MakeTask, rig: Rig, how: dict[str, str], code: int
) -> None:
    """SkyPilot's own lines behind ours do that, in the same bash: nothing of ours may leave it early."""
    job = task(train={"steps": 2})
    for machine in job.machines:
        machine.run(["mkdir", "-p", ".sky/rclone_log", "bin"], check=True)
        machine.path(".sky/rclone_log/mount.log").write_text(f"{FLUSHED}\n")
        shim = machine.path("bin/findmnt")
        shim.write_text("#!/bin/sh\necho /checkpoints rclone fuse.rclone rw\n")
        shim.chmod(0o755)
    runs = job.start(run=f'PATH="$HOME/bin:$PATH"\n{job.read["run"]}', **how)
    assert ends(runs) == [code, code], said(runs)
    assert said(runs).count("skypilot: cached mount upload complete") == 2
