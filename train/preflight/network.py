"""This host's way to the others: what was seen of it, and what is wrong with that.

Owns the look at names, routes and interfaces, and the judgement of one host's own. Sends nothing to
anybody: whether the others answer is found out by checkin.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from train import nic
from train.nic import Interface, NetworkError, carrying, is_loopback, listed
from train.preflight.finding import Finding
from train.preflight.nic_kinds import BRIDGE, LOOPBACK, VPN, WIFI, WIRED, kind
from train.preflight.settings import Settings

Resolve = Callable[[str], str]


@dataclass(frozen=True)
class Network:
    """What was seen. Addresses are IPv4, and "" where there is none.

    `head`, `peer`, `own`: what the names of the job resolve to here; `unresolved`: why the head's
    does not. `source`: this host's address on the route to the peer, by `route`; `no_route`: why
    there is none. `taken`: the interface to take part by, with its `address`; `trouble`: why there
    is none.
    """

    known: Sequence[Interface] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    peer: str = ""
    own: str = ""
    unresolved: NetworkError | None = None
    source: str = ""
    route: str = ""
    no_route: NetworkError | None = None
    taken: str = ""
    address: str = ""
    trouble: NetworkError | None = None

    @property
    def prefix(self) -> int:
        """How many bits of the address name its network."""
        found = carrying(self.address, list(self.known)) if self.address else None
        return found.prefix(self.address) if found else 32


def names(settings: Settings) -> set[str]:
    """The names that look() wants resolved."""
    return set() if settings.alone else {settings.head, settings.peer, settings.own_address} - {""}


def look(settings: Settings, resolve: Resolve) -> Network:
    """See this host's side of the network. `resolve` raises NetworkError."""
    if settings.alone and not settings.nic:
        return Network()
    try:
        known = nic.interfaces()
    except NetworkError as error:
        return Network(trouble=error)
    kinds = {each.name: kind(each.name) for each in known}
    if settings.alone:
        taken, address, trouble = _choose(settings, known, "", "")
        return Network(known, kinds, taken=taken, address=address, trouble=trouble)
    head, unresolved = _resolved(settings.head, resolve)
    own, _ = _resolved(settings.own_address, resolve)
    peer, unknown_peer = _resolved(settings.peer, resolve)
    source, no_route = _source(peer)
    by = carrying(source, known) if source else None
    taken, address, trouble = _choose(settings, known, head, peer)
    if not trouble and unknown_peer and settings.is_head and not settings.nic and address != head:
        # Only by the route to it would the head have found its interface.
        trouble = unknown_peer
    return Network(
        known, kinds, head, peer, own, unresolved, source, by.name if by else "", no_route,
        "" if trouble else taken, "" if trouble else address, trouble,
    )  # fmt: skip


def _resolved(name: str, resolve: Resolve) -> tuple[str, NetworkError | None]:
    try:
        return resolve(name) if name else "", None
    except NetworkError as error:
        return "", error


def _source(peer: str) -> tuple[str, NetworkError | None]:
    try:
        return nic.source_towards(peer) if peer else "", None
    except NetworkError as error:
        return "", error


def _choose(
    settings: Settings, known: list[Interface], head: str, peer: str
) -> tuple[str, str, NetworkError | None]:
    """As the launch script will choose, an unresolved name apart: of that nothing follows here."""
    if not head and not settings.nic:
        return "", "", None
    try:
        taken, address = nic.choose(head, settings.nic, settings.is_head, peer)
        found = next(each for each in known if each.name == taken)
        nic.check_usable(found, known)
    except NetworkError as error:
        return "", "", error
    return taken, address, None


# --- names ----------------------------------------------------------------------------------------


def head_resolves(settings: Settings, net: Network) -> Iterator[Finding]:
    """NAME001."""
    if net.unresolved is not None:
        yield _as_finding(settings, net.unresolved)


def head_is_not_loopback(settings: Settings, net: Network) -> Iterator[Finding]:
    """NAME002 on the head, NAME003 on the others."""
    if not net.head or settings.alone or _is_meant(settings, net):
        return
    if settings.is_head:
        if is_loopback(net.head):
            yield Finding(
                "NAME002",
                settings.me,
                f"{settings.me} resolves its own name {settings.head} to {net.head}, which no other host can use",
                f"write the address of {settings.me} beside {settings.head} in /etc/hosts there, or set "
                "address: of that host in the spec to an IPv4 address",
            )
    elif is_loopback(net.head) or any(net.head in each.addresses for each in net.known):
        what = settings.head if settings.head == net.head else f"{settings.head}, here {net.head},"
        yield Finding(
            "NAME003",
            settings.me,
            f"the head's address {what} leads {settings.me} to itself",
            f"correct {settings.head} in /etc/hosts of {settings.me}, or set address: of the head in the "
            "spec; or is this the script of another host?",
        )


def _is_meant(settings: Settings, net: Network) -> bool:
    """Whether all hosts are this machine, and the spec says so."""
    if settings.head == "localhost" or (_is_address(settings.head) and is_loopback(settings.head)):
        return True
    return not settings.is_head and net.own == net.head


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


# --- interfaces -----------------------------------------------------------------------------------


def interface_can_be_used(settings: Settings, net: Network) -> Iterator[Finding]:
    """NIC001 to NIC005; NAME001 where the interface hangs on another host's name."""
    trouble = net.trouble
    if trouble is not None and trouble.code not in ("", "HOST004"):
        yield _as_finding(settings, trouble)


def route_exists(settings: Settings, net: Network) -> Iterator[Finding]:
    """HOST004. An interface that is down is reason enough: then that is told instead."""
    if net.trouble is not None and net.trouble.code != "HOST004":
        return
    # The head takes part by its own address; whether the others reach that is theirs to say.
    error = net.trouble or (None if settings.is_head else net.no_route)
    if error is None:
        return
    cause = error.cause
    if net.peer and net.peer != settings.peer:
        cause = cause.replace(f" to {net.peer}:", f" to {settings.peer} ({net.peer}):")
    has = f"; it has {listed(list(net.known))}"
    yield Finding("HOST004", settings.me, cause + has, error.remedy)


def interface_leads_to_the_others(settings: Settings, net: Network) -> Iterator[Finding]:
    """NIC006, NIC007 and NIC011: it is not the one that the route takes."""
    taken, route = net.taken, net.route
    if not taken or not route or taken == route or net.kinds.get(taken) == LOOPBACK:
        return
    if is_loopback(net.source):
        return
    what, of = net.kinds.get(taken, WIRED), net.kinds.get(route, WIRED)
    code = "NIC011"
    if of == WIRED and what != WIRED:
        code = "NIC006" if what == BRIDGE else "NIC007"
    kinds = {BRIDGE: "a bridge", WIFI: "Wi-Fi", VPN: "a VPN", WIRED: "a wired interface"}
    yield Finding(
        code,
        settings.me,
        f"{settings.me} takes part by {taken} ({net.address}), {kinds.get(what, what)}, and reaches "
        f"{settings.peer} by {route} ({net.source}), {kinds.get(of, of)}",
        f"set nic: {route} in the spec, or leave it out to have it found"
        if settings.nic
        else f"set address: of {settings.me} in the spec to {net.source}, or set nic: {taken} to keep it",
    )


def address_is_the_first(settings: Settings, net: Network) -> Iterator[Finding]:
    """NIC012: gloo and NCCL are given an interface, and take the first address it has."""
    found = next((each for each in net.known if each.name == net.taken), None)
    if settings.alone or found is None or found.addresses[0] == net.address:
        return
    first = found.addresses[0]
    yield Finding(
        "NIC012",
        settings.me,
        f"{settings.me} is reached by {net.address} of {net.taken}, and its processes take the first address "
        f"of {net.taken}, {first}",
        f"if the hosts do not find each other, make {net.address} the first there, or set address: of "
        f"{settings.me} in the spec to {first} if that is reached too",
    )


def address_is_ones_own(settings: Settings, net: Network) -> Iterator[Finding]:
    """NIC010."""
    if not net.own or carrying(net.own, list(net.known)) is not None:
        return
    named = "" if net.own == settings.own_address else f" ({settings.own_address})"
    yield Finding(
        "NIC010",
        settings.me,
        f"{net.own}{named}, the address of {settings.me} in the spec, is none of this host's: it has "
        f"{listed(list(net.known))}",
        f"correct address: of {settings.me} in the spec; if this is another host, start its own script; "
        "if the address is translated on the way, nothing is to be done",
    )


def _as_finding(settings: Settings, error: NetworkError) -> Finding:
    return Finding(error.code, settings.me, error.cause, error.remedy)
