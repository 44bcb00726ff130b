"""Before torch starts: interfaces and names that lead astray, named on every host's terminal.

Every fault is done to the hosts for real. The other stories of the kind:
test_preflight_network (ports, firewalls, links), test_preflight_missing (hosts that do not come, ranks),
test_preflight_hosts (versions, disks, limits, GPUs), test_preflight_healthy (no false alarm).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import fleet, jobs, preflight
from tests.real.preflight import NAMES, Stage, as_root, edited
from tests.real.rig import Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OTHERS = ["desk", "tower"]


# Well


def test_hosts_that_are_well_say_so_in_any_order(stage: Stage) -> None:
    job = stage.job()
    for order in (NAMES, ("tower", "laptop", "desk"), ("laptop", "desk", "tower")):
        launch = job.start(*order)
        stage.ends(launch, 0)
        launch.names_only()
        assert "preflight: 3 hosts can start the job" in launch["desk"].text, launch.output
    kept = json.loads(job.kept("desk").read_text())
    assert kept["ok"] is True
    assert sorted(each["host"] for each in kept["hosts"]) == sorted(NAMES)
    for name in NAMES:
        left = {path.name for path in job.kept(name).parent.iterdir()}
        assert left <= {"preflight.json"}, left


def test_the_driver_shows_one_table_and_ends_with_its_verdict(stage: Stage, tmp_path: Path) -> None:
    tier = {"rendezvous": {"timeout": "60s"}}
    good = jobs.render(tmp_path / "good", fleet.spec(NAMES, tier=tier), target="hosts")
    driver = fleet.Driver(stage.rig, good, "--preflight")
    assert driver.end() == 0, driver.output
    assert "3 hosts can start the job" in driver.output
    bad = fleet.spec(["desk", {"name": "laptop", "nic": "enp9s9"}, "tower"], tier=tier)
    driver = fleet.Driver(stage.rig, jobs.render(tmp_path / "bad", bad, target="hosts"))
    assert driver.end() == 69, driver.output
    rows = [line for line in driver.lines if "NIC001" in line and "error" in line]
    # In the end the driver quotes the host that ended first.
    assert {row.split(" | ")[0].strip() for row in rows} == {"desk"}, driver.output
    assert stage.rig.strays(within=30) == []


# Interfaces


def test_an_interface_that_does_not_exist(stage: Stage) -> None:
    launch = stage.launch(["desk", {"name": "laptop", "nic": "enp9s9"}, "tower"])
    stage.ends(launch)
    launch.names("NIC001", "laptop", "enp9s9", "eth0", "192.168.7.2", "eth1", "docker0")
    launch.names_only("NIC001")
    for each in launch.terminals.values():
        assert "preflight: NIC001 on laptop; nothing was started" in each.output, launch.output


@pytest.mark.nightly
def test_an_interface_that_is_down(stage: Stage) -> None:
    as_root(stage.rig["laptop"], "ip", "link", "set", "eth1", "down")
    try:
        launch = stage.launch(["desk", {"name": "laptop", "nic": "eth1"}, "tower"])
        stage.ends(launch)
    finally:
        as_root(stage.rig["laptop"], "ip", "link", "set", "eth1", "up")
    launch.names("NIC002", "laptop", "eth1")
    launch.names_only("NIC002")


def test_an_interface_without_a_cable(stage: Stage) -> None:
    stage.rig["laptop"].unplug("lab")
    launch = stage.launch(["desk", {"name": "laptop", "nic": "eth1"}, "tower"])
    stage.ends(launch)
    launch.names("NIC003", "laptop", "eth1")
    launch.names_only("NIC003")


@pytest.mark.nightly
def test_an_interface_without_an_address(stage: Stage) -> None:
    laptop = stage.rig["laptop"]
    as_root(laptop, "ip", "addr", "flush", "dev", "eth1")
    try:
        launch = stage.launch(["desk", {"name": "laptop", "nic": "eth1"}, "tower"])
        stage.ends(launch)
    finally:
        as_root(laptop, "ip", "addr", "add", f"{laptop.addresses['lab']}/24", "dev", "eth1")
    launch.names("NIC004", "laptop", "eth1")
    launch.names_only("NIC004")


def test_an_interface_whose_first_address_the_others_do_not_reach(stage: Stage) -> None:
    """gloo binds the first address of an interface. One that comes behind the usual one does no harm."""
    laptop = stage.rig["laptop"]
    usual, local = f"{laptop.address}/24", "169.254.7.7/16"
    job = stage.job()
    try:
        for order, code in (((local, usual), preflight.REFUSED), ((usual, local), 0)):
            as_root(laptop, "ip", "addr", "flush", "dev", "eth0")
            for address in order:
                as_root(laptop, "ip", "addr", "add", address, "dev", "eth0")
            launch = job.start()
            stage.ends(launch, code)
            if code:
                launch.names("NIC012", "laptop", "169.254.7.7", "eth0", laptop.address)
                launch.names_only("NIC012")
            else:
                launch.names_only()
    finally:
        as_root(laptop, "ip", "addr", "flush", "dev", "eth0")
        as_root(laptop, "ip", "addr", "add", usual, "dev", "eth0")


def test_a_host_that_is_cut_off_knows_it_and_the_others_miss_it(stage: Stage) -> None:
    stage.rig["laptop"].unplug("lan")
    launch = stage.launch(patience=preflight.MISSING_S)
    stage.ends(launch)
    launch.names("NIC003", "laptop", "eth0", on=["laptop"])
    launch.waits_for("laptop", on=OTHERS)
    for name in OTHERS:
        assert ("HOST001", "laptop") in {(one.code, one.host) for one in launch[name].findings()}


def test_the_loopback_chosen(stage: Stage) -> None:
    # The generator refuses it in a spec, so somebody has written it into the scripts.
    job = stage.job(nic="eth0")
    for name in NAMES:
        edited(job.at(name, f"hosts/{name}.sh"), lambda text: text.replace("=eth0", "=lo"))
    launch = job.start()
    stage.ends(launch)
    for name in NAMES:
        launch.names("NIC005", name, "lo")


def test_docker0_chosen_on_one_host(stage: Stage) -> None:
    launch = stage.launch(["desk", {"name": "laptop", "nic": "docker0"}, "tower"])
    stage.ends(launch)
    launch.names("NIC006", "laptop", "docker0", "eth0", severity="warning")
    launch.names("NIC008", "laptop", "docker0", "172.17.0.1", "192.168.7.1")
    launch.names_only("NIC006", "NIC008")


@pytest.mark.nightly
def test_docker0_chosen_on_all_hosts(stage: Stage) -> None:
    launch = stage.launch(nic="docker0")
    stage.ends(launch)
    launch.names("NIC009", "tower", "172.17.0.1", "docker0", "desk, laptop and tower")
    for name in NAMES:
        launch.names("NIC006", name, "docker0", "eth0", severity="warning")


def test_a_vpn_chosen_where_a_cable_leads_to_the_head(stage: Stage) -> None:
    launch = stage.launch(nic="tailscale0")
    stage.ends(launch, 0)
    for name in NAMES:
        launch.names("NIC007", name, "tailscale0", "eth0", severity="warning")
    launch.names_only("NIC007")


def test_interfaces_on_networks_that_do_not_meet(stage: Stage) -> None:
    for name in OTHERS:
        stage.rig[name].unplug("lab")
    launch = stage.launch(["desk", {"name": "laptop", "nic": "eth1"}, "tower"])
    stage.ends(launch)
    launch.names("NIC008", "laptop", "eth1", "eth0", "10.77.1.2", "192.168.7.1")
    launch.names("NIC011", "laptop", "eth1", "eth0", severity="warning")
    launch.names_only("NIC008", "NIC011")


# Names


NAMED = [{"name": "desk", "address": "head.example"}, "laptop", "tower"]


@pytest.fixture
def called(mended: Rig) -> Iterator[dict[str, str]]:
    """What head.example is on each host, if it is to be anything else than desk's address."""
    before = {each.name: each.path("/etc/hosts").read_text() for each in mended}
    yield {}
    for each in mended:
        each.path("/etc/hosts").write_text(before[each.name])


def call_the_head(stage: Stage, **other: str) -> None:
    for each in stage.rig:
        address = other.get(each.name, stage.rig["desk"].address)
        if address:
            edited(each.path("/etc/hosts"), lambda text, at=address: f"{text}{at} head.example\n")


@pytest.mark.usefixtures("called")
def test_a_name_that_one_host_does_not_know(stage: Stage) -> None:
    call_the_head(stage, laptop="")
    launch = stage.launch(NAMED)
    stage.ends(launch)
    launch.names("NAME001", "laptop", "head.example")


@pytest.mark.usefixtures("called")
def test_a_name_that_is_loopback_on_the_head(stage: Stage) -> None:
    call_the_head(stage, desk="127.0.1.1")
    launch = stage.launch(NAMED)
    stage.ends(launch, 0)
    launch.names("NAME002", "desk", "head.example", "127.0.1.1", severity="warning")
    launch.names_only("NAME002")


@pytest.mark.usefixtures("called")
def test_a_name_that_leads_a_host_to_itself(stage: Stage) -> None:
    call_the_head(stage, laptop="127.0.0.1")
    launch = stage.launch(NAMED)
    stage.ends(launch)
    launch.names("NAME003", "laptop", "head.example", "127.0.0.1")


@pytest.mark.usefixtures("called")
def test_a_name_that_leads_to_another_host(stage: Stage) -> None:
    call_the_head(stage, laptop=stage.rig["tower"].address)
    job = stage.job(NAMED)
    others = job.start("tower", "desk")
    others["desk"].until(r"waiting for laptop\b")  # whom the address belongs to is known by now
    launch = others.joined(job.start("laptop"))
    stage.ends(launch)
    launch.names("NAME004", "laptop", "head.example", "tower", "192.168.7.3")


@pytest.mark.nightly
@pytest.mark.usefixtures("called")
def test_a_name_that_means_another_address_of_the_head_somewhere(stage: Stage) -> None:
    call_the_head(stage, laptop=stage.rig["desk"].addresses["lab"])
    launch = stage.launch(NAMED)
    stage.ends(launch, 0)
    launch.names(
        "NAME005", "laptop", "head.example", "10.77.1.1", "192.168.7.1", severity="warning"
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("called")
def test_a_name_that_no_host_knows(stage: Stage) -> None:
    launch = stage.launch(NAMED)
    stage.ends(launch)
    for name in NAMES:
        launch.names("NAME001", name, "head.example", on=[name])
