"""Scripts in a framework's idiom on two hosts: stopped, killed, and without a checkpoint on one of them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig
from tests.real.scripts import FRAMEWORKS, LONG, SCRIPTS, Script

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.mark.usefixtures("rig_possible")
@pytest.mark.parametrize("name", SCRIPTS)
def test_on_two_hosts_that_share_the_directory_it_is_stopped_killed_and_goes_on(
    name: str, tmp_path: Path
) -> None:
    whole, script = Script(name, tmp_path / "whole"), Script(name, tmp_path / "hosts")
    whole.argument = script.argument = LONG[name]
    whole.run()  # two processes, as on the hosts
    spec = yaml.safe_load((jobs.ROOT / "examples" / f"{name}.yaml").read_text())
    code = {"train.py": (jobs.ROOT / "examples" / "code" / name / "train.py").read_text()}
    spec |= {
        "python": str(FRAMEWORKS / "python"),
        "procs_per_node": 1,
        "targets": {"hosts": {"hosts": ["desk", "laptop"], "dir": "/shared/ddpgen"}},
    }
    bundle = jobs.render(tmp_path / "hosts", spec, code, target="hosts")
    with Rig([Host(each, shared="/shared") for each in ("desk", "laptop")]) as rig:
        script.move(rig.shared / "ddpgen" / "checkpoints" / name)
        driver = fleet.Driver(rig, bundle, LONG[name])
        script.wait_for_rows(driver, 3)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output
        driver = fleet.Driver(rig, bundle, LONG[name])
        script.wait_for_rows(driver, 3)
        rig["laptop"].kill_all()
        assert driver.end() != 0, driver.output
        driver = fleet.Driver(rig, bundle, LONG[name])
        assert driver.end() == 0, driver.output
        assert rig.strays(within=10) == []
        if name == "lightning":  # a stop in mid-epoch changes its bits
            assert script.weights().keys() == whole.weights().keys()
        else:
            jobs.assert_same_bits(script.weights(), whole.weights())


APART = """\
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
if {goes_on}:
    kept = torch.load("ckpt.pt", weights_only=True)
    model.load_state_dict(kept["model"])
    step = kept["step"]
print("begins at", step, flush=True)
while step < 100000:
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    step += 1
    time.sleep(0.05)
    if step % 10 == 0 and dist.get_rank() == 0:
        torch.save({{"model": model.state_dict(), "step": step}}, "ckpt.pt")
"""
BY_ARGUMENT = "'--resume' in sys.argv", {"exists": "ckpt.pt", "args": "--resume"}
BY_ITSELF = "os.path.exists('ckpt.pt')", {}


@pytest.mark.usefixtures("rig_possible")
@pytest.mark.parametrize(
    ("goes_on", "resume", "code", "says"),
    [
        (*BY_ARGUMENT, 69, "DIR007   laptop  desk has {kept} of step {step}, and laptop has none"),
        (*BY_ITSELF, 1, "desk resumes from {kept} of step {step}, and laptop begins at step 0; copy it"),
    ],
)  # fmt: skip
def test_hosts_of_which_one_lacks_the_checkpoint_do_not_train_over_it(
    goes_on: str, resume: dict[str, str], code: int, says: str, tmp_path: Path
) -> None:
    spec = fleet.spec(["desk", "laptop"], rendezvous={"launcher": "env"})
    spec |= {"code": "code", "train": {"script": "loop.py", "resume": resume}}
    text = APART.format(goes_on=goes_on)
    bundle = jobs.render(tmp_path, spec, {"loop.py": text}, target="hosts")
    with Rig([Host("desk"), Host("laptop")]) as rig:
        place = f"{rig['desk'].home}/ddpgen/checkpoints/job/work/ckpt.pt"
        kept, copy = rig["desk"].path(place), rig["laptop"].path(place)
        driver = fleet.Driver(rig, bundle)
        while not kept.exists():
            assert driver.process.poll() is None, driver.output
            time.sleep(0.1)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output

        before = kept.read_bytes()
        step = torch.load(kept, weights_only=True)["step"]
        driver = fleet.Driver(rig, bundle)
        assert driver.end() == code, driver.output
        assert says.format(kept=place, step=step) in driver.output
        assert kept.read_bytes() == before

        copy.write_bytes(before)
        driver = fleet.Driver(rig, bundle)
        for _ in range(2):
            driver.until(f"begins at {step}")
        while kept.read_bytes() == before:
            assert driver.process.poll() is None, driver.output
            time.sleep(0.1)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output
        assert rig.strays(within=30) == []
