"""This host's network interfaces, and the one by which it reaches another host.

Owns the interfaces and addresses of this host, the resolution of names, the choice of the interface to pin, and the
check that a port is free here. Uses only the standard library, because it runs before torch is imported. Knows nothing
of ranks or checkpoints.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from train.base.errors import TrainError

_UP = 0x1  # IFF_UP, the same on Linux and macOS
_RUNNING = 0x40  # IFF_RUNNING: up, and with a carrier


class NetworkError(TrainError):
    """This host cannot take part with its present network.

    The message is `cause; remedy`. `code`: the code of the preflight's finding, or "".
    """

    def __init__(self, cause: str, remedy: str = "", code: str = "") -> None:
        super().__init__(f"{cause}; {remedy}" if remedy else cause)
        self.cause, self.remedy, self.code = cause, remedy, code


@dataclass(frozen=True)
class Interface:
    """One network interface and its IPv4 addresses, the primary one first.

    `prefixes`: the length of the network part of each address in bits, if known.
    """

    name: str
    up: bool
    carrier: bool
    addresses: tuple[str, ...]
    prefixes: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.up:
            return f"{self.name} (down)"
        return f"{self.name} ({', '.join(self.addresses) or 'no IPv4 address'})"

    def prefix(self, address: str) -> int:
        """Return the length of the network part of `address` in bits; 32 if it is not known."""
        prefixes = dict(zip(self.addresses, self.prefixes))
        return prefixes.get(address, 32)


def choose(head: str, nic: str = "", is_head: bool = False, peer: str = "") -> tuple[str, str]:
    """Return the interface and the IPv4 address that this host uses for the job. Raises NetworkError.

    If `nic` is given, it is the interface. Otherwise a host that is not the head takes the interface on its route to
    the head. The head takes the interface that has the address `head`, by which the others call it. If no interface
    has it (an address that is translated on the way, or Debian's 127.0.1.1), the head takes the interface on its route
    to `peer`.
    """
    candidates = interfaces()
    if nic:
        return _choose_named(nic, candidates, (peer or head) if is_head else head)
    destination = resolve(head)
    if is_head:
        carrier = interface_with(destination, candidates)
        if carrier is not None and not is_loopback(destination):
            return carrier.name, destination
        if peer:
            destination = resolve(peer)
    source = source_towards(destination)
    carrier = interface_with(source, candidates)
    if carrier is None:
        raise NetworkError(
            f"{socket.gethostname()} reaches {destination} from {source}, an address that none of its "
            f"interfaces carries ({describe_interfaces(candidates)})",
            "name the interface with nic: in the spec",
            "NIC004",
        )
    return carrier.name, source


def _choose_named(nic: str, candidates: list[Interface], destination: str) -> tuple[str, str]:
    host = socket.gethostname()
    interface = next((i for i in candidates if i.name == nic), None)
    if interface is None:
        raise NetworkError(
            f"{host} has no interface {nic!r}; it has {describe_interfaces(candidates)}",
            f"set nic: in the spec to {_name_on_route(destination, candidates)}, or remove nic from the spec, so that ddpgen chooses the interface",
            "NIC001",
        )
    remedy = _name_another(interface, candidates)
    check_usable(interface, candidates)
    leads_back = is_loopback(interface.addresses[0])
    if leads_back and destination and not is_loopback(resolve(destination)):
        raise NetworkError(
            f"the interface {nic} of {host} leads back to {host} itself",
            remedy,
            "NIC005",
        )
    # An interface may have several addresses: take the one that the route to the others uses.
    with contextlib.suppress(NetworkError):
        source = source_towards(resolve(destination)) if destination else ""
        if source in interface.addresses:
            return nic, source
    return nic, interface.addresses[0]


def check_usable(nic: Interface, candidates: list[Interface]) -> None:
    """Raise NetworkError when `nic` is down, or has no address or carrier."""
    name, host, remedy = nic.name, socket.gethostname(), _name_another(nic, candidates)
    if not nic.up:
        raise NetworkError(
            f"the interface {name} of {host} is down",
            f"ip link set {name} up, or {remedy}",
            "NIC002",
        )
    if not nic.addresses:
        raise NetworkError(
            f"the interface {name} of {host} has no IPv4 address",
            f"give it one, or {remedy}",
            "NIC004",
        )
    if not nic.carrier:
        raise NetworkError(
            f"the interface {name} of {host} is up and has no carrier",
            f"look after its cable, or {remedy}",
            "NIC003",
        )


def _name_another(rejected: Interface, candidates: list[Interface]) -> str:
    """Return the remedy: name another interface in the spec, or none."""
    usable = [
        i for i in candidates if i.carrier and i.addresses and not is_loopback(i.addresses[0])
    ]
    others = [interface for interface in usable if interface != rejected]
    if not others:
        return "remove nic from the spec, so that ddpgen chooses the interface"
    return f"set nic: in the spec to another ({describe_interfaces(others)}), or remove nic from the spec, so that ddpgen chooses the interface"


def _name_on_route(destination: str, candidates: list[Interface]) -> str:
    """Return, in words, the interface on the route to `destination`."""
    with contextlib.suppress(NetworkError):
        source = source_towards(resolve(destination)) if destination else ""
        interface = interface_with(source, candidates)
        if interface is not None:
            return f"{interface.name}, which leads to {destination}"
    return "one of these"


def interface_with(address: str, candidates: list[Interface]) -> Interface | None:
    """Return the interface that has `address`, or None."""
    exact = next((i for i in candidates if address in i.addresses), None)
    if exact is None and is_loopback(address):  # all of 127.0.0.0/8 exists, but is not listed
        return next((i for i in candidates if any(map(is_loopback, i.addresses))), None)
    return exact


def is_loopback(address: str) -> bool:
    """Return True if `address` is a loopback address, by which each host means itself. Return False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def describe_interfaces(candidates: list[Interface]) -> str:
    """Return the interfaces with their addresses, in words."""
    return ", ".join(map(str, candidates)) or "none at all"


def resolve(host: str) -> str:
    """Return the IPv4 address of a host name, or the address itself. Raises NetworkError."""
    try:
        entries = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "that is no host name"
        if ipv6_address := _ipv6(host):
            reason = f"it is {ipv6_address} only, and the processes meet by IPv4"
        raise NetworkError(
            f"{socket.gethostname()} cannot resolve {host!r}: {reason}",
            "add it to /etc/hosts here, with its IPv4 address",
            "NAME001",
        ) from None
    return str(entries[0][4][0])


def _ipv6(host: str) -> str:
    """Return the IPv6 address of a host name, or ""."""
    try:
        entries = socket.getaddrinfo(host, None, socket.AF_INET6, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(entries[0][4][0])


def source_towards(address: str) -> str:
    """Return this host's own address on the route to `address`. Sends nothing. Raises NetworkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise NetworkError(
                f"{socket.gethostname()} has no route to {address}: {error.strerror}",
                "bring up the network (or VPN) there, or correct the address of the other host",
                "HOST004",
            ) from None
        return str(probe.getsockname()[0])


def check_port_free(address: str, port: int) -> None:
    """Raise NetworkError unless the head can listen on `port`, on all addresses as torch does."""
    families = [(socket.AF_INET, ""), (socket.AF_INET, address)]
    if socket.has_dualstack_ipv6():
        families.insert(0, (socket.AF_INET6, ""))
    for family, bind_address in families:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                listener.bind((bind_address, port))
                listener.listen()
            except OSError as error:
                if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                    continue  # IPv6 is switched off here
                raise NetworkError(_describe_bind_error(address, port, error)) from None


def _describe_bind_error(address: str, port: int, error: OSError) -> str:
    host = f"{socket.gethostname()} ({address})"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken by another program (ss -ltnp 'sport = :{port}' shows "
            "which); end it, or set another rendezvous.port in the spec"
        )
    remedy = "set another rendezvous.port in the spec"
    return f"{host} cannot listen on port {port}: {error.strerror}; {remedy}"


def interfaces() -> list[Interface]:
    """Return this host's interfaces. Raises NetworkError if they cannot be listed."""
    by_name: dict[str, tuple[int, dict[str, int]]] = {}
    try:
        entries = getifaddrs()
    except OSError as error:
        raise NetworkError(
            f"the interfaces of {socket.gethostname()} cannot be listed: {error.strerror}",
            "allow getifaddrs(3), which asks by a netlink socket",
            "NIC001",
        ) from None
    for name, flags, address, mask in entries:
        addresses = by_name.setdefault(name, (flags, {}))[1]
        if address:
            bits = bin(int.from_bytes(mask, "big")).count("1")
            addresses.setdefault(address, bits or 32)
    return [
        Interface(
            name,
            bool(flags & _UP),
            bool(flags & _RUNNING),
            tuple(prefix_lengths),
            tuple(prefix_lengths.values()),
        )
        for name, (flags, prefix_lengths) in by_name.items()
    ]


# --- getifaddrs(3) of libc, on Linux and macOS: Python has no such call ----------------------------


class _IfAddrs(ctypes.Structure):
    """The first fields of struct ifaddrs, the same on Linux and macOS."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
    )


def getifaddrs() -> list[tuple[str, int, str, bytes]]:
    """Return (name, flags, IPv4 address or "", its netmask or b"") of every entry. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        return list(_entries(first.value))
    finally:
        libc.freeifaddrs(first)


def _entries(pointer: int | None) -> Iterator[tuple[str, int, str, bytes]]:
    while pointer is not None:
        entry = _IfAddrs.from_address(pointer)
        address = _ipv4(entry.address)
        yield os.fsdecode(entry.name), entry.flags, address, _mask(entry.mask) if address else b""
        pointer = entry.next


def _ipv4(address: int | None) -> str:
    """Return the address in a struct sockaddr_in; "" for any other family."""
    if not address:
        return ""
    head = ctypes.string_at(address, 8)
    # On BSD a length byte comes first, and the family is a single byte.
    family = int.from_bytes(head[:2], sys.byteorder) if sys.platform == "linux" else head[1]
    return socket.inet_ntoa(head[4:8]) if family == socket.AF_INET else ""


def _mask(address: int | None) -> bytes:
    """Return the netmask in a struct sockaddr_in. BSD sets no family there, and leaves out the zeros at its end."""
    if not address:
        return b""
    size = 8 if sys.platform == "linux" else min(8, ctypes.string_at(address, 1)[0])
    return ctypes.string_at(address, size)[4:].ljust(4, b"\0")
