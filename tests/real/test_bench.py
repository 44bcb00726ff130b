"""`ddpgen bench` of real jobs: on this machine, stopped half-way, on hosts, on Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real import batch, fleet, jobs
from tests.real.conftest import NewSlurm
from tests.real.rig import Host, Rig
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
TOY = {"workload": "toy", "steps": 200, "global_batch_size": 8, "micro_batch_size": 1}


def begin(place: Path, spec: dict[str, Any], *options: str, **env: str) -> subprocess.Popen[str]:
    return jobs.begin(place, spec, "bench", *options, **env)


def found(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((place / "f.json").read_text())["rows"]
    return rows


@pytest.mark.nightly
def test_one_and_two_processes_here(tmp_path: Path) -> None:
    spec = jobs.spec(TOY, rendezvous={"launcher": "env"})
    done = begin(tmp_path, spec, "--shapes", "1,2", "--repeats", "1", "--steps", "20")
    _, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert "all shapes gave the same losses, bit for bit, in 20 steps\njob: 15 steps" in err
    one, two = found(tmp_path)
    assert (one["processes"], two["processes"]) == (1, 2)
    for row in (one, two):
        assert 0 < row["least_step_s"] <= row["step_s"] <= row["most_step_s"]
        assert row["communication_s"] + row["waiting_s"] + row["batches_s"] < row["step_s"]
    assert sorted(path.name for path in (tmp_path / "build/checkpoints").iterdir()) == [
        "job-bench-1",
        "job-bench-2",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C"),
        pytest.param(os.kill, signal.SIGTERM, id="TERM"),
    ],
)
def test_a_stop_leaves_the_table_of_the_runs_so_far(
    tmp_path: Path, send: Callable[[int, int], None], number: int
) -> None:
    train = {**TOY, "workload": jobs.PACED, "args": {"pause": 0.02}}
    (tmp_path / "paced.py").write_text(jobs.PACED_TOY)
    spec = jobs.spec(train, rendezvous={"launcher": "env"}, code=["paced.py"])
    running = begin(tmp_path, spec, "--shapes", "1,2", "--repeats", "1", "--steps", "20")
    assert running.stderr is not None
    for awaited in ("bench: shape 2, run 1 of 1", "step  5/20"):
        assert any(awaited in line for line in running.stderr), "it has ended"
    send(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 75, err
    assert "asking for a clean stop" in err
    assert "killing" not in err
    assert "bench: ended in shape 2; the table is of the runs before" in err
    assert "\none run: there are no other losses" in err
    assert [row["shape"] for row in found(tmp_path)] == ["1"]


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_two_hosts_beside_this_machine_and_the_prediction(tmp_path: Path) -> None:
    args = {"hidden": 1024}
    with Rig([Host("desk", nic="eth0"), Host("laptop", nic="wlan0")]) as rig:
        for host in rig:
            host.rate(100)
        spec = fleet.spec(["desk", "laptop"], {**TOY, "args": args}, name="wire")
        options = ["--shapes", "1,hosts", "--repeats", "2", "--steps", "20", "--link", "100 Mbit/s"]
        done = begin(tmp_path, spec, *options, **fleet.way_in(rig))
        _, err = done.communicate(timeout=240)
        assert rig.strays(within=5) == []
    assert done.returncode == 0, err
    assert "all shapes gave the same losses, bit for bit, in 20 steps\n" in err
    one, hosts = found(tmp_path)
    assert (one["runs"], hosts["runs"], hosts["processes"]) == (2, 2, 2)
    assert one["predicted_s"] is None
    assert hosts["predicted_s"] > 0


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    return new_slurm(nodes=2, accounting=True, MinJobAge=60)


@pytest.mark.nightly
def test_slurm_from_elsewhere_beside_this_machine(tmp_path: Path, cluster: Slurm) -> None:
    tier = {"login": "ctl", "dir": "/shared/my jobs"}
    spec = batch.spec("wire", nodes=2, tier=tier) | {"train": TOY, "rendezvous": {"timeout": "60s"}}
    spec["targets"]["local"] = {"nodes": 1}
    ssh = f"ssh -F {cluster.rig.ssh_config}"
    done = begin(
        tmp_path, spec, "--shapes", "1,slurm", "--repeats", "2", "--steps", "20", DDPGEN_SSH=ssh
    )
    _, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    assert "all shapes gave the same losses, bit for bit, in 20 steps\n" in err
    one, slurm = found(tmp_path)
    assert (one["runs"], slurm["runs"], slurm["processes"]) == (2, 2, 2)
