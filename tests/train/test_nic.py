"""Where this host takes part, and whether the head answers: on the interfaces it really has."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ports import free_port
from train import nic
from train.nic import Interface, NetworkError, choose, interfaces


def loopback() -> str:
    return next(i.name for i in interfaces() if "127.0.0.1" in i.addresses)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


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


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "enp5",
            r"has no interface 'enp5'; it has lo \(127.0.0.1\), docker0 .*enp7s0 \(down\); set",
        ),
        ("enp6s0", "the interface enp6s0 of .* has no IPv4 address; give it one"),
        ("enp7s0", "the interface enp7s0 of .* is down; ip link set enp7s0 up"),
        ("docker0", "the interface docker0 of .* is up and has no carrier; look after its cable"),
        ("lo", "the interface lo of (.*) leads back to .* itself; set nic: in the spec to another"),
    ],
)
def test_an_interface_that_cannot_be_used_is_named_with_those_there_are(
    given: str, message: str
) -> None:
    with pytest.raises(NetworkError, match=message):
        choose("slow", given)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("own", "address", "towards", "doubted"),
    [
        ("desk", "192.168.7.1", "slow", []),
        ("desk", "192.168.7.9", "slow", []),  # two addresses of one interface
        ("debian", "192.168.7.1", "slow", []),  # Debian's 127.0.1.1 for oneself
        ("slow", "192.168.7.1", "desk", ["192.168.7.2, the address of this host in the spec"]),
        ("desk", "100.64.0.1", "slow", ["reaches slow by enp5s0, and takes part by tailscale0"]),
    ],
)
def test_what_is_odd_and_may_be_meant_is_told(
    own: str, address: str, towards: str, doubted: list[str]
) -> None:
    told = list(nic.doubts(own, address, towards))
    assert len(told) == len(doubted)
    assert all(part in text for part, text in zip(doubted, told, strict=True))


def test_a_name_nobody_knows_is_told_with_its_remedy() -> None:
    with pytest.raises(NetworkError, match="set address: of that host in the spec") as error:
        choose("no such host")
    assert "cannot resolve 'no such host'" in str(error.value)


def test_a_name_with_an_ipv6_address_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: object, family: int, kind: int) -> list[Any]:
        if family == socket.AF_INET:
            raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")
        return [(family, kind, 6, "", ("fd00::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(NetworkError, match="it is fd00::1 only, and the processes meet by IPv4"):
        choose("laptop")


@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_that_is_taken_anywhere_on_the_head_is_named(at: str) -> None:
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    with socket.create_server((at, free_port()), family=family, dualstack_ipv6=":" in at) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetworkError, match=f"port {port} of"):
            nic.check_port_free("127.0.0.1", port)
    nic.check_port_free("127.0.0.1", port)


def test_await_returns_when_the_head_begins_to_listen(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    port = free_port()
    said: list[str] = []
    waiting = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    waiter = threading.Thread(target=nic.await_port, args=("127.0.0.1", port, 30.0, say))
    waiter.start()
    assert waiting.wait(10)
    with socket.create_server(("127.0.0.1", port)):
        waiter.join(10)
    assert not waiter.is_alive()
    assert said == [f"127.0.0.1 port {port}, 30 s at most"]
    # A head that is there already is not spoken of.
    nic.await_port("127.0.0.1", listener.getsockname()[1], 30.0, said.append)
    assert len(said) == 1


def test_await_gives_up_and_names_head_address_and_port() -> None:
    port = free_port()
    said: list[str] = []
    with pytest.raises(NetworkError, match=f"the head localhost on port {port} within 0.5 s"):
        nic.await_port("localhost", port, 0.5, said.append)
    assert said == [f"localhost port {port}, 0.5 s at most"]


def test_await_says_what_it_waits_for_though_the_first_look_takes_all_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nic, "_connect", lambda *_: time.sleep(0.1) or "no answer")
    said: list[str] = []
    with pytest.raises(NetworkError, match=r"within 0\.05 s: no answer"):
        nic.await_port("head", 29500, 0.05, said.append)
    assert said == ["head port 29500, 0.05 s at most"]
