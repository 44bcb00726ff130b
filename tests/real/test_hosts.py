"""Jobs over several hosts, through run.sh and real sshd, to the bits of one machine.

The stories of the seed set-ups: virtual machines on a bridge, machines on a VPN whose names mislead,
a fast and a slow one on a slow wire; and what a user does with a job that runs on several hosts.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.real import fleet, jobs, planted
from tests.real.conftest import NewRig
from tests.real.rig import Host, Rig
from train.run.bundle import unpack
from train.run.provenance import read_manifest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rig(new_rig: NewRig) -> Rig:
    """Three hosts, each with an interface of another name."""
    return new_rig(
        Host("desk", nic="enp5s0"), Host("laptop", nic="wlan0"), Host("tower", nic="eno1")
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_three_virtual_machines_on_a_bridge_with_static_ranks(tmp_path: Path) -> None:
    hosts = [Host(f"vm{i}", nic="enp1s0", address=f"192.168.122.1{i}") for i in (1, 2, 3)]
    bundles = fleet.example("three_vms", tmp_path)
    with Rig(hosts, subnets={"lan": "192.168.122.0/24"}) as rig:
        driver = fleet.Driver(rig, bundles[0])
        fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
    assert (
        "vm1 | ddpgen: 6 processes on 3 hosts (vm1: 2, micro-batches 0-3; vm2: 2, 4-7; "
        "vm3: 2, 8-11), backend gloo, device cpu"
    ) in driver.lines
    assert "vm1 | ddpgen: vm1: interface enp1s0, address 192.168.122.11" in driver.lines


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_two_machines_on_a_vpn_whose_names_lead_elsewhere(tmp_path: Path) -> None:
    def machine(name: str, address: str, other: str) -> Host:
        networks = {"vpn": ("tailscale0", address), "lan": ("eth0", None)}
        # Debian's 127.0.1.1 for oneself, and nothing at all for the other.
        return Host(name, networks=networks, resolves={name: "127.0.1.1", other: None})

    hosts = [
        machine("desktop", "100.64.0.1", "laptop"),
        machine("laptop", "100.64.0.2", "desktop"),
    ]
    bundles = fleet.example("two_desktops", tmp_path, procs=1, steps=40)
    with Rig(hosts, control=["vpn"]) as rig:
        # The only way is the VPN: what goes by the other network does not arrive.
        for each in rig:
            each.unplug("lan")
        driver = fleet.Driver(rig, bundles[0])
        fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
    output = driver.output
    assert "desktop | ddpgen: desktop: interface tailscale0, address 100.64.0.1" in output
    assert "laptop  | ddpgen: laptop: interface tailscale0, address 100.64.0.2" in output


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_a_fast_and_a_slow_machine_on_a_slow_wire(tmp_path: Path) -> None:
    bundles = fleet.example("fast_and_slow", tmp_path)
    with Rig([Host("i9", nic="enp5s0"), Host("i5", nic="eth0")]) as rig:
        rig["i5"].rate(20)
        driver = fleet.Driver(rig, bundles[0])
        fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
    assert "3 processes on 2 hosts (i9: 2, micro-batches 0-5; i5: 1, 6-7)" in driver.output


@pytest.mark.nightly
def test_a_machine_at_half_speed_computes_less_until_it_has_recovered(
    rig: Rig, tmp_path: Path
) -> None:
    paced = {"pause": 0.04, "pace": 0.02, "until": f"{rig['desk'].home}/even"}
    train = {"steps": 120, "micro_batch_size": 4, "args": paced}
    bundles = fleet.both(tmp_path, fleet.spec(["desk", "laptop"], train, name="uneven"))
    rig["desk"].path("even").touch()
    driver = fleet.Driver(rig, bundles[0])
    driver.until("share: auto, micro-batches from step ")
    driver.until_step(40)
    told = fleet.ask(rig, bundles[0], "--status").stdout
    rig["laptop"].path("even").touch()
    driver.until("rank 0 on desk: 6, rank 1 on laptop: 6")
    fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
    (home,) = (bundles[0].parent / "checkpoints").iterdir()
    ranks, changes = (jobs.rows(home, kind) for kind in ("ranks", "shares"))
    (back, *_) = [row["step"] for row in changes if row["shares"] == [6, 6]]
    slow = [row["seconds"] for row in ranks if row["shares"][0] > 6 and row["step"] < back]
    even = [row["seconds"] for row in ranks if row["step"] > back + 5]
    assert statistics.median(slow) < 1.4 * statistics.median(even), (changes, slow, even)
    assert re.search(r"the job: step .* steps/s, micro-batches [789] [345], ", told), told


@pytest.mark.nightly
def test_two_hosts_that_shard_the_optimizer_write_the_checkpoints_of_one_process(
    rig: Rig, tmp_path: Path
) -> None:
    train = {"optimizer": "adamw", "shard": "optimizer", "steps": 40}
    bundles = fleet.both(
        tmp_path, fleet.spec(["desk", "laptop"], train, name="sharded", procs_per_node=2)
    )
    driver = fleet.Driver(rig, bundles[0])
    assert driver.end() == 0, driver.output
    assert "shard: optimizer, a rank keeps the state of at most" in driver.output
    there = jobs.checkpoints(fleet.fetched(rig, bundles[0]))[-1]
    here = jobs.checkpoints(jobs.trained(bundles[1], "--shard=none", "--arg=pause=0"))[-1]
    for part in ("model.pt", "optimizer.pt"):
        assert (there / part).read_bytes() == (here / part).read_bytes(), part


def test_it_is_launched_ctrl_c_stops_all_hosts_after_one_step_and_the_next_start_goes_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["desk", "laptop"]
    paced = {"args": {"pause": 0.1, "until": f"{rig['desk'].home}/hurry"}}
    secrets = {"secrets": planted.field(tmp_path / "token")}
    bundles = fleet.both(tmp_path, fleet.spec(hosts, paced, name="ctrl-c", **secrets))
    out = tmp_path / "out"
    missing = fleet.ask(rig, bundles[0])
    assert missing.returncode == 69
    assert (
        "ddpgen: the secret HF_TOKEN is not in your environment, or is empty there; "
        in missing.stderr
    )
    planted.plant(tmp_path / "token")
    for name, value in planted.IN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with planted.in_no_argument():
        first = fleet.Launched(rig, bundles[0].parent / "job.yaml", out, "--log-every=1")
        first.until(rf"\+ bash {out}/hosts/run\.sh --log-every=1")
        first.until_step(5)
        assert planted.workers() == 2
    told = fleet.ask(rig, out, "--status").stdout
    assert re.search(r"(desk  |laptop)  yes  +running +running: step \d+, \d s ago", told), told
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 75, first.output
    ends = {fleet.status(rig, each, "ctrl-c") for each in hosts}
    assert len(ends) == 1
    assert ends.pop().startswith("stopped ")
    assert rig.strays(within=5) == []
    for each in hosts:
        rig[each].path("hurry").touch()
    again = fleet.Driver(rig, bundles[0])
    again.until("resuming at step")
    fleet.assert_done_with_the_bits_of_one_machine(rig, again, bundles)
    (home,) = (bundles[0].parent / "checkpoints").iterdir()
    manifest = read_manifest(home)
    (one,) = manifest["environments"]  # these hosts are all the same
    who = {
        host: {"ranks": [rank], "nic": nic, "environment": one}
        for rank, (host, nic) in enumerate({"desk": "enp5s0", "laptop": "wlan0"}.items())
    }
    assert [(start["tier"], start["end"], start["hosts"]) for start in manifest["starts"]] == [
        ("hosts", "stopped", who), ("hosts", "done", who),
    ]  # fmt: skip
    unpack(home, manifest["starts"][-1]["bundle"], tmp_path / "again")
    homes = [rig[each].path("") for each in hosts]
    assert planted.in_files(tmp_path, *homes) == [tmp_path / "token"]


@pytest.mark.nightly
def test_what_the_lock_lists_is_installed_on_every_host(rig: Rig, tmp_path: Path) -> None:
    hosts = ["desk", "laptop"]
    for name in hosts:
        wheels.write(rig[name].path("wheels"))
    lock = wheels.lock(rig["desk"].path("wheels"), f"{rig['desk'].home}/wheels")
    spec = fleet.spec(hosts, name="locked", tier={"environment": "locked"})
    code = {"paced.py": jobs.PACED_TOY, "job.lock": lock}
    bundles = [jobs.render(tmp_path / tier, spec, code, tier) for tier in ("hosts", "local")]
    driver = fleet.Driver(rig, bundles[0])
    fleet.assert_done_with_the_bits_of_one_machine(rig, driver, (bundles[0], bundles[1]))
    begun = driver.output.index("is the head")
    for name in hosts:
        installed = f"{name:6} | ddpgen: installing into "
        assert installed in driver.output[:begun]
        assert installed not in driver.output[begun:]
        assert [*rig[name].path(".cache/ddpgen").glob("*/installed.txt")]


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.nightly), "env"])
def test_ctrl_c_before_the_hosts_have_met_ends_at_once(
    rig: Rig, tmp_path: Path, launcher: str
) -> None:
    tier = {"rendezvous": {"launcher": launcher, "timeout": "5min"}}
    spec = fleet.spec(["desk", "laptop"], name=f"early-{launcher}", tier=tier)
    driver = fleet.Driver(rig, jobs.render(tmp_path, spec, target="hosts"))
    driver.until("desk is the head")
    driver.process.send_signal(signal.SIGINT)
    assert driver.end() == 75, driver.output  # the test's patience is less than those 5 minutes
    assert "Traceback" not in driver.output
    assert "stopped before the training began" in driver.output
    assert rig.strays(within=5) == []


def test_a_script_on_the_wrong_host_asks_whether_it_is_the_right_one(
    rig: Rig, tmp_path: Path
) -> None:
    spec = fleet.spec(["desk", "laptop"], name="wrong-host")
    bundle = jobs.render(tmp_path, spec, target="hosts")
    copy = ["rsync", "-a", "-e", f"ssh -F {rig.ssh_config}", f"{bundle}/", "tower:wrong-host/"]
    subprocess.run(copy, check=True, timeout=60)
    process = rig["tower"].popen(
        ["bash", f"{rig['tower'].home}/wrong-host/hosts/laptop.sh"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "NIC010" in line and "is not an address of this host" in line:
            break
    else:
        pytest.fail("not a word")
    rig["tower"].kill_all()
    process.communicate(timeout=30)


@pytest.mark.nightly
def test_started_by_hand_in_two_terminals_in_any_order(rig: Rig, tmp_path: Path) -> None:
    spec = fleet.spec(["desk", "laptop"], name="by-hand")
    bundles = fleet.both(tmp_path, spec)
    for name in ("desk", "laptop"):
        target = f"{name}:by-hand/"
        copy = ["rsync", "-a", "-e", f"ssh -F {rig.ssh_config}", f"{bundles[0]}/", target]
        subprocess.run(copy, check=True, timeout=60)

    def terminal(name: str) -> subprocess.Popen[str]:
        return rig[name].popen(
            ["bash", f"{rig[name].home}/by-hand/hosts/{name}.sh"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    late = terminal("laptop")  # the head is not there yet: it says so and waits
    assert late.stdout is not None
    for line in late.stdout:
        if "waiting for the head" in line and "desk" in line:
            break
    head = terminal("desk")
    outputs = [process.communicate(timeout=120)[0] for process in (head, late)]
    assert [head.returncode, late.returncode] == [0, 0], outputs
    assert "desk is the head, at" in outputs[0]
    place = rig["desk"].path("checkpoints/by-hand")
    if not (place / "status").exists():  # torchrun numbers the hosts
        place = rig["laptop"].path("checkpoints/by-hand")
    jobs.assert_same_bits(jobs.final_tensors(place), fleet.local_tensors(bundles[1]))
    assert rig.strays(within=5) == []


def test_a_host_that_computes_other_bits_is_named_with_the_cause(rig: Rig, tmp_path: Path) -> None:
    one = "case $(hostname) in laptop) export ATEN_CPU_CAPABILITY=default;; esac"
    python = {"interpreter": sys.executable, "activate": one}
    tier = {"rendezvous": {"launcher": "env"}}
    spec = fleet.spec(["desk", "laptop"], {"steps": 2}, name="bits", python=python, tier=tier)
    driver = fleet.Driver(rig, jobs.render(tmp_path, spec, target="hosts"))
    assert driver.end() == 1, driver.output
    warning = next(line for line in driver.lines if "depend on which host" in line)
    assert "'DEFAULT' on laptop" in warning
    # The initial parameters are random numbers, which come out differently there.
    cause = "usual cause: ATen's instruction set (ATEN_CPU_CAPABILITY)"
    assert cause in warning
    assert cause in fleet.status(rig, "desk", "bits")
    assert cause in fleet.status(rig, "laptop", "bits")


HOSTILE = {
    "dir": 'it\'s $(touch pwned) "quoted" `x`\n-new; é',
    "env": {"HOSTILE": 'it\'s "quoted"\n$(touch pwned) `touch pwned` \\ é; -n', "EMPTY": ""},
}
SCRIPT = """
import os, sys
from pathlib import Path
out = Path(os.environ["DDPGEN_CHECKPOINT_DIR"]) / f"seen.{os.environ['DDPGEN_NODE']}"
words = [os.environ["HOSTILE"], os.environ["EMPTY"], os.getcwd(), *sys.argv[1:]]
out.write_bytes(b"\\0".join(map(os.fsencode, words)))
"""


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.nightly), "env"])
def test_hostile_values_arrive_byte_for_byte(rig: Rig, tmp_path: Path, launcher: str) -> None:
    word = "a b'c\"d\n$(touch pwned) é"
    spec = {
        "name": f"hostile-{launcher}",
        "python": sys.executable,
        "env": HOSTILE["env"],
        "restarts": 0,
        "train": {"script": "seen.py", "args": {"x": word}},
        "targets": {
            "hosts": {
                "dir": HOSTILE["dir"],
                "rendezvous": {"launcher": launcher},
                "hosts": ["desk", "laptop"],
            }
        },
    }
    bundle = jobs.render(tmp_path, spec, {"seen.py": SCRIPT}, target="hosts")
    driver = fleet.Driver(rig, bundle, f"--y={word}")
    assert driver.end() == 0, driver.output
    for name in ("desk", "laptop"):
        home = rig[name].path(".")
        directory = home / HOSTILE["dir"]  # type: ignore[operator]
        seen = (directory / f"checkpoints/hostile-{launcher}/seen.{name}").read_bytes()
        expected = [
            HOSTILE["env"]["HOSTILE"], "",  # type: ignore[index]
            f"{rig[name].home}/{HOSTILE['dir']}/checkpoints/hostile-{launcher}/work",
            f"--x={word}", f"--y={word}",
        ]  # fmt: skip
        assert seen.split(b"\0") == [text.encode() for text in expected]
        assert not list(home.glob("**/pwned"))


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_hosts_differ_in_users_ports_ways_in_and_numbers_of_processes(tmp_path: Path) -> None:
    hosts = [
        Host("gate", nic="enp5s0"),
        Host("inner", nic="eno1", port=2222, jump="gate"),
        Host("odd", nic="eth7", port=2200),
    ]
    python = {"interpreter": sys.executable, "activate": ["export ACTIVATED=yes"]}
    listed = [
        {"name": "gate", "procs": 2, "nic": "enp5s0"},
        {"name": "inner", "ssh": "root@inner", "dir": "/srv/it's mine", "python": python},
        {"name": "odd", "ssh": "ssh://trainer@odd:2200", "dir": "deep/down"},
    ]
    bundles = fleet.both(tmp_path, fleet.spec(listed, {"steps": 40}, name="mixed"))
    with Rig(hosts) as rig:
        driver = fleet.Driver(rig, bundles[0])
        fleet.assert_done_with_the_bits_of_one_machine(rig, driver, bundles)
        assert rig["inner"].path("/srv/it's mine/mixed/hosts/inner.sh").exists()
        assert rig["odd"].path("deep/down/mixed/hosts/odd.sh").exists()
    assert "4 processes on 3 hosts" in driver.output


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_hosts_that_share_bundle_and_checkpoints_are_stopped_from_another_terminal(
    tmp_path: Path,
) -> None:
    names = ["desk", "laptop", "tower"]
    tier = {"dir": "/shared/ddpgen"}
    bundles = fleet.both(tmp_path, fleet.spec(names, {"steps": 600}, name="shared", tier=tier))
    with Rig([Host(name, shared="/shared") for name in names]) as rig:
        rig["desk"].run(["chmod", "1777", "/shared"], user="root", check=True)
        first = fleet.Driver(rig, bundles[0])
        first.until_step(20)
        asked = fleet.ask(rig, bundles[0], "--stop")
        assert asked.returncode == 0, asked.stderr
        assert first.end() == 75, first.output
        again = fleet.Driver(rig, bundles[0])
        again.until("resuming at step")
        fleet.assert_done_with_the_bits_of_one_machine(rig, again, bundles)
        assert sorted(p.name for p in rig["desk"].path("/shared/ddpgen").iterdir()) == [
            "checkpoints", "shared",
        ]  # fmt: skip
