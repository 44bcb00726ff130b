"""What a rig is to be: hosts, their interfaces and addresses. Pure: values in, values out.

Owns the numbering of addresses and switch ports. Touches no machine.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.real.rig.errors import RigError

SUBNETS = {"lan": "192.168.7.0/24", "vpn": "100.64.0.0/24"}
CONTROL = "control"


@dataclass(frozen=True)
class Host:
    """One host as a test asks for it; see the package's docstring."""

    name: str
    nic: str = "eth0"
    address: str | None = None
    networks: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    resolves: Mapping[str, str | None] = field(default_factory=dict)
    port: int = 22
    jump: str | None = None
    small_disk: Mapping[str, int] = field(default_factory=dict)
    shared: str | None = None
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    services: Sequence[Sequence[str]] = ()

    @property
    def interfaces(self) -> Mapping[str, tuple[str, str | None]]:
        return self.networks or {"lan": (self.nic, self.address)}


@dataclass(frozen=True)
class Link:
    """One cable: from an interface of a host to a port of the switch."""

    network: str
    nic: str
    address: str
    prefix: int
    port: str
    bridge: str

    @property
    def mac(self) -> str:
        """The interface's own, the same after every boot: peers remember it."""
        number = zlib.crc32(f"{self.network} {self.address}".encode())
        return "02:00:" + ":".join(f"{byte:02x}" for byte in number.to_bytes(4, "big"))


@dataclass(frozen=True)
class Wiring:
    """All cables: bridges of the switch by network, links by host (CONTROL is the driver's place)."""

    bridges: Mapping[str, str]
    links: Mapping[str, tuple[Link, ...]]

    def address(self, host: str, seen_from: str) -> str:
        """Where one host finds another: on the first network they share, else anywhere."""
        theirs = {link.network: link.address for link in self.links[host]}
        for link in self.links[seen_from]:
            if link.network in theirs:
                return theirs[link.network]
        return self.links[host][0].address


def wire(hosts: Sequence[Host], subnets: Mapping[str, str], control: Sequence[str]) -> Wiring:
    """Give every interface its address and its port. A wish that cannot be met is a RigError."""
    names = [host.name for host in hosts]
    if len(set(names)) < len(names) or CONTROL in names:
        raise RigError(f"hosts need names of their own, none of them {CONTROL!r}: {names}")
    networks = dict.fromkeys(network for host in hosts for network in host.interfaces)
    bridges = {network: f"br{number}" for number, network in enumerate(networks)}
    unknown = [network for network in control if network not in networks]
    if unknown:
        raise RigError(f"control: no host is on {', '.join(unknown)}")
    links: dict[str, list[Link]] = {name: [] for name in [*names, CONTROL]}
    for network, bridge in bridges.items():
        subnet = ipaddress.IPv4Network(subnets.get(network) or own_subnet(list(bridges), network))
        wishes = [
            (host.name, *host.interfaces[network]) for host in hosts if network in host.interfaces
        ]
        if network in control:
            wishes.append((CONTROL, f"eth{control.index(network)}", str(subnet[-2])))
        for name, nic, address in numbered(wishes, subnet):
            port = f"p{len(links) - 1 if name == CONTROL else names.index(name)}{bridge}"
            links[name].append(Link(network, nic, address, subnet.prefixlen, port, bridge))
    # In the order the host names its networks: the first is its main one.
    order = {host.name: list(host.interfaces) for host in hosts} | {CONTROL: list(control)}
    return Wiring(
        bridges,
        {
            name: tuple(sorted(own, key=lambda link: order[name].index(link.network)))
            for name, own in links.items()
        },
    )


def own_subnet(networks: list[str], network: str) -> str:
    return SUBNETS.get(network, f"10.77.{networks.index(network)}.0/24")


def numbered(
    wishes: list[tuple[str, str, str | None]], subnet: ipaddress.IPv4Network
) -> list[tuple[str, str, str]]:
    """Addresses: the wished ones, and in order the first free ones for the rest."""
    taken = [address for _, _, address in wishes if address is not None]
    if len(set(taken)) < len(taken):
        raise RigError(f"one address for two hosts: {taken}")
    free = (str(address) for address in subnet.hosts() if str(address) not in taken)
    try:
        return [(name, nic, address or next(free)) for name, nic, address in wishes]
    except StopIteration:
        raise RigError(f"{subnet} is too small for {len(wishes)} hosts") from None
