"""Judge the probes between the hosts: the fault that keeps links from working, and the host that has it.

Most bad links have one bad host in common, so each fault is one finding, about that host. Pure.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from train.preflight.finding import Finding
from train.preflight.phrases import NamedHost, join_names
from train.preflight.report import Link, Report

# A host with one of these findings reaches the head by another interface than the chosen one.
_OTHER_ROUTE = frozenset({"NIC006", "NIC007", "NIC011"})


@dataclass(frozen=True)
class _Probes:
    """The probes by (host, peer), and the hosts' reports."""

    hosts: Mapping[str, Report]
    links: Mapping[tuple[str, str], Link]

    def good(self, host: str, peer: str) -> bool:
        link = self.links.get((host, peer))
        return link is not None and not link.trouble


def judge(reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
    """The faults between hosts that had checked in. The order of reports and links does not matter. Raises nothing."""
    hosts = {r.host: r for r in sorted(reports, key=lambda r: (r.node_rank, r.host))}
    known = [link for link in links if {link.host, link.peer} <= hosts.keys()]
    known = sorted(known, key=lambda link: (link.host, link.peer, link.trouble))
    by_pair = {(link.host, link.peer): link for link in known if link.host != link.peer}
    probes = _Probes(hosts, by_pair)
    by_code: dict[str, list[Link]] = {}
    for link in probes.links.values():
        if link.trouble:
            by_code.setdefault(_code(probes, link), []).append(link)
    return [
        finding for code, bad in by_code.items() for finding in _group_findings(probes, code, bad)
    ]


def _code(probes: _Probes, link: Link) -> str:
    """The code of the fault that keeps a link from working."""
    host, peer = link.host, link.peer
    if link.trouble == "large":
        return "LINK001"
    if _binds_another(probes.hosts[peer]):
        return "NIC012"
    if link.trouble not in ("timeout", "refused", "unreachable"):
        return "LINK004"
    # If one direction works, packets go both ways. Then only a filter can stop the other direction.
    proven = probes.good(peer, host) or _has_met_head(probes, host, peer)
    if not proven and _is_apart(probes.hosts[host], probes.hosts[peer]):
        return "NIC008"
    if link.trouble == "unreachable":
        return "LINK004"
    if link.trouble == "refused" or proven:
        return "PORT005"
    # Nothing comes back. If other hosts reach both hosts, no filter on either of the two can be to blame.
    reached = [any(probes.good(other, one) for other in probes.hosts) for one in (host, peer)]
    return "LINK004" if all(reached) else "PORT005"


def _binds_another(host: Report) -> bool:
    """True if the processes bind another address than the one by which the host checked in."""
    return host.first_address not in ("", host.address)


def _has_met_head(probes: _Probes, *pair: str) -> bool:
    """True if the check-in itself connected these two hosts, over the chosen interfaces."""
    head = next(iter(probes.hosts.values()))
    if head.host not in pair:
        return False
    client = probes.hosts[pair[0] if pair[1] == head.host else pair[1]]
    if any(finding.code in _OTHER_ROUTE for finding in (*client.findings, *head.findings)):
        return False
    return bool(head.address) and client.resolved == head.address


def _is_apart(first: Report, second: Report) -> bool:
    """True if the addresses are in different networks. A prefix of 32 says nothing, because clouds assign it."""
    if 32 in (first.prefix, second.prefix):
        return False
    try:
        networks = [
            ipaddress.ip_interface(f"{host.address}/{host.prefix}").network
            for host in (first, second)
        ]
    except ValueError:
        return False
    return networks[0] != networks[1]


def _group_findings(probes: _Probes, code: str, bad: Sequence[Link]) -> Iterator[Finding]:
    if code == "NIC012":
        yield from _unreached(probes, bad)
        return
    host = _blamed(probes, bad)
    cause, remedy = _DESCRIPTIONS[code](probes, bad, _between_hosts(probes, host, bad))
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
            f"{join_names(others)} {do} not reach it; {name} checked in by {host.address}",
            f"remove {host.first_address} from {host.nic} of {name}, or add it again behind "
            f"{host.address} (ip addr del, ip addr add), or set nic: to another interface of {name}",
        )


def _blamed(probes: _Probes, bad: Sequence[Link]) -> str:
    """The host that takes part in more than half of the bad links; the head if there is no such host. Between two
    hosts, blame the one that does not answer; if neither answers, blame the one that is not the head."""
    part = Counter(name for link in bad for name in (link.host, link.peer))
    reached = Counter(link.peer for link in bad)
    rank = {host: number for number, host in enumerate(probes.hosts)}
    host = max(part, key=lambda name: (part[name], reached[name], rank[name]))
    return host if 2 * part[host] > len(bad) else next(iter(probes.hosts))


def _between_hosts(probes: _Probes, host: str, links: Sequence[Link]) -> str:
    """The bad links in words: from which hosts to which, with the blamed `host` at one end if it is in all of them."""
    ends = {frozenset((link.host, link.peer)) for link in links}
    if not all(host in pair for pair in ends):
        return f"between several hosts ({join_names([f'{link.host} to {link.peer}' for link in links])})"
    others = [other for other in probes.hosts if other != host and frozenset((host, other)) in ends]
    me = _located(probes, host)
    them = str(_located(probes, others[0])) if len(others) == 1 else join_names(others)
    if all(link.peer == host for link in links):
        return f"from {them} to {me}"
    if all(link.host == host for link in links):
        return f"from {me} to {them}"
    return f"between {me} and {them}" + (" each" if len(others) > 1 else "")


def _located(probes: _Probes, host: str) -> NamedHost:
    return NamedHost(host, probes.hosts[host].address)


def _filtered(probes: _Probes, links: Sequence[Link], between_hosts: str) -> tuple[str, str]:
    refused = any(link.trouble == "refused" for link in links)
    how = "rejected" if refused else "dropped without an answer"
    cause = (
        f"connections {between_hosts} to ephemeral ports are {how}, although all hosts checked in"
    )
    remedy = (
        "let the hosts talk to each other on all TCP ports (ufw allow from SUBNET; firewall-cmd "
        "--zone=trusted --add-source=SUBNET; a security group that admits itself)"
    )
    return cause, remedy


def _apart(probes: _Probes, links: Sequence[Link], between_hosts: str) -> tuple[str, str]:
    names = {name for link in links for name in (link.host, link.peer)}
    by = [
        f"{host.host} by {host.nic} ({host.address}/{host.prefix})"
        for name, host in probes.hosts.items()
        if name in names
    ]
    cause = f"nothing gets through {between_hosts}: they take part on different networks, {join_names(by)}"
    remedy = (
        "set nic: of the job, or of each host, to interfaces on one network, or leave it out to have "
        "the one that leads to the head; if the networks are routed, look for a firewall"
    )
    return cause, remedy


def _large(probes: _Probes, links: Sequence[Link], between_hosts: str) -> tuple[str, str]:
    names = {name for link in links for name in (link.host, link.peer)}
    nics = {probes.hosts[name].nic for name in names if probes.hosts[name].nic}
    nic = nics.pop() if len(nics) == 1 else "NIC"
    cause = (
        f"large packets {between_hosts} get lost, while small ones pass: somewhere on the way the MTU is "
        "smaller, and the ICMP message that would say so is filtered"
    )
    remedy = (
        f"give all hosts an MTU that the whole way has (ip link set {nic} mtu 1400 as a trial; jumbo "
        "frames need it of every switch), or let ICMP 'fragmentation needed' pass"
    )
    return cause, remedy


def _cut(probes: _Probes, links: Sequence[Link], between_hosts: str) -> tuple[str, str]:
    broken = all(link.trouble == "broken" for link in links)
    what = (
        f"connections {between_hosts} break off"
        if broken
        else f"nothing gets through {between_hosts}"
    )
    remedy = (
        "look after what connects them: Wi-Fi that keeps its clients apart, VLANs, routes and access "
        "rules of a VPN; hosts[].address and nic: have to be of a network that all of them share"
    )
    return f"{what}, although all hosts checked in with the head", remedy


_DESCRIPTIONS: Mapping[str, Callable[[_Probes, Sequence[Link], str], tuple[str, str]]] = {
    "LINK001": _large,
    "LINK004": _cut,
    "NIC008": _apart,
    "PORT005": _filtered,
}
