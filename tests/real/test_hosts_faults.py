"""What may happen to a handful of machines, done to them for real: power, cables, disks, the driver.

Each story ends in one of two ways: named and clean, with no process left anywhere; or, where the job
is elastic, in the weights of an undisturbed run.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.real import fleet, jobs
from tests.real.conftest import NewRig
from tests.real.rig import Host, Machine, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
NAMES = ["desk", "laptop", "tower"]
PAIR = NAMES[:2]
# Until a host that has gone silent is given up: ssh's 30 s, the collective timeout, torchrun's end.
SILENT_S = 150


@pytest.fixture(scope="module")
def module_rig(new_rig: NewRig) -> Rig:
    return new_rig(*(Host(name) for name in NAMES))


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    """All hosts up and plugged in."""
    for each in module_rig:
        if not each.up:
            each.boot()
        each.plug()
        each.clear_firewall()
    return module_rig


def endless(
    name: str, place: Path, names: Sequence[str] = PAIR, launcher: str = "torchrun"
) -> Path:
    tier = {"rendezvous": {"launcher": launcher}}
    spec = fleet.spec(names, {"steps": 1_000_000}, name=name, tier=tier)
    return jobs.render(place, spec, target="hosts")


@pytest.mark.nightly
def test_a_host_that_loses_its_power_is_named_and_the_others_end(rig: Rig, tmp_path: Path) -> None:
    driver = fleet.Driver(rig, endless("power", tmp_path, NAMES))
    driver.until_step(10)
    rig["tower"].power_off()
    began = time.monotonic()
    assert driver.end() == 1, driver.output
    assert time.monotonic() - began < SILENT_S
    assert "tower: lost: " in driver.output
    assert rig.strays(within=10) == []
    for name in PAIR:  # their last step, and the cause
        word, step, reason = fleet.status(rig, name, "power").split(maxsplit=2)
        assert (word, int(step) >= 10) == ("failed", True)
        assert "tower" in reason


@pytest.mark.nightly
def test_a_cable_pulled_for_five_seconds_costs_five_seconds(rig: Rig, tmp_path: Path) -> None:
    bundles = fleet.both(tmp_path, fleet.spec(NAMES, {"steps": 600}, name="cable"))
    driver = fleet.Driver(rig, bundles[0])
    driver.until_step(20)
    rig["laptop"].unplug()
    time.sleep(5)  # the story itself
    rig["laptop"].plug()
    fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
    assert "1 of 3" not in driver.output  # nothing was started again


def test_a_cable_pulled_for_good_ends_both_sides(rig: Rig, tmp_path: Path) -> None:
    driver = fleet.Driver(rig, endless("for-good", tmp_path))
    driver.until_step(10)
    rig["laptop"].unplug()
    assert driver.end() == 1, driver.output
    assert "laptop: lost: " in driver.output
    # The host that nobody reaches any more notices by itself that its driver is gone.
    assert rig.strays(within=SILENT_S) == []


def test_a_killed_driver_leaves_a_clean_stop_behind(rig: Rig, tmp_path: Path) -> None:
    bundle = endless("driver", tmp_path, launcher="env")  # tests/real/test_hosts.py stops torchrun
    driver = fleet.Driver(rig, bundle)
    driver.until_step(10)
    driver.process.kill()
    driver.end()
    assert rig.strays(within=60) == []
    ends = {fleet.status(rig, name, "driver") for name in PAIR}
    assert len(ends) == 1
    assert ends.pop().startswith("stopped ")


@pytest.mark.nightly
def test_a_killed_worker_is_restarted_by_torchrun_on_all_hosts(rig: Rig, tmp_path: Path) -> None:
    bundles = fleet.both(tmp_path, fleet.spec(PAIR, name="worker"))
    driver = fleet.Driver(rig, bundles[0])
    driver.until_step(10)
    kill_a_worker(rig, "laptop")
    driver.until("resuming at step")
    fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", ["torchrun-static", "env"])
def test_a_killed_worker_has_the_driver_start_all_anew(
    rig: Rig, tmp_path: Path, launcher: str
) -> None:
    name = f"anew-{launcher}"
    tier = {"rendezvous": {"launcher": launcher}}
    bundles = fleet.both(tmp_path, fleet.spec(PAIR, name=name, tier=tier))
    driver = fleet.Driver(rig, bundles[0])
    driver.until_step(10)
    kill_a_worker(rig, "laptop")
    driver.until("starting again, 1 of 3")
    driver.until("resuming at step")
    fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)


def kill_a_worker(rig: Rig, host: str) -> None:
    found = [p for p in rig[host].processes() if "-m train run" in p.command]
    # torchrun's own command line has these words, too.
    workers = [p for p in found if b"\0LOCAL_RANK=" in Path(f"/proc/{p.pid}/environ").read_bytes()]
    assert workers, found
    os.kill(workers[-1].pid, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lose", "restore"), [(Machine.power_off, Machine.boot), (Machine.freeze, Machine.thaw)]
)
@pytest.mark.usefixtures("rig_possible")
def test_an_elastic_job_goes_on_without_a_host_and_takes_it_back(
    lose: Callable[[Machine], object], restore: Callable[[Machine], object], tmp_path: Path
) -> None:
    # So slow that it is not over before node3 may claim its directory again.
    args = {"pause": 0.1, "until": "/shared/hurry"}
    paced = {"workload": jobs.PACED, "args": args, "steps": 600, "log_every": "5 steps"}
    bundles = fleet.example("elastic", tmp_path, **paced)
    names = ("node1", "node2", "node3")
    with Rig([Host(name, shared="/shared") for name in names]) as rig:
        driver = fleet.Driver(rig, bundles[0])
        driver.until("processes on 3 hosts")
        driver.until_step(20)
        lose(rig["node3"])
        driver.until("processes on 2 hosts")
        driver.until("resuming at step")
        restore(rig["node3"])
        driver.until("node3 is back")
        driver.until("processes on 3 hosts")
        (rig.shared / "hurry").touch()
        fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)


@pytest.mark.nightly
def test_an_elastic_job_whose_head_is_lost_goes_on_with_another_head(
    rig: Rig, tmp_path: Path
) -> None:
    # Its checkpoints may have been on the host that is gone: then it begins anew, to the same end.
    bundles = fleet.both(
        tmp_path, fleet.spec(NAMES, {"steps": 400}, name="head", tier={"nodes": "2..3"})
    )
    driver = fleet.Driver(rig, bundles[0])
    driver.until("the head is desk")
    driver.until_step(50)
    rig["desk"].power_off()
    driver.until("the head is (laptop|tower)")
    driver.until("processes on 2 hosts")
    assert driver.end() == 0, driver.output
    rig["desk"].boot()
    jobs.assert_same_bits(
        jobs.final_tensors(fleet.fetched(rig, bundles[0])), fleet.local_tensors(bundles[1])
    )
    assert rig.strays(within=30) == []


def test_a_host_that_cannot_be_reached_is_named_and_nothing_starts(
    rig: Rig, tmp_path: Path
) -> None:
    rig["tower"].power_off()
    driver = fleet.Driver(rig, endless("unreachable", tmp_path, NAMES))
    assert driver.end() == 69, driver.output
    assert "nothing was started" in driver.output
    assert [line for line in driver.lines if line.startswith("ddpgen: tower: ")]
    assert rig.strays(within=30) == []


@pytest.mark.nightly
def test_a_spare_takes_the_place_of_a_host_whose_gpu_driver_fails_twice(
    rig: Rig, tmp_path: Path
) -> None:
    smi = rig["laptop"].path("/usr/local/bin/nvidia-smi")
    smi.parent.mkdir(parents=True, exist_ok=True)
    smi.write_text("#!/bin/sh\necho Unable to determine the device handle\nexit 9\n")
    smi.chmod(0o755)
    # The rig's torch knows no GPU.
    gpus = {"gpus_per_node": 1, "backend": "gloo", "preflight": {"ignore": ["GPU001"]}}
    spec = fleet.spec(NAMES, {"steps": 10}, name="spare", tier={"spares": 1}, **gpus)
    driver = fleet.Driver(rig, jobs.render(tmp_path, spec, target="hosts"))
    code = driver.end()
    smi.unlink()
    assert code == 0, driver.output
    told = "laptop has ended this start by its own fault: GPU006: the GPU driver does not answer"
    assert driver.output.count(told) == 2, driver.output
    assert "ddpgen: in its place: tower" in driver.output
    assert "2 processes on 2 hosts" in driver.output
    assert fleet.status(rig, "tower", "spare").startswith("done 10")
    assert rig.strays(within=10) == []


CRASHING = """
import dataclasses, os
from train.workloads import toy

def build(context, host):
    made = toy.build(context)
    def loss(model, batch):
        if os.environ["DDPGEN_NODE"] == host:
            raise ValueError("odd\\nbatch")
        return made.loss(model, batch)
    return dataclasses.replace(made, loss=loss)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("host", "rank", "restarts"),
    [("laptop", 1, 0), ("desk", 0, 3)],
)
def test_a_crash_of_the_users_code_is_told_by_every_status(
    rig: Rig, tmp_path: Path, host: str, rank: int, restarts: int
) -> None:
    name = f"crash-{host}"
    spec = fleet.spec(PAIR, name=name, restarts=restarts)
    spec["train"] |= {"workload": "mine.py:build", "args": {"host": host}}
    driver = fleet.Driver(rig, jobs.render(tmp_path, spec, {"mine.py": CRASHING}, target="hosts"))
    assert driver.end() == 1, driver.output
    cause = f"rank {rank} in step 1: ValueError: odd batch (mine.py:9 in loss)"
    for each in PAIR:
        told = fleet.status(rig, each, name)
        assert told.startswith("failed 0 "), told
        assert cause in told
    assert f"{host}: crashed: {cause}" in driver.output or restarts, driver.output
    rows = [
        line for line in driver.lines if re.match(r"ddpgen: (desk|laptop) +(crashed|failed)", line)
    ]
    assert len([row for row in rows if cause in row]) == 2, driver.output
    assert f"ddpgen: the last lines of {host}:" in driver.lines


SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2))
if dist.get_rank() == 0:
    lsos
dist.barrier()
"""


@pytest.mark.nightly
def test_all_hosts_end_when_a_script_has_crashed_for_good(rig: Rig, tmp_path: Path) -> None:
    spec = fleet.spec(PAIR, name="twice")
    spec["train"] = {"script": "loop.py"}
    driver = fleet.Driver(rig, jobs.render(tmp_path, spec, {"loop.py": SCRIPT}, target="hosts"))
    driver.until("crashed twice in the same way before its first step")
    began = time.monotonic()
    assert driver.end() == 1, driver.output
    assert time.monotonic() - began < 100  # torchrun's exit barrier takes 300 s
    cause = "NameError: name 'lsos' is not defined (loop.py:9 in <module>)"
    assert re.search(f"ddpgen: desk +failed +1 +.*{re.escape(cause)}", driver.output), driver.output
    assert rig.strays(within=10) == []
