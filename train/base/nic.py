"""This host's network interfaces, and the one by which it reaches another host.

Owns the interfaces and addresses of this host, the resolution of names, the choice of the interface
to pin, and the check that a port is free here. Uses only the standard library, because it runs before torch is
imported. Knows nothing of ranks or checkpoints.
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
    known = interfaces()
    if nic:
        return _given(nic, known, (peer or head) if is_head else head)
    towards = resolve(head)
    if is_head:
        carrier = carrying(towards, known)
        if carrier is not None and not is_loopback(towards):
            return carrier.name, towards
        if peer:
            towards = resolve(peer)
    source = source_towards(towards)
    carrier = carrying(source, known)
    if carrier is None:
        raise NetworkError(
            f"{socket.gethostname()} reaches {towards} from {source}, an address that none of its "
            f"interfaces carries ({listed(known)})",
            "name the interface with nic: in the spec",
            "NIC004",
        )
    return carrier.name, source


def _given(nic: str, known: list[Interface], towards: str) -> tuple[str, str]:
    here = socket.gethostname()
    found = next((i for i in known if i.name == nic), None)
    if found is None:
        raise NetworkError(
            f"{here} has no interface {nic!r}; it has {listed(known)}",
            f"set nic: in the spec to {_leading(towards, known)}, or leave nic: out, so that ddpgen chooses the interface",
            "NIC001",
        )
    another = _another(found, known)
    check_usable(found, known)
    if is_loopback(found.addresses[0]) and towards and not is_loopback(resolve(towards)):
        raise NetworkError(
            f"the interface {nic} of {here} leads back to {here} itself",
            another,
            "NIC005",
        )
    # An interface may have several addresses: take the one that the route to the others uses.
    with contextlib.suppress(NetworkError):
        source = source_towards(resolve(towards)) if towards else ""
        if source in found.addresses:
            return nic, source
    return nic, found.addresses[0]


def check_usable(nic: Interface, known: list[Interface]) -> None:
    """Raise NetworkError when `nic` is down, or has no address or carrier."""
    name, here, another = nic.name, socket.gethostname(), _another(nic, known)
    if not nic.up:
        raise NetworkError(
            f"the interface {name} of {here} is down",
            f"ip link set {name} up, or {another}",
            "NIC002",
        )
    if not nic.addresses:
        raise NetworkError(
            f"the interface {name} of {here} has no IPv4 address",
            f"give it one, or {another}",
            "NIC004",
        )
    if not nic.carrier:
        raise NetworkError(
            f"the interface {name} of {here} is up and has no carrier",
            f"look after its cable, or {another}",
            "NIC003",
        )


def _another(than: Interface, known: list[Interface]) -> str:
    """Return the remedy: which interface to name in the spec instead."""
    usable = [i for i in known if i.carrier and i.addresses and not is_loopback(i.addresses[0])]
    others = [each for each in usable if each != than]
    if not others:
        return "leave nic: out of the spec, so that ddpgen chooses the interface"
    return f"set nic: in the spec to another ({listed(others)}), or leave nic: out, so that ddpgen chooses the interface"


def _leading(towards: str, known: list[Interface]) -> str:
    """Return, in words, the interface on the route to `towards`."""
    with contextlib.suppress(NetworkError):
        found = carrying(source_towards(resolve(towards)), known) if towards else None
        if found is not None:
            return f"{found.name}, which leads to {towards}"
    return "one of these"


def carrying(address: str, known: list[Interface]) -> Interface | None:
    """Return the interface that has `address`, or None."""
    exact = next((i for i in known if address in i.addresses), None)
    if exact is None and is_loopback(address):  # all of 127.0.0.0/8 exists, but is not listed
        return next((i for i in known if any(map(is_loopback, i.addresses))), None)
    return exact


def is_loopback(address: str) -> bool:
    """Return whether `address` is a loopback address, which means each host itself. False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def listed(known: list[Interface]) -> str:
    """Return the interfaces with their addresses, in words."""
    return ", ".join(map(str, known)) or "none at all"


def resolve(host: str) -> str:
    """Return the IPv4 address of a host name, or the address itself. Raises NetworkError."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else "that is no host name"
        if only := _ipv6(host):
            why = f"it is {only} only, and the processes meet by IPv4"
        raise NetworkError(
            f"{socket.gethostname()} cannot resolve {host!r}: {why}",
            "add it to /etc/hosts here, with its IPv4 address",
            "NAME001",
        ) from None
    return str(found[0][4][0])


def _ipv6(host: str) -> str:
    """Return the IPv6 address of a host name, or ""."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET6, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(found[0][4][0])


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
    for family, at in families:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                listener.bind((at, port))
                listener.listen()
            except OSError as error:
                if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                    continue  # IPv6 is switched off here
                raise NetworkError(_port_trouble(address, port, error)) from None


def _port_trouble(address: str, port: int, error: OSError) -> str:
    here = f"{socket.gethostname()} ({address})"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {here} is taken by another program (ss -ltnp 'sport = :{port}' shows "
            "which); end it, or set another rendezvous.port in the spec"
        )
    remedy = "set another rendezvous.port in the spec"
    return f"{here} cannot listen on port {port}: {error.strerror}; {remedy}"


def interfaces() -> list[Interface]:
    """Return this host's interfaces. Raises NetworkError if they cannot be listed."""
    found: dict[str, tuple[int, dict[str, int]]] = {}
    try:
        entries = getifaddrs()
    except OSError as error:
        raise NetworkError(
            f"the interfaces of {socket.gethostname()} cannot be listed: {error.strerror}",
            "allow getifaddrs(3), which asks by a netlink socket",
            "NIC001",
        ) from None
    for name, flags, address, mask in entries:
        addresses = found.setdefault(name, (flags, {}))[1]
        if address:
            bits = bin(int.from_bytes(mask, "big")).count("1")
            addresses.setdefault(address, bits or 32)
    return [
        Interface(
            name, bool(flags & _UP), bool(flags & _RUNNING), tuple(known), tuple(known.values())
        )
        for name, (flags, known) in found.items()
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


def _entries(at: int | None) -> Iterator[tuple[str, int, str, bytes]]:
    while at is not None:
        entry = _IfAddrs.from_address(at)
        address = _ipv4(entry.address)
        yield os.fsdecode(entry.name), entry.flags, address, _mask(entry.mask) if address else b""
        at = entry.next


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
