"""The rig itself: its hosts are machines of their own, and it leaves nothing behind.

That a cable, a firewall, a full disk, a narrow wire or a lost packet does what it says is seen by the findings of
tests/real/test_preflight*.py; here is what no finding shows.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.rig import Host, Machine, Rig
from tests.real.rig.rig import PREFIX

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
TEST_ID = "DDPGEN_TEST_ID"
# Long for anything that is to happen, short for waiting to see that something does not.
PATIENCE_S, SILENCE_S = 20.0, 1.0
PORT = 4000
ECHO = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        while data := connection.recv(1 << 16):
            connection.sendall(data)
"""


@pytest.fixture(scope="module")
def rig(new_rig: Callable[..., Rig]) -> Rig:
    return new_rig(
        Host(
            "desk",
            networks={"lan": ("enp5s0", None), "vpn": ("tailscale0", "100.64.0.9")},
            small_disk={"/data": 8},
            shared="/mnt/shared",
        ),
        Host(
            "laptop",
            networks={"lan": ("wlan0", None), "vpn": ("tailscale0", None)},
            resolves={"laptop": "127.0.1.1", "inner": None},
            port=2222,
            shared="/mnt/shared",
        ),
        Host("inner", networks={"vpn": ("eth7", None)}, jump="desk"),
    )


@pytest.fixture
def whole(rig: Rig) -> Iterator[Rig]:
    """The rig, for a test that breaks something: the next one finds it mended."""
    yield rig
    for machine in rig:
        if not machine.up:
            machine.boot()
        machine.plug()
        machine.clear_firewall()
        machine.delay(0)


@pytest.fixture
def echo(whole: Rig) -> Iterator[None]:
    """A server on desk that sends back what it gets."""
    server = whole["desk"].popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    yield
    server.kill()
    server.wait(PATIENCE_S)
    server.stdout.close()


# Hosts


def test_a_host_has_its_own_name_interfaces_and_idea_of_the_others(rig: Rig) -> None:
    desk, laptop, inner = rig
    assert said(desk, "hostname") == "desk"
    assert said(desk, "ls", "/sys/class/net").split() == ["docker0", "enp5s0", "lo", "tailscale0"]
    assert said(inner, "ls", "/sys/class/net").split() == ["docker0", "eth7", "lo"]
    assert desk.addresses == {"lan": "192.168.7.1", "vpn": "100.64.0.9"}
    for machine in rig:
        assert "172.17.0.1/16" in said(machine, "ip", "-br", "-4", "addr", "show", "docker0")
        assert f"{machine.address}/24" in said(
            machine, "ip", "-br", "-4", "addr", "show", machine.nic
        )
    assert said(desk, "getent", "hosts", "laptop").split() == ["192.168.7.2", "laptop"]
    assert said(inner, "getent", "hosts", "laptop").split() == ["100.64.0.1", "laptop"]
    assert said(laptop, "getent", "ahostsv4", "laptop").split()[0] == "127.0.1.1"
    assert laptop.run(["getent", "hosts", "inner"]).returncode == 2


def test_nothing_that_root_does_on_a_host_is_done_to_the_machine(rig: Rig) -> None:
    places = ["/etc", "/usr", "/var/tmp", "/root", "/tmp", "/dev/shm", "/opt", str(ROOT)]
    names = [f"{place}/written-on-a-host-{os.getpid()}" for place in places]
    rig["desk"].run(["touch", *names], user="root", check=True)
    rig["desk"].run(["sysctl", "-q", "net.ipv4.tcp_retries2=3"], user="root", check=True)
    assert [name for name in names if os.path.exists(name)] == []
    assert rig["laptop"].run(["ls", *names]).stdout == ""
    assert Path("/proc/sys/net/ipv4/tcp_retries2").read_text() != "3\n"


def test_hosts_may_share_a_directory(rig: Rig) -> None:
    rig["desk"].run(["sh", "-c", "echo from desk >/mnt/shared/note"], check=True)
    assert said(rig["laptop"], "cat", "/mnt/shared/note") == "from desk"
    assert (rig.shared / "note").read_text() == "from desk\n"
    assert rig["inner"].run(["ls", "/mnt/shared"]).returncode != 0


# Access


@pytest.mark.parametrize("destination", ["desk", "root@desk", "laptop", "root@laptop", "inner"])
def test_ssh_gets_in_from_outside_from_the_control_place_and_from_a_host(
    rig: Rig, destination: str
) -> None:
    user, _, name = destination.rpartition("@")
    expected = f"{user or 'trainer'}\n{name}\n"
    command = ["-o", "BatchMode=yes", destination, "whoami; hostname"]
    here = ["ssh", "-F", str(rig.ssh_config), *command]
    done = subprocess.run(here, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == expected, done.stderr
    assert rig.control.run(here, timeout=PATIENCE_S).stdout == expected
    if name != "inner":  # behind desk
        assert rig["desk"].run(["ssh", *command]).stdout == expected


def test_a_session_does_not_carry_the_mark_of_a_test_and_a_command_does(rig: Rig) -> None:
    assert os.environ[TEST_ID]
    over_ssh = ssh(rig, "desk", "env").stdout
    assert f"HOME={rig['desk'].home}\n" in over_ssh
    assert TEST_ID not in over_ssh
    assert f"{TEST_ID}={os.environ[TEST_ID]}" in said(rig["desk"], "env").splitlines()
    server = Path(f"/proc/{rig['desk'].pid}/environ").read_bytes()
    assert os.environ[TEST_ID].encode() not in server.split(b"\0")


# Processes


def test_what_a_session_leaves_behind_is_a_stray_and_a_session_is_none(rig: Rig) -> None:
    assert rig.strays(within=PATIENCE_S) == []
    # The session ends when its child has become sleep: until then it bears the words of bash.
    left = "sleep 601 >/dev/null 2>&1 </dev/null & until grep -qzx 601 /proc/$!/cmdline; do :; done"
    ssh(rig, "desk", left)
    found = rig.strays(within=0)
    assert [(each.host, each.command.strip()) for each in found] == [("desk", "sleep 601")]
    rig["desk"].kill_all()
    assert rig.strays(within=PATIENCE_S) == []


# Power


def test_a_power_cut_is_silent_and_a_killed_process_is_not(whole: Rig, echo: None) -> None:
    desk = whole["desk"]
    with (
        whole.control.connect(desk.address, 22) as off,
        whole.control.connect(desk.address, PORT) as killed,
    ):
        assert off.recv(4) == b"SSH-"
        desk.kill_all()
        assert readable(killed, PATIENCE_S)
        assert killed.recv(1) == b""
        off.settimeout(SILENCE_S)
        desk.power_off()
        assert not desk.up
        with contextlib.suppress(TimeoutError):
            while off.recv(4096):  # the rest of sshd's greeting
                pass
            pytest.fail("the host said goodbye")
        with pytest.raises(ConnectionError, match=r"timed out|No route"):
            whole.control.connect(desk.address, 22, SILENCE_S)


def test_a_booted_host_is_the_same_machine_with_its_disk(whole: Rig) -> None:
    desk = whole["desk"]
    desk.run(["sh", "-c", "echo kept | tee ~/kept >/data/kept; echo lost >/tmp/lost"], check=True)
    address = said(desk, "cat", "/sys/class/net/enp5s0/address")
    assert ssh(whole, "desk", "true").returncode == 0
    desk.power_off()
    desk.boot()
    assert said(desk, "cat", "kept", "/data/kept") == "kept\nkept"
    assert desk.run(["ls", "/tmp/lost"]).returncode != 0
    assert said(desk, "cat", "/sys/class/net/enp5s0/address") == address
    assert said(desk, sys.executable, "-c", "print('works')") == "works"
    # Its key is the one we know, and its neighbours find it without waiting.
    assert ssh(whole, "desk", "hostname").stdout == "desk\n"


# Network


def test_a_wire_is_as_long_as_it_is_asked_to_be(whole: Rig, echo: None) -> None:
    desk = whole["desk"]
    with whole.control.connect(desk.address, PORT) as connection:
        assert settles(lambda: round_trip(connection) < 0.1)
        desk.delay(100)
        assert round_trip(connection) >= 0.2
        assert settles(lambda: round_trip(connection) < 1.0)
        desk.delay(0)
        assert settles(lambda: round_trip(connection) < 0.1)


# The rig as a whole


def test_two_rigs_share_nothing_and_one_that_is_taken_down_leaves_nothing(rig: Rig) -> None:
    before, other = traces(), rig
    with Rig([Host("desk"), Host("laptop")]) as rig:
        assert rig["desk"].address == other["desk"].address
        rig["desk"].run(["touch", "only-here"], check=True)
        assert ssh(rig, "desk", "ls").stdout == "only-here\n"
        assert "only-here" not in ssh(other, "desk", "ls").stdout.split()
        handles = [os.pidfd_open(pid) for pid in (rig.keeper_pid, *(each.pid for each in rig))]
        rig["desk"].delay(5)
        ssh(rig, "desk", "setsid sleep 602 >/dev/null 2>&1 </dev/null &")
        # It is named once it has become what it is to be.
        assert settles(lambda: [p.command for p in rig["desk"].processes()] == ["sleep 602 "])
        handles.append(os.pidfd_open(rig["desk"].processes()[0].pid))
        directory = rig.directory
        assert traces() == before
    assert all(dead(handle) for handle in handles)
    assert not directory.exists()
    assert traces() == before


def test_a_rig_does_not_outlive_a_maker_that_is_killed() -> None:
    code = (
        "from tests.real.rig import Host, Rig\n"
        "rig = Rig([Host('desk')]).start()\n"
        "print(rig.directory, rig.keeper_pid, rig['desk'].pid, flush=True)\n"
        "input()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with maker:
        assert maker.stdout is not None
        directory, *pids = maker.stdout.readline().split()
        handles = [os.pidfd_open(int(pid)) for pid in pids]
        maker.send_signal(signal.SIGKILL)
    assert all(dead(handle) for handle in handles)
    assert not os.path.exists(directory)


def test_one_command_gives_a_contributor_a_shell_on_a_host() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.rig", "up", "desk", "laptop:wlan0"], cwd=ROOT,
        input="ssh -n laptop hostname\n", capture_output=True, text=True, timeout=60,
        env={**os.environ, "SHELL": "/bin/sh"},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "laptop", done.stderr


# What the tests say it with


def said(machine: Machine, *argv: str) -> str:
    done = machine.run(argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ssh(rig: Rig, destination: str, command: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(rig.ssh_config), "-o", "BatchMode=yes", destination, command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)


def readable(connection: socket.socket, within: float) -> bool:
    return bool(select.select([connection], [], [], within)[0])


def round_trip(connection: socket.socket) -> float:
    connection.settimeout(PATIENCE_S)
    started = time.monotonic()
    connection.sendall(b"?")
    assert connection.recv(1) == b"?"
    return time.monotonic() - started


def settles(condition: Any) -> bool:
    """For what happens on a host by itself and has no event for who stands outside."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def dead(handle: int) -> bool:
    ended = bool(select.select([handle], [], [], PATIENCE_S)[0])
    os.close(handle)
    return ended


def traces() -> tuple[list[str], str, list[str]]:
    """Where a rig could leave marks on this machine: its mounts, its interfaces, named networks."""
    # Only a rig's: the tests beside this one mount something, too.
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if PREFIX in line]
    netns = Path("/run/netns")
    names = sorted(each.name for each in netns.iterdir()) if netns.exists() else []
    return mounts, " ".join(os.listdir("/sys/class/net")), names
