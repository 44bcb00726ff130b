"""What the probes between the hosts say: who cannot be reached, and which links are slow.

Many bad links mostly are one bad host: as few hosts are named as explain all of them. Pure.
"""

from __future__ import annotations

import ipaddress
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from train.preflight.finding import Finding
from train.preflight.phrases import NamedHost, listed, rated
from train.preflight.report import Link, Report

# Rates in bytes a second. 100 Mbit/s: what is faster is no fault, however fast the others are.
_SLOW = 12.5e6
_CRAWL = 1e6  # gradients of any size take minutes
_WINDOW = 16e3  # bytes that are under way when a burst begins
_TIMES = 4  # how far below the others, or below the way back, is far
_MOST = 12  # hosts named one by one for one fault
# Where a host said one of these, its route to the head is not that of the chosen interface.
_OTHER_ROUTE = frozenset({"NIC006", "NIC007", "NIC011"})


@dataclass(frozen=True)
class _Probes:
    """The probes by (host, peer), and who the hosts are."""

    hosts: Mapping[str, Report]
    links: Mapping[tuple[str, str], Link]
    at_once: Mapping[str, int]  # by how many a host was probed

    def good(self, host: str, peer: str) -> bool:
        link = self.links.get((host, peer))
        return link is not None and not link.trouble


def judge(reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
    """The faults between hosts that had checked in. Neither order matters; raises nothing."""
    hosts = {r.host: r for r in sorted(reports, key=lambda r: (r.node_rank, r.host))}
    known = [link for link in links if {link.host, link.peer} <= hosts.keys()]
    known = sorted(known, key=lambda link: (link.host, link.peer, link.trouble, link.rate))
    by_pair = {(link.host, link.peer): link for link in known if link.host != link.peer}
    probes = _Probes(hosts, by_pair, Counter(peer for _, peer in by_pair))
    by_code: dict[str, list[Link]] = {}
    for link in probes.links.values():
        if link.trouble:
            by_code.setdefault(_code(probes, link), []).append(link)
    return [
        *(finding for code, bad in by_code.items() for finding in _told(probes, code, bad)),
        *_told_slow(probes),
    ]


def _code(probes: _Probes, link: Link) -> str:
    """Which fault keeps a link from working."""
    host, peer = link.host, link.peer
    if link.trouble == "large":
        return "LINK001"
    if _binds_another(probes.hosts[peer]):
        return "NIC012"
    if link.trouble not in ("timeout", "refused", "unreachable"):
        return "LINK004"
    # That one direction works proves that packets go both ways: only a filter makes such a difference.
    proven = probes.good(peer, host) or _has_met_head(probes, host, peer)
    if not proven and _is_apart(probes.hosts[host], probes.hosts[peer]):
        return "NIC008"
    if link.trouble == "unreachable":
        return "LINK004"
    if link.trouble == "refused" or proven:
        return "PORT005"
    # Nothing comes back. Where both are reached by others, no filter of theirs can be to blame.
    reached = [any(probes.good(other, one) for other in probes.hosts) for one in (host, peer)]
    return "LINK004" if all(reached) else "PORT005"


def _binds_another(host: Report) -> bool:
    """True if the processes bind another address than the one by which the host checked in."""
    return host.first_address not in ("", host.address)


def _has_met_head(probes: _Probes, *pair: str) -> bool:
    """Whether the check-in itself went between these two, from and to the chosen interfaces."""
    head = next(iter(probes.hosts.values()))
    if head.host not in pair:
        return False
    client = probes.hosts[pair[0] if pair[1] == head.host else pair[1]]
    if any(finding.code in _OTHER_ROUTE for finding in (*client.findings, *head.findings)):
        return False
    return bool(head.address) and client.resolved == head.address


def _is_apart(one: Report, other: Report) -> bool:
    """Whether the addresses are of different networks. A prefix of 32 says nothing: clouds give it."""
    if 32 in (one.prefix, other.prefix):
        return False
    try:
        networks = [
            ipaddress.ip_interface(f"{host.address}/{host.prefix}").network for host in (one, other)
        ]
    except ValueError:
        return False
    return networks[0] != networks[1]


def _is_slower_than_back(probes: _Probes, link: Link) -> bool:
    back = probes.links.get((link.peer, link.host))
    if back is None or link.trouble or back.trouble:
        return False
    return 0 < link.rate < _noteworthy(probes, link) and link.rate * _TIMES <= back.rate


def _usual(probes: _Probes) -> float:
    """Bytes a second on the best link that half of the hosts have: of three, one spoils most links."""
    best: dict[str, float] = {}
    for link in probes.links.values():
        if not link.trouble and link.rate > 0:
            for host in (link.host, link.peer):
                best[host] = max(best.get(host, 0.0), link.rate)
    return statistics.median(best.values()) if best else 0.0


def _limit(probes: _Probes, link: Link, usual: float) -> float:
    """Bytes a second below which a link is slow, where the others usually have `usual`."""
    far_below = max(_CRAWL, min(_SLOW, usual / _TIMES))
    return min(far_below, _noteworthy(probes, link))


def _noteworthy(probes: _Probes, link: Link) -> float:
    """Bytes a second that say nothing against the link.

    A host may be probed by all its neighbours at once; and on a long way a burst is over before
    TCP's window has opened (RFC 5681, slow start). What waits behind a burst seems far as well: the
    shorter of both round trips is the way's.
    """
    back = probes.links.get((link.peer, link.host))
    trips = [each.rtt_s for each in (link, back) if each is not None and each.rtt_s > 0]
    far = _WINDOW / min(trips) if trips else _SLOW
    return min(_SLOW / probes.at_once[link.peer], far)


def _told(probes: _Probes, code: str, bad: Sequence[Link]) -> Iterator[Finding]:
    if code == "NIC012":
        yield from _unreached(probes, bad)
        return
    for host, links in _blamed(probes, bad):
        cause, remedy = _WORDS[code](probes, links, _between(probes, host, links))
        yield Finding(code, host, cause, remedy)


def _unreached(probes: _Probes, bad: Sequence[Link]) -> Iterator[Finding]:
    """NIC012, one for each host whose first address is at fault, however many there are."""
    for name in dict.fromkeys(link.peer for link in bad):
        host, others = probes.hosts[name], [link.host for link in bad if link.peer == name]
        do = "does" if len(others) == 1 else "do"
        yield Finding(
            "NIC012",
            name,
            f"the processes of {name} bind {host.first_address}, the first address of {host.nic}, and "
            f"{listed(others)} {do} not reach it; {name} checked in by {host.address}",
            f"remove {host.first_address} from {host.nic} of {name}, or add it again behind "
            f"{host.address} (ip addr del, ip addr add), or set nic: to another interface of {name}",
        )


def _told_slow(probes: _Probes) -> Iterator[Finding]:
    """LINK002, or LINK003 where all that is slow with a host is much faster the other way.

    Both at once, as one slow way out may, with the receipts it delays, look like either.
    """
    usual = _usual(probes)
    one_way = {key for key, link in probes.links.items() if _is_slower_than_back(probes, link)}
    slow = [
        link
        for key, link in probes.links.items()
        if key in one_way or (not link.trouble and 0 < link.rate < _limit(probes, link, usual))
    ]
    for host, links in _blamed(probes, slow):
        slowest = min(link.rate for link in links)
        cause = f"only {rated(slowest)} {_between(probes, host, links)}"
        is_one_way = all((link.host, link.peer) in one_way for link in links)
        if is_one_way:
            back = max(probes.links[link.peer, link.host].rate for link in links)
            cause += f", and {rated(back)} the other way"
        elif usual > _TIMES * slowest:
            cause += f", where half of the hosts have a link of {rated(usual)} or more"
        yield Finding("LINK003" if is_one_way else "LINK002", host, cause, _SLOW_REMEDY)


def _blamed(probes: _Probes, bad: Iterable[Link]) -> Iterator[tuple[str, list[Link]]]:
    """As few hosts as explain all bad links, each with its links; the head with all where it is most."""
    left = list(bad)
    told: list[tuple[str, list[Link]]] = []
    rank = {host: number for number, host in enumerate(probes.hosts)}
    most = min(_MOST, max(1, len(probes.hosts) // 2))
    everything = list(left)
    while left and len(told) <= most:
        others: dict[str, set[str]] = {}
        for link in left:
            others.setdefault(link.host, set()).add(link.peer)
            others.setdefault(link.peer, set()).add(link.host)
        reached = Counter(link.peer for link in left)
        # Of two it is the one that does not answer, and if neither does, the one that is not the head.
        host = max(others, key=lambda h: (len(others[h]), reached[h], rank[h]))
        told.append((host, [link for link in left if host in (link.host, link.peer)]))
        left = [link for link in left if host not in (link.host, link.peer)]
    if left or len(told) > most:
        yield next(iter(probes.hosts)), everything
    else:
        yield from told


def _between(probes: _Probes, host: str, links: Sequence[Link]) -> str:
    """The direction in words, around the host that is blamed."""
    ends = {frozenset((link.host, link.peer)) for link in links}
    if not all(host in pair for pair in ends):
        few = listed([f"{link.host} to {link.peer}" for link in links])
        return f"between most of the hosts ({few})"
    others = [other for other in probes.hosts if other != host and frozenset((host, other)) in ends]
    me = _located(probes, host)
    them = str(_located(probes, others[0])) if len(others) == 1 else listed(others)
    if all(link.peer == host for link in links):
        return f"from {them} to {me}"
    if all(link.host == host for link in links):
        return f"from {me} to {them}"
    return f"between {me} and {them}" + (" each" if len(others) > 1 else "")


def _located(probes: _Probes, host: str) -> NamedHost:
    return NamedHost(host, probes.hosts[host].address)


def _filtered(probes: _Probes, links: Sequence[Link], between: str) -> tuple[str, str]:
    refused = any(link.trouble == "refused" for link in links)
    how = "rejected" if refused else "dropped without an answer"
    cause = f"connections {between} to ephemeral ports are {how}, although all hosts checked in"
    remedy = (
        "let the hosts talk to each other on all TCP ports (ufw allow from SUBNET; firewall-cmd "
        "--zone=trusted --add-source=SUBNET; a security group that admits itself)"
    )
    return cause, remedy


def _apart(probes: _Probes, links: Sequence[Link], between: str) -> tuple[str, str]:
    names = {name for link in links for name in (link.host, link.peer)}
    by = [
        f"{host.host} by {host.nic} ({host.address}/{host.prefix})"
        for name, host in probes.hosts.items()
        if name in names
    ]
    cause = f"nothing gets through {between}: they take part on different networks, {listed(by)}"
    remedy = (
        "set nic: of the job, or of each host, to interfaces on one network, or leave it out to have "
        "the one that leads to the head; if the networks are routed, look for a firewall"
    )
    return cause, remedy


def _large(probes: _Probes, links: Sequence[Link], between: str) -> tuple[str, str]:
    names = {name for link in links for name in (link.host, link.peer)}
    nics = {probes.hosts[name].nic for name in names if probes.hosts[name].nic}
    nic = nics.pop() if len(nics) == 1 else "NIC"
    cause = (
        f"large packets {between} get lost, while small ones pass: somewhere on the way the MTU is "
        "smaller, and the ICMP message that would say so is filtered"
    )
    remedy = (
        f"give all hosts an MTU that the whole way has (ip link set {nic} mtu 1400 as a trial; jumbo "
        "frames need it of every switch), or let ICMP 'fragmentation needed' pass"
    )
    return cause, remedy


def _cut(probes: _Probes, links: Sequence[Link], between: str) -> tuple[str, str]:
    broken = all(link.trouble == "broken" for link in links)
    what = f"connections {between} break off" if broken else f"nothing gets through {between}"
    remedy = (
        "look after what connects them: Wi-Fi that keeps its clients apart, VLANs, routes and access "
        "rules of a VPN; hosts[].address and nic: have to be of a network that all of them share"
    )
    return f"{what}, although all hosts checked in with the head", remedy


_WORDS: Mapping[str, Callable[[_Probes, Sequence[Link], str], tuple[str, str]]] = {
    "LINK001": _large,
    "LINK004": _cut,
    "NIC008": _apart,
    "PORT005": _filtered,
}
_SLOW_REMEDY = (
    "look after its cable and switch port (ethtool NIC shows speed and duplex), Wi-Fi, a VPN, other "
    "traffic; or set nic: to a faster interface"
)
