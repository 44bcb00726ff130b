"""When training hangs: the rank that holds it up is named, by the doctor and in the job's own log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
TOY: dict[str, Any] = {
    **fleet.TOY,
    "steps": 1_000_000,
    "global_batch_size": 24,
    "micro_batch_size": 4,
    "args": {"pause": 0.02, "hidden": 64},
}
STUCK = """\
import time
import torch

from train.workload import Workload


def settle(step, rank):
    while step >= 40 and rank == 1:
        time.sleep(0.2)  # HERE


def build(context):
    model = torch.nn.Linear(4, 2)
    data = [(torch.randn(4), torch.zeros(2)) for _ in range(64)]
    calls = []

    def loss(model, batch):
        calls.append(1)
        settle(len(calls) - 2, context.rank)  # two came before the first step
        inputs, targets = batch
        return torch.nn.functional.mse_loss(model(inputs), targets)

    return Workload(model, data, loss)
"""


def started(place: Path, train: dict[str, Any], timeout: str, **job: Any) -> jobs.Job:
    spec = jobs.spec(
        {**TOY, **train},
        procs_per_node=3,
        restarts=0,
        checkpoint={"dir": str(place / "ckpt"), "every": "100 steps"},
        rendezvous={"timeout": "60s", "collective_timeout": timeout},
    )
    return jobs.Job(jobs.render(place / "job", spec, **job))


Said = subprocess.CompletedProcess[str]


def doctor(directory: Path, *options: str) -> Said:
    return jobs.ddpgen("doctor", directory, *options)


def wait_for(ask: Callable[[], Said], pattern: str, code: int) -> str:
    """What the doctor says as soon as it says so."""
    began = time.monotonic()
    while not re.search(pattern, (said := ask()).stdout, re.MULTILINE):
        assert time.monotonic() - began < 60, said.stdout + said.stderr
        time.sleep(0.3)  # two cores have more to do than to look
    assert said.returncode == code, said.stdout
    return said.stdout


def end(job: jobs.Job) -> None:
    job.process.send_signal(signal.SIGTERM)
    job.end()


@pytest.mark.nightly
def test_a_healthy_run_has_nothing_odd_and_leaves_no_heartbeat(tmp_path: Path) -> None:
    job = started(tmp_path, {}, "60s")
    job.until_step(100)
    well = r"^All ranks beat and go on, at step \d+\.$"
    said = wait_for(lambda: doctor(tmp_path / "ckpt"), well, code=0)
    assert len(re.findall(r"goes on", said)) == 3
    page = json.loads(doctor(tmp_path / "ckpt", "--json").stdout)
    assert [each["beat"]["pid"] for each in page["ranks"]] == job.workers()
    (tmp_path / "ckpt" / "stop").touch()
    assert job.end() == 75, job.output
    ended = doctor(tmp_path / "ckpt")
    assert ended.returncode == 0, ended.stdout
    assert "The job was stopped cleanly" in ended.stdout
    assert not (tmp_path / "ckpt" / "heartbeats").exists()


def test_a_worker_stuck_in_the_users_code_is_named_with_its_line(tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(STUCK.splitlines(), 1) if "HERE" in text)
    train = {"workload": "mine.py:build", "args": {}, "micro_batch_size": 1, "global_batch_size": 3}
    job = started(tmp_path, train, "26s", code={"mine.py": STUCK})
    job.until_step(30)
    stands = rf"Rank 1 on \S+ stands at step 40, forward, mine\.py:{line} in settle for \d+ s"
    # Both in one page: rank 1 may stand there before the others have come to wait for it.
    both = rf"(?s)\A(?=.*{stands})(?=.*^Ranks 0, 2 wait in step 40, )"
    said = wait_for(lambda: doctor(tmp_path / "ckpt"), both, code=1)
    assert f"  mine.py:{line} in settle" in said
    job.until(rf"rank [02]: rank 1 on \S+ stands at step 40, forward, mine\.py:{line} in settle")
    job.until(r"rank [02]: ranks 0, 2 waited in step 40")
    assert job.end() == 1, job.output


@pytest.mark.nightly
def test_a_killed_worker_is_gone(tmp_path: Path) -> None:
    job = started(tmp_path, {}, "30s")
    job.until_step(100)
    pid = job.workers()[2]
    os.kill(pid, signal.SIGKILL)
    assert job.end() == 1, job.output
    assert re.search(rf"rank 2 on \S+ \(process {pid}\) ended without an exception", job.output)
    said = doctor(tmp_path / "ckpt")
    assert said.returncode == 1
    assert f"(process {pid}) ended without an exception" in said.stdout


def ask(rig: Rig) -> Said:
    """The doctor on host a."""
    place = f"{rig['a'].home}/ddpgen"
    words = [sys.executable, "-m", "train", "doctor", f"{place}/checkpoints/frozen"]
    return rig["a"].run(words, cwd=f"{place}/frozen")


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_a_frozen_host_is_named_on_the_other_and_by_the_job(tmp_path: Path) -> None:
    spec = fleet.spec(
        ["a", "b"], {"steps": 1_000_000}, name="frozen", restarts=0, tier={"procs_per_node": 2},
        rendezvous={"timeout": "60s", "collective_timeout": "25s"},
    )  # fmt: skip
    bundle = jobs.render(tmp_path, spec, target="hosts")
    with Rig([Host("a"), Host("b")]) as rig:
        driver = fleet.Driver(rig, bundle)
        driver.until_step(30)
        wait_for(lambda: ask(rig), "All ranks beat and go on", code=0)
        rig["b"].freeze()
        said = wait_for(
            lambda: ask(rig), r"Ranks 2-3 on b have not been heard of for \d+ s", code=1
        )
        assert re.search(r"; rank 3 last stood at step \d+, [a-z ]+, \S+:\d+ in ", said)
        assert re.search(r"^  ok +b \(192\.168\.7\.\d\) answers", said, re.MULTILINE)
        driver.until(r"a +\| ddpgen rank [01]: ranks 2-3 on b have not been heard of for \d+ s")
        rig["b"].thaw()
        driver.end()
