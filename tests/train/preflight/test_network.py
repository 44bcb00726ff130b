"""One host's way to the others: what is wrong with it is told with both sides named, and only then."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train.base import nic
from train.base.nic import Interface, NetworkError
from train.preflight import network
from train.preflight.finding import Finding
from train.preflight.network import kind
from train.preflight.settings import Settings

KNOWN = [
    Interface("lo", True, True, ("127.0.0.1",), (8,)),
    Interface("docker0", True, False, ("172.17.0.1",), (16,)),
    Interface("br-lab", True, True, ("172.18.0.1",), (16,)),
    Interface("enp5s0", True, True, ("192.168.7.1", "192.168.7.9"), (24, 24)),
    Interface("enp8s0", True, True, ("10.1.0.1",), (16,)),
    Interface("wlan0", True, True, ("192.168.8.1",), (24,)),
    Interface("tailscale0", True, True, ("100.64.0.1",), (32,)),
    Interface("enp6s0", True, True, ()),
    Interface("enp7s0", False, False, ("10.0.0.1",), (8,)),
]
ADDRESSES = {"desk": "192.168.7.1", "slow": "192.168.7.2", "debian": "127.0.1.1", "far": "9.9.9.9"}
ROUTES = {
    "100.64": "100.64.0.1",
    "192.168.7": "192.168.7.1",
    "192.168.8": "192.168.8.1",
    "127": "127.0.0.1",
}


def resolve(name: str) -> str:
    if name in ADDRESSES or name.replace(".", "").isdigit():
        return ADDRESSES.get(name, name)
    raise NetworkError(f"desk cannot resolve {name!r}", "add it to /etc/hosts", "NAME001")


def source_towards(address: str) -> str:
    for begin, source in ROUTES.items():
        if address.startswith(begin):
            return source
    raise NetworkError(f"desk has no route to {address}: unreachable", "is the VPN up?", "HOST004")


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic, "interfaces", lambda: KNOWN)
    monkeypatch.setattr(nic, "resolve", resolve)
    monkeypatch.setattr(nic, "source_towards", source_towards)
    monkeypatch.setattr(network, "kind", lambda name: kind(name, Path("/nowhere")))
    monkeypatch.setattr(socket, "gethostname", lambda: "desk")


def settings(
    host_name: str = "desk",
    head: str = "slow",
    addresses: Mapping[str, str] | None = None,
    given: str = "",
    is_head: bool = False,
) -> Settings:
    return Settings(
        "job", host_name, Path("/nowhere"), nodes=2, min_nodes=2, head=head, is_head=is_head, nic=given,
        node_rank=0 if is_head else 1, addresses=addresses or {},
    )  # fmt: skip


def found(job: Settings) -> list[Finding]:
    return list(network.judge(job, network.inspect_network(job, resolve)))


BOTH = {"slow": "slow", "desk": "desk"}


@pytest.mark.parametrize(
    ("job", "taken"),
    [
        (settings(), ("enp5s0", "192.168.7.1", 24)),
        (settings(given="enp5s0"), ("enp5s0", "192.168.7.1", 24)),
        # A VPN or Wi-Fi is what leads to the head: no reason to complain.
        (settings(head="100.64.0.2"), ("tailscale0", "100.64.0.1", 32)),
        (settings(head="192.168.8.2", given="wlan0"), ("wlan0", "192.168.8.1", 24)),
        (settings(head="desk", is_head=True, addresses=BOTH), ("enp5s0", "192.168.7.1", 24)),
        # All hosts are this machine, and the spec says so.
        (settings(head="127.0.0.1"), ("lo", "127.0.0.1", 8)),
        (settings(head="localhost", is_head=True), None),
        (settings(head="127.0.0.1", given="lo"), ("lo", "127.0.0.1", 8)),
        (settings(head="desk", addresses={"slow": "desk", "desk": "192.168.7.1"}), None),
        # On one machine the network is nobody's business.
        (Settings("job", "desk", Path("/nowhere")), ("", "", 32)),
    ],
)
def test_what_works_is_not_spoken_of(
    job: Settings, taken: tuple[str, str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADDRESSES, "localhost", "127.0.0.1")
    assert found(job) == []
    seen = network.inspect_network(job, resolve)
    assert taken is None or (seen.interface, seen.address, seen.prefix) == taken


@pytest.mark.parametrize(
    ("job", "code", "parts"),
    [
        (
            settings(given="enp5"),
            "NIC001",
            ["no interface 'enp5'; it has lo (127.0.0.1), docker0", "to enp5s0, which leads to 192.168.7.2"],
        ),
        (settings(given="enp7s0"), "NIC002", ["enp7s0 of desk is down", "ip link set enp7s0 up"]),
        (settings(given="docker0"), "NIC003", ["docker0 of desk is up and has no carrier", "cable", "to another (br-lab ("]),
        (settings(given="enp6s0"), "NIC004", ["enp6s0 of desk has no IPv4 address", "give it one"]),
        (settings(given="lo"), "NIC005", ["lo of desk leads back to desk itself", "remove nic"]),
        (settings(given="lo", head="desk", is_head=True, addresses=BOTH), "NIC005", ["leads back"]),
        # The head, before it knows anybody else's address.
        (settings(given="lo", head="desk", is_head=True), "NIC005", ["leads back"]),
        (
            settings(given="br-lab"),
            "NIC006",
            ["uses br-lab (172.18.0.1), a bridge", "slow is by enp5s0 (192.168.7.1), a wired", "nic: enp5s0"],
        ),
        (settings(given="wlan0"), "NIC007", ["uses wlan0 (192.168.8.1), Wi-Fi", "by enp5s0"]),
        (settings(given="tailscale0"), "NIC007", ["uses tailscale0 (100.64.0.1), a VPN", "by enp5s0"]),
        # The wired one leads elsewhere, and so does a bridge where Wi-Fi is the way.
        (settings(given="enp8s0"), "NIC011", ["uses enp8s0 (10.1.0.1), a wired", "by enp5s0"]),
        (settings(given="br-lab", head="192.168.8.2"), "NIC011", ["a bridge", "wlan0", "Wi-Fi"]),
        (
            settings(head="desk", is_head=True, addresses={"desk": "desk", "slow": "192.168.8.2"}),
            "NIC011",
            ["desk uses enp5s0", "its route to 192.168.8.2 is by wlan0", "nic: enp5s0 to keep enp5s0"],
        ),
        (
            settings(addresses={"desk": "192.168.7.3", "slow": "slow"}),
            "NIC010",
            ["192.168.7.3, the address of desk in the spec, is not an", "script on another machine"],
        ),
        (settings(head="nobody"), "NAME001", ["desk cannot resolve 'nobody'", "set the address of"]),
        (settings(head="nobody", is_head=True), "NAME001", ["cannot resolve 'nobody'"]),
        # Only the route to another host tells which interface is meant.
        (
            settings(head="debian", is_head=True, addresses={"slow": "nobody"}),
            "NAME001",
            ["cannot resolve 'nobody'"],
        ),
        (
            settings(host_name="debian", head="debian", is_head=True, addresses={"slow": "slow"}),
            "NAME002",
            ["debian resolves its own name debian to 127.0.1.1", "/etc/hosts"],
        ),
        (settings(head="debian"), "NAME003", ["debian to 127.0.1.1, which is desk itself"]),
        (settings(head="desk", host_name="slow"), "NAME003", ["desk to 192.168.7.1, which is slow itself"]),
        (settings(head="192.168.7.9"), "NAME003", ["192.168.7.9 belongs to desk itself"]),
        (settings(head="far"), "HOST004", ["no route to far (9.9.9.9): unreachable; desk has lo (", "VPN up?"]),
        (settings(head="far", given="enp5s0"), "HOST004", ["desk has no route to far (9.9.9.9)"]),
        # The head, when its address has gone.
        (settings(head="far", is_head=True), "HOST004", ["desk has no route to 9.9.9.9"]),
        # The interface that is down is why there is no route.
        (settings(head="far", given="enp7s0"), "NIC002", ["is down"]),
    ],
)  # fmt: skip
def test_each_fault_is_one_finding_with_cause_and_remedy(
    job: Settings, code: str, parts: list[str]
) -> None:
    # Where the head's own name is of no use, a warning says so besides.
    (finding,) = (f for f in found(job) if f.code != "NAME002" or code == "NAME002")
    assert finding.code == code
    assert finding.host == job.host_name
    text = f"{finding.cause}; {finding.remedy}"
    assert [part for part in parts if part not in text] == []


def test_the_first_address_is_told_where_another_one_is_taken() -> None:
    """gloo and NCCL bind the first; the hosts try at the check-in whether they reach it."""
    addresses = {"desk": "192.168.7.9", "slow": "slow"}
    job = settings(head="192.168.7.9", is_head=True, addresses=addresses)
    seen = network.inspect_network(job, resolve)
    assert (seen.interface, seen.address, seen.first_address) == (
        "enp5s0", "192.168.7.9", "192.168.7.1",
    )  # fmt: skip
    assert list(network.judge(job, seen)) == []


@pytest.mark.parametrize("scheduler", ["slurm 7 0", "sky a-1 0"])
@pytest.mark.parametrize(
    ("job", "code", "remedy"),
    [
        (settings(head="nobody"), "NAME001", "add it to /etc/hosts"),
        (settings(head="debian"), "NAME003", "correct the entry of debian in /etc/hosts of desk"),
        (settings(head="192.168.7.9"), "NAME003", "correct the address of the head in the spec"),
        (
            settings(head="192.168.8.2", host_name="desk", addresses={"desk": "192.168.7.3"}),
            "NIC010",
            "behind NAT, ignore this warning",
        ),
        (
            settings(head="desk", is_head=True, addresses={"desk": "desk", "slow": "192.168.8.2"}),
            "NIC011",
            "set nic: wlan0 in the spec, or set nic: enp5s0 to keep enp5s0",
        ),
    ],
)
def test_where_the_spec_lists_no_hosts_no_address_is_advised(
    job: Settings, code: str, remedy: str, scheduler: str
) -> None:
    (finding,) = found(replace(job, scheduler=scheduler))
    assert (finding.code, finding.remedy) == (code, remedy)
    assert "in the spec" not in finding.cause


def test_interfaces_that_cannot_be_listed_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.undo()
    monkeypatch.setattr(nic, "getifaddrs", refuse)
    (finding,) = found(settings())
    assert "cannot be listed: Operation not permitted" in finding.cause


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"bridge/": ""}, "bridge"),
        ({"wireless/": "", "device/": ""}, "Wi-Fi"),
        ({"phy80211/": ""}, "Wi-Fi"),
        ({"tun_flags": "0x1001"}, "VPN"),
        ({"type": "65534\n"}, "VPN"),
        ({"type": "772\n"}, "loopback"),
        # What the hardware is counts for more than what somebody has called it.
        ({"type": "1\n", "device/": ""}, "wired"),
    ],
)
def test_the_marks_of_the_kernel_tell_a_kind(
    tmp_path: Path, files: dict[str, str], what: str
) -> None:
    (tmp_path / "docker0").mkdir()
    for name, text in files.items():
        path = tmp_path / "docker0" / name
        path.mkdir() if name.endswith("/") else path.write_text(text)
    name = "docker0" if what in ("wired", "bridge") else "enp5s0"
    (tmp_path / "docker0").rename(tmp_path / name)
    assert kind(name, tmp_path) == what


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("loopback", ["lo", "lo0"]),
        ("bridge", ["docker0", "br-1f2e", "virbr0", "br0", "cni0"]),
        ("Wi-Fi", ["wlan0", "wlp3s0", "wlx00c0ca"]),
        ("VPN", ["tun0", "tap1", "wg0", "tailscale0", "utun3", "ppp0", "zt5u4y"]),
        ("wired", ["eth0", "enp5s0", "eno1", "enx00e04c", "ib0", "bond0", "broadcom0"]),
    ],
)
def test_without_marks_the_name_tells_a_kind(what: str, names: list[str], tmp_path: Path) -> None:
    assert {name: kind(name, tmp_path) for name in names} == dict.fromkeys(names, what)
