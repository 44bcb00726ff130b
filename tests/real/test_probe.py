"""`ddpgen probe` on two hosts, over links of a known rate: its figures beside iperf3's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), pytest.mark.nightly]


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
    """What `ddpgen probe` prints, and the figures that it copies."""
    (place / "job.yaml").write_text(yaml.safe_dump({**spec, "code": None, "train": TOY}))
    done = subprocess.run(
        [sys.executable, "-m", "ddpgen", "probe", "job.yaml", "--target", "hosts", "--json", "f.json"],
        env={**os.environ, **fleet.way_in(rig), "PYTHONPATH": str(jobs.ROOT)}, cwd=place,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((place / "f.json").read_text())
    return done.stdout, found


TOY = {"workload": "toy", "steps": 10, "global_batch_size": 8, "micro_batch_size": 1}
