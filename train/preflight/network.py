"""This host's side of the network: names, routes and interfaces, and their faults.

Inspects the interfaces and checks one host. The kind of an interface comes from its entry below /sys/class/net, or else
from its name. Sends nothing to other hosts: the check-in (client.py, links.py) finds out if they answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from train.base import nic
from train.base.nic import Interface, NetworkError, describe_interfaces, interface_with, is_loopback
from train.preflight.finding import Finding
from train.preflight.settings import Settings

LOOPBACK, BRIDGE, WIFI, VPN, WIRED = "loopback", "bridge", "Wi-Fi", "VPN", "wired"

_SYS = Path("/sys/class/net")
# Entries that the kernel makes for one kind of device only.
_MARKS = {"bridge": BRIDGE, "wireless": WIFI, "phy80211": WIFI, "tun_flags": VPN}
# ARPHRD_… of if_arp.h: the hardware type of an interface.
_TYPES = {
    "772": LOOPBACK,
    "512": VPN,  # PPP
    "65534": VPN,  # no hardware: tun, WireGuard
    "768": VPN,  # the tunnels: IPIP, IPv6 in IPv6, SIT, GRE
    "769": VPN,
    "776": VPN,
    "778": VPN,
    "823": VPN,
}
_NAMES = (
    (LOOPBACK, r"lo\d*"),
    (BRIDGE, r"docker\d+|br-.+|br\d+|bridge\d+|virbr\d+.*|podman\d+|cni.*|lxcbr\d+|lxdbr\d+"),
    (WIFI, r"wl.+|wifi\d+|ath\d+"),
    (VPN, r"u?tun.*|tap.*|wg.*|tailscale.*|zt.+|ppp\d+|ipsec.*|nordlynx|proton.*|vpn.*"),
)

T = TypeVar("T")
Resolve = Callable[[str], str]


@dataclass(frozen=True)
class Network:
    """The result of inspect_network(). Addresses are IPv4; "" means not known, or not needed.

    `kinds`: the kind of each interface, by its name.
    `head`, `peer`, `own_address`: the addresses that this host gets when it resolves Settings.head, Settings.peer and
    Settings.own_address. The peer of the head is another host, and the peer of every other host is the head.
    `unresolved`: why the head's name does not resolve.
    `route_source`: this host's address on the route to the peer; `route`: the interface of that route.
    `no_route`: why the host has no route to the peer.
    `interface`: the interface that the job uses on this host; `address`: the address of that interface.
    `interface_error`: why the host has no usable interface for the job.
    """

    interfaces: Sequence[Interface] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    peer: str = ""
    own_address: str = ""
    unresolved: NetworkError | None = None
    route_source: str = ""
    route: str = ""
    no_route: NetworkError | None = None
    interface: str = ""
    address: str = ""
    interface_error: NetworkError | None = None

    @property
    def prefix(self) -> int:
        """The length of the network part of `address`, in bits; 32 if it is not known."""
        interface = interface_with(self.address, list(self.interfaces)) if self.address else None
        return interface.prefix(self.address) if interface else 32

    @property
    def first_address(self) -> str:
        """The address that gloo and NCCL bind. They get the name of an interface, and take its first address."""
        return next(
            (each.addresses[0] for each in self.interfaces if each.name == self.interface), ""
        )


def names(settings: Settings) -> set[str]:
    """The names that inspect_network() wants resolved."""
    return set() if settings.alone else {settings.head, settings.peer, settings.own_address} - {""}


def inspect_network(settings: Settings, resolve: Resolve) -> Network:
    """Read this host's side of the network. `resolve` raises NetworkError."""
    if settings.alone and not settings.nic:
        return Network()
    interfaces, unlisted = _try_query(nic.interfaces, list[Interface]())
    if unlisted:
        return Network(interface_error=unlisted)

    def resolved(name: str) -> tuple[str, NetworkError | None]:
        return _try_query(lambda: resolve(name), "") if name in names(settings) else ("", None)

    head, unresolved = resolved(settings.head)
    own_address, _ = resolved(settings.own_address)
    peer, unknown_peer = resolved(settings.peer)
    route_source, no_route = (
        _try_query(lambda: nic.source_towards(peer), "") if peer else ("", None)
    )
    route = interface_with(route_source, interfaces) if route_source else None
    (interface, address), interface_error = _try_query(
        lambda: _choose(settings, interfaces, head, peer), ("", "")
    )
    if (
        not interface_error
        and unknown_peer
        and settings.is_head
        and not settings.nic
        and address != head
    ):
        # This host is the head, but its name resolves to an address that no interface has. The route to the
        # peer would show the interface, but the peer's name does not resolve. Report the name.
        interface, address, interface_error = "", "", unknown_peer
    return Network(
        interfaces, {each.name: kind(each.name) for each in interfaces}, head, peer, own_address, unresolved, route_source,
        route.name if route else "", no_route, interface, address, interface_error,
    )  # fmt: skip


def _try_query(query: Callable[[], T], fallback: T) -> tuple[T, NetworkError | None]:
    try:
        return query(), None
    except NetworkError as error:
        return fallback, error


def _choose(
    settings: Settings, interfaces: list[Interface], head: str, peer: str
) -> tuple[str, str]:
    """The interface and address that the launch will choose; ("", "") if the head's name does not resolve and the spec
    names no interface."""
    if not head and not settings.nic:
        return "", ""
    interface, address = nic.choose(head, settings.nic, settings.is_head, peer)
    nic.check_usable(next(each for each in interfaces if each.name == interface), interfaces)
    return interface, address


def judge(settings: Settings, net: Network) -> Iterator[Finding]:
    """Yield NAME001 to NAME003, HOST004, NIC001 to NIC007, NIC010 and NIC011."""
    me, trouble = settings.host_name, net.interface_error
    if net.unresolved is not None:
        yield _as_finding(settings, net.unresolved)
    yield from _judge_name(settings, net)
    # On the head, a missing route to its peer is no fault: the other hosts report a head that they cannot reach.
    no_route = None if settings.is_head else net.no_route
    if trouble is not None and trouble.code != "HOST004":
        yield _as_finding(settings, trouble)
    elif error := trouble or no_route:
        cause = error.cause
        if net.peer and net.peer != settings.peer:
            cause = cause.replace(f" to {net.peer}:", f" to {settings.peer} ({net.peer}):")
        yield Finding(
            "HOST004",
            me,
            f"{cause}; {me} has {describe_interfaces(list(net.interfaces))}",
            error.remedy,
        )
    yield from _judge_route(settings, net)
    if not settings.alone:
        yield from _judge_addresses(settings, net)


def _as_finding(settings: Settings, error: NetworkError) -> Finding:
    more = settings.or_address("that host") if error.code == "NAME001" else ""
    return Finding(error.code, settings.host_name, error.cause, f"{error.remedy}{more}")


def _judge_name(settings: Settings, net: Network) -> Iterator[Finding]:
    """Yield NAME002 on the head, NAME003 on the others."""
    me, head = settings.host_name, settings.head
    if not net.head or settings.alone or _is_meant(settings, net):
        return
    if settings.is_head and is_loopback(net.head):
        yield Finding(
            "NAME002",
            me,
            f"{me} resolves its own name {head} to {net.head}, which no other host can use",
            f"in /etc/hosts of {me}, give {head} an address that the others reach{settings.or_address(me)}",
        )
    elif not settings.is_head and (
        is_loopback(net.head) or interface_with(net.head, list(net.interfaces))
    ):
        what = f"the head's address {head} belongs to {me} itself"
        remedy = "correct the address of the head in the spec"
        if head != net.head:
            what = f"{me} resolves the head's name {head} to {net.head}, which is {me} itself"
            remedy = f"correct the entry of {head} in /etc/hosts of {me}{settings.or_address('the head')}"
        yield Finding(
            "NAME003",
            me,
            what,
            remedy
            if settings.scheduled
            else f"{remedy}; or, if you started {me}'s script on another machine, start it on {me}",
        )


def _is_meant(settings: Settings, net: Network) -> bool:
    """True if the spec itself puts the head on this machine."""
    if settings.head == "localhost" or is_loopback(settings.head):
        return True
    return not settings.is_head and net.own_address == net.head


def _judge_route(settings: Settings, net: Network) -> Iterator[Finding]:
    """Yield NIC006, NIC007 or NIC011 if the route to the peer goes through another interface than the job's."""
    me, taken, route = settings.host_name, net.interface, net.route
    if not taken or not route or taken == route or net.kinds.get(taken) == LOOPBACK:
        return
    if is_loopback(net.route_source):
        return
    what, of = net.kinds.get(taken, WIRED), net.kinds.get(route, WIRED)
    code = "NIC011"
    if of == WIRED and what != WIRED:
        code = "NIC006" if what == BRIDGE else "NIC007"
    kinds = {BRIDGE: "a bridge", VPN: "a VPN", WIRED: "a wired interface"}
    change = f"set the address of {me} in the spec to {net.route_source}"
    if settings.scheduled:  # such a spec lists no hosts
        change = f"set nic: {route} in the spec"
    yield Finding(
        code,
        me,
        f"{me} uses {taken} ({net.address}), {kinds.get(what, what)}, for the job, but its route to "
        f"{settings.peer} is by {route} ({net.route_source}), {kinds.get(of, of)}",
        f"set nic: {route} in the spec, or remove nic from the spec, so that ddpgen chooses the interface"
        if settings.nic
        else f"{change}, or set nic: {taken} to keep {taken}",
    )


def _judge_addresses(settings: Settings, net: Network) -> Iterator[Finding]:
    """Yield NIC010 if no interface of this host has the address that is in the spec, or in the scheduler."""
    me, known = settings.host_name, list(net.interfaces)
    if net.own_address and interface_with(net.own_address, known) is None:
        own = (
            net.own_address
            if net.own_address == settings.own_address
            else f"{net.own_address} ({settings.own_address})"
        )
        by, remedy = (
            "in the spec",
            f"correct the address of {me} in the spec; or, if you started {me}'s script on another machine, start it on {me}; ",
        )
        if settings.scheduled:
            by, remedy = f"in {settings.scheduled.name}", ""
        yield Finding(
            "NIC010",
            me,
            f"{own}, the address of {me} {by}, is not an address of this host, which has {describe_interfaces(known)}",
            f"{remedy}behind NAT, ignore this warning",
        )


# --- kinds of interfaces ---------------------------------------------------------------------------


def kind(nic: str, sys: Path = _SYS) -> str:
    """Return one of the five kinds; WIRED if nothing says otherwise."""
    return _by_marks(sys / nic) or _by_name(nic)


def _by_marks(entry: Path) -> str:
    for mark, nic_kind in _MARKS.items():
        if (entry / mark).exists():
            return nic_kind
    try:
        nic_kind = _TYPES.get((entry / "type").read_text("utf-8", "replace").strip(), "")
    except OSError:
        nic_kind = ""
    # Hardware without any of these marks is a wired card.
    return nic_kind or (WIRED if (entry / "device").exists() else "")


def _by_name(nic: str) -> str:
    return next((nic_kind for nic_kind, names in _NAMES if re.fullmatch(names, nic)), WIRED)
