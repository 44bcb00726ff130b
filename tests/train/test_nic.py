"""Where this host takes part: on the interfaces it really has, and on made-up ones."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.ports import free_port
from train.base import nic
from train.base.nic import Interface, NetworkError, choose, interfaces
from train.health.network import own_endpoint


def loopback() -> str:
    return next(i.name for i in interfaces() if "127.0.0.1" in i.addresses)


def test_the_interface_and_the_address_of_this_machine() -> None:
    assert choose("127.0.0.1", is_head=True, peer="127.0.0.2") == (loopback(), "127.0.0.1")
    assert choose("127.0.0.1", loopback()) == (loopback(), "127.0.0.1")


KNOWN = [
    Interface("lo", True, True, ("127.0.0.1",)),
    Interface("docker0", True, False, ("172.17.0.1",)),
    Interface("enp5s0", True, True, ("192.168.7.1", "192.168.7.9")),
    Interface("tailscale0", True, True, ("100.64.0.1",)),
    Interface("enp6s0", True, True, ()),
    Interface("enp7s0", False, False, ("10.0.0.1",)),
]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with six interfaces: the peers are reached by enp5s0, the VPN's by tailscale0."""
    names = {"desk": "192.168.7.1", "slow": "192.168.7.2", "debian": "127.0.1.1"}
    routes = {"100.64": "100.64.0.1", "192.168": "192.168.7.1", "127": "127.0.0.1"}
    monkeypatch.setattr(nic, "interfaces", lambda: KNOWN)
    monkeypatch.setattr(nic, "resolve", lambda host: names.get(host, host))
    monkeypatch.setattr(
        nic,
        "source_towards",
        lambda address: next(
            (s for n, s in routes.items() if address.startswith(n)), "192.168.7.9"
        ),
    )


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("100.64.0.2",), ("tailscale0", "100.64.0.1")),
        (("slow",), ("enp5s0", "192.168.7.1")),
        (("8.8.8.8",), ("enp5s0", "192.168.7.9")),  # a second address of one interface
        (("desk", "", True), ("enp5s0", "192.168.7.1")),
        # The head's name is its own 127.0.1.1, or an address that is translated on the way.
        (("debian", "", True, "slow"), ("enp5s0", "192.168.7.1")),
        (("203.0.113.5", "", True, "100.64.0.2"), ("tailscale0", "100.64.0.1")),
        (("slow", "tailscale0"), ("tailscale0", "100.64.0.1")),
        (("8.8.8.8", "enp5s0"), ("enp5s0", "192.168.7.9")),
        (("127.0.0.2",), ("lo", "127.0.0.1")),
    ],
)
def test_the_interface_is_the_one_given_or_that_of_the_route(
    asked: tuple[str], found: tuple[str, str]
) -> None:
    assert choose(*asked) == found


def test_a_name_nobody_knows_is_told_with_its_remedy() -> None:
    with pytest.raises(NetworkError, match="/etc/hosts") as error:
        choose("no such host")
    assert "cannot resolve 'no such host'" in str(error.value)


def test_a_name_with_an_ipv6_address_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: object, family: int, kind: int) -> list[Any]:
        if family == socket.AF_INET:
            raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")
        return [(family, kind, 6, "", ("fd00::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(NetworkError, match="it is fd00::1 only, "):
        choose("laptop")


@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_that_is_taken_anywhere_on_the_head_is_named(at: str) -> None:
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    with socket.create_server((at, free_port()), family=family, dualstack_ipv6=":" in at) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetworkError, match=f"port {port} of"):
            nic.check_port_free("127.0.0.1", port)
    nic.check_port_free("127.0.0.1", port)


@pytest.mark.parametrize("name", ["", loopback()])
def test_a_process_says_by_which_interface_and_address_it_takes_part(name: str) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": name}
    assert own_endpoint(env) == (loopback(), "127.0.0.1", "127.0.0.1:29500")


def test_a_process_outside_of_a_launch_knows_of_no_place() -> None:
    assert own_endpoint({}) == ("", "", "")
    assert own_endpoint({"GLOO_SOCKET_IFNAME": "gone0"}) == ("gone0", "", "")
