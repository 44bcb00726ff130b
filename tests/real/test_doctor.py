"""When training hangs: the rank that holds it up is named, by the doctor and in the job's own log."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
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


Said = subprocess.CompletedProcess[str]


def wait_for(ask: Callable[[], Said], pattern: str, code: int) -> str:
    """What the doctor says as soon as it says so."""
    began = time.monotonic()
    while not re.search(pattern, (said := ask()).stdout, re.MULTILINE):
        assert time.monotonic() - began < 60, said.stdout + said.stderr
        time.sleep(1)  # two cores have more to do than to look
    assert said.returncode == code, said.stdout
    return said.stdout


def test_a_worker_stuck_in_the_users_code_is_named_with_its_line(tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(STUCK.splitlines(), 1) if "HERE" in text)
    own = {"workload": "mine.py:build", "args": {}, "micro_batch_size": 1, "global_batch_size": 2}
    spec = jobs.spec(
        {**fleet.TOY, **own, "steps": 1_000_000}, procs_per_node=2, restarts=0,
        checkpoint={"dir": str(tmp_path / "ckpt"), "every": "100 steps"},
        rendezvous={"timeout": "60s", "collective_timeout": "26s"},
    )  # fmt: skip
    job = jobs.Job(jobs.render(tmp_path / "job", spec, {"mine.py": STUCK}))
    job.until_step(30)
    stands = rf"Rank 1 on \S+ stands at step 40, forward, mine\.py:{line} in settle for \d+ s"
    # Both in one page: rank 1 may stand there before the other has come to wait for it.
    both = rf"(?s)\A(?=.*{stands})(?=.*^Rank 0 waits in step 40, )"
    said = wait_for(lambda: jobs.ddpgen("doctor", tmp_path / "ckpt"), both, code=1)
    assert f"  mine.py:{line} in settle" in said
    job.until(rf"rank 0: rank 1 on \S+ stands at step 40, forward, mine\.py:{line} in settle")
    job.until(r"rank 0: rank 0 waited in step 40")
    assert job.end() == 1, job.output


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
        assert re.search(r"b itself stood still for \d+ s, frozen or asleep", driver.output)
        assert "on a have not been heard of" not in driver.output
