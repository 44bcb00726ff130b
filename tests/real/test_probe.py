"""`ddpgen probe`: its figures beside iperf3's on two hosts over links of a known rate; stopped half-way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C"),
        pytest.param(os.kill, signal.SIGTERM, id="TERM", marks=pytest.mark.nightly),
    ],
)
def test_a_stop_leaves_the_figures_so_far(
    tmp_path: Path, send: Callable[[int, int], None], number: int
) -> None:
    spec = jobs.spec(TOY, procs_per_node=2, rendezvous={"launcher": "env"})
    words = ("probe", "--target", "local")
    running = jobs.begin(tmp_path, spec, *words)
    assert running.stderr is not None
    assert any("all-reduce" in line for line in running.stderr), "it has ended"
    send(running.pid, number)
    _, output = running.communicate(timeout=60)
    assert running.returncode == 75, output
    found = json.loads((tmp_path / "f.json").read_text())
    assert not found["complete"]
    assert found["barrier_seconds"] > 0
    assert 0 < len(found["collectives"]) < 18
    assert "killing" not in output


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
@pytest.mark.parametrize("megabits", [100, 1000])
def test_the_raw_figure_is_that_of_iperf3_and_the_collectives_come_close(
    tmp_path: Path, megabits: int
) -> None:
    assert shutil.which("iperf3"), "apt install iperf3"
    with Rig([Host("desk", nic="eth0"), Host("laptop", nic="wlan0")]) as rig:
        for host in rig:
            host.rate(megabits)
        iperf3 = measured_by_iperf3(rig)
        spec = fleet.spec(["desk", "laptop"], name="wire", rendezvous={"timeout": "60s"})
        output, found = probe(rig, tmp_path, spec)
        assert rig.strays(within=5) == []
    (pair,) = found["pairs"]
    assert pair["tcp_bandwidth"] == pytest.approx(iperf3, rel=0.1)
    assert found["complete"]
    assert all(each["correct"] for each in found["collectives"])
    assert "all-reduce takes " in found["verdict"]
    takes = [int(part) for part in re.findall(r"takes (\d+)%", found["verdict"])]
    assert all(50 < part <= 110 for part in takes), output
    assert found["nics"]["laptop"]["name"] == "wlan0"
    assert found["nics"]["laptop"]["kind"] == "Wi-Fi"


def measured_by_iperf3(rig: Rig) -> float:
    """Bytes a second from laptop to desk, on an idle link."""
    server = rig["desk"].popen(
        ["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():
        pass
    client = ["iperf3", "-c", "desk", "-t", "3", "-O", "1", "-J"]
    said, _ = rig["laptop"].popen(client, stdout=subprocess.PIPE, text=True).communicate(timeout=30)
    server.communicate(timeout=30)
    return float(json.loads(said)["end"]["sum_received"]["bits_per_second"]) / 8


def probe(rig: Rig, place: Path, spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the output of `ddpgen probe` for people, and its figures."""
    spec = {**spec, "code": None, "train": TOY}
    running = jobs.begin(place, spec, "probe", "--target", "hosts", **fleet.way_in(rig))
    _, output = running.communicate(timeout=240)
    assert running.returncode == 0, output
    found: dict[str, Any] = json.loads((place / "f.json").read_text())
    return output, found


TOY = {"workload": "toy", "steps": 10, "global_batch_size": 8, "micro_batch_size": 1}
