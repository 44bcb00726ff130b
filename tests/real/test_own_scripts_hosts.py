"""Scripts of each framework on two hosts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig
from tests.real.scripts import FRAMEWORKS, LONG, SCRIPTS, Script

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(600)]


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
