"""What the probes between the hosts tell: one finding a fault, about the host that has it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.train.preflight.hosts import host, links, settings
from train.preflight.compare import judge
from train.preflight.finding import Finding
from train.preflight.report import Link, Report


def said(names: str, hosts: list[Report] | None = None, **probes: Any) -> list[Finding]:
    found = [host(name) for name in names] if hosts is None else hosts
    return judge(settings(), found, links(names, **probes))


def one(findings: list[Finding]) -> tuple[str, str, str]:
    (finding,) = findings
    return finding.code, finding.host, finding.cause


def both(*pairs: str, trouble: str = "timeout") -> dict[str, str]:
    """Trouble in both directions."""
    return dict.fromkeys([*pairs, *(pair[::-1] for pair in pairs)], trouble)


ALL = {one + other: "timeout" for one in "abcdef" for other in "abcdef" if one != other}
CLOSED = "from a, b and d to c (192.168.7.3) to ephemeral ports are"


@pytest.mark.parametrize(
    ("names", "probes", "code", "host", "part"),
    [
        # A firewall on one host is one finding, with its direction.
        ("abcd", dict.fromkeys(["ac", "bc", "dc"], "timeout"), "PORT005", "c", f"{CLOSED} dropped"),
        ("abcd", dict.fromkeys(["ac", "bc", "dc"], "refused"), "PORT005", "c", f"{CLOSED} rejected"),
        ("ab", {"ba": "timeout"}, "PORT005", "a", "from b (192.168.7.2) to a (192.168.7.1)"),
        # Of two it is the one that is not the head; of three the one that filters what it sends.
        ("ab", both("ab"), "PORT005", "b", "between b (192.168.7.2) and a (192.168.7.1)"),
        ("abc", both("ac", "bc"), "PORT005", "c", "between c (192.168.7.3) and a and b each"),
        ("abcdef", ALL, "PORT005", "a", "between several hosts (a to b, "),
        # Where both are reached by others, no filter of theirs can be to blame (Wi-Fi).
        ("abc", both("bc"), "LINK004", "c", "nothing gets through between c (192.168.7.3) and b ("),
        ("abc", both("bc", trouble="unreachable"), "LINK004", "c", "nothing gets through"),
        ("abc", both("bc", trouble="broken"), "LINK004", "c", "between c (192.168.7.3) and b (192.168.7.2) break off"),
        ("abc", both("ac", "bc", trouble="large"), "LINK001", "c", "large packets between c ("),
        # A fault of two hosts is told of the one that has most of it, with all links; else of the head.
        ("abcdef", dict.fromkeys(["ab", "cb", "ed"], "large"), "LINK001", "b", "(a to b, c to b and e to d)"),
        ("abcdef", dict.fromkeys(["cb", "ed"], "large"), "LINK001", "a", "(c to b and e to d)"),
    ],
)  # fmt: skip
def test_one_fault_is_one_finding_about_the_host_that_has_it(
    names: str, probes: dict[str, str], code: str, host: str, part: str
) -> None:
    found = one(said(names, **probes))
    assert found[:2] == (code, host)
    assert part in found[2]


BOUND = {"first_address": "169.254.1.9"}


@pytest.mark.parametrize(
    ("bound", "probes", "codes"),
    [
        # Where all hosts reach the first address, it does no harm.
        ("b", {}, []),
        ("b", {"ab": "timeout"}, [("NIC012", "b")]),
        ("b", {"ab": "noroute", "cb": "refused"}, [("NIC012", "b")]),
        # Hosts of one image have the same fault, and each is named.
        ("bc", {"ab": "timeout", "cb": "timeout", "ac": "timeout", "bc": "timeout"}, [("NIC012", "b"), ("NIC012", "c")]),
        # Other faults keep their names.
        ("b", {"ab": "large"}, [("LINK001", "b")]),
        ("b", {"ac": "timeout"}, [("PORT005", "c")]),
    ],
)  # fmt: skip
def test_an_address_that_gloo_will_bind_has_to_be_reached(
    bound: str, probes: dict[str, str], codes: list[tuple[str, str]]
) -> None:
    hosts = [host(name, **(BOUND if name in bound else {})) for name in "abc"]
    found = said("abc", hosts, **probes)
    assert [(each.code, each.host) for each in found] == codes


def test_an_address_that_gloo_will_bind_is_named_with_the_hosts_that_do_not_reach_it() -> None:
    hosts = [host("a"), host("b", **BOUND), host("c")]
    (found,) = said("abc", hosts, ab="timeout", cb="timeout")
    assert found.is_error
    assert found.cause == (
        "the processes of b bind 169.254.1.9, the first address of eth0, and a and c do not reach it; "
        "b checked in by 192.168.7.2"
    )
    assert found.remedy == (
        "remove 169.254.1.9 from eth0 of b, or add it again behind 192.168.7.2 (ip addr del, ip addr "
        "add), or set nic: to another interface of b"
    )


def test_two_faults_are_two_findings() -> None:
    findings = said("abcdef", bc="timeout", ef="large")
    assert [(f.code, f.host) for f in findings] == [("PORT005", "c"), ("LINK001", "f")]
    assert "ip link set eth0 mtu" in findings[1].remedy


def docker(name: str, **changes: Any) -> Report:
    """A host that takes part by an interface of its own making."""
    elsewhere = {"nic": "docker0", "address": "172.17.0.1", "prefix": 16}
    return host(name, **(elsewhere | changes))


@pytest.mark.parametrize("there", ["timeout", "refused", "unreachable"])
def test_interfaces_on_networks_that_do_not_meet_are_told_as_such(there: str) -> None:
    odd = Finding("NIC011", "c", "another interface leads to the head", "leave nic: out")
    hosts = [host("a"), host("b"), docker("c", findings=[odd])]
    probes = {"ac": there, "bc": there, "ca": "timeout", "cb": "timeout"}
    code, where, cause = one(said("abc", hosts, **probes))
    assert (code, where) == ("NIC008", "c")
    assert "c by docker0 (172.17.0.1/16)" in cause
    assert "a by eth0 (192.168.7.1/24)" in cause


def test_networks_that_differ_and_reach_each_other_are_fine() -> None:
    hosts = [host("a"), host("b", address="10.1.2.3", prefix=16), host("c", prefix=32)]
    assert said("abc", hosts) == []


def test_between_routed_networks_the_head_tells_a_firewall_from_a_wrong_interface() -> None:
    hosts = [host("a"), host("b", address="10.1.2.3", prefix=16)]
    assert one(said("ab", hosts, ab="timeout"))[0] == "PORT005"
    assert one(said("ab", hosts, ab="timeout", ba="timeout"))[0] == "PORT005"
    odd = Finding("NIC011", "b", "another interface leads to the head", "leave nic: out")
    hosts[1] = host("b", address="10.1.2.3", prefix=16, findings=[odd])
    assert one(said("ab", hosts, ab="timeout", ba="timeout"))[0] == "NIC008"
    # Of a cloud's prefix nothing follows.
    hosts = [host("a"), host("b", address="10.1.2.3", prefix=32), host("c")]
    assert one(said("abc", hosts, bc="timeout"))[0] == "PORT005"


@pytest.mark.slow
def test_a_thousand_hosts_are_judged_at_once() -> None:
    names = [f"h{n}" for n in range(1000)]
    hosts = [
        Report(name, n, 1000, 1000, 1, "h0", "eth0", f"10.0.{n // 250}.{n % 250 + 1}", 8)
        for n, name in enumerate(names)
    ]
    probes = [
        Link(name, names[(n + 2**k) % 1000], "timeout" if n % 2 else "")
        for n, name in enumerate(names)
        for k in range(10)
    ]
    began = time.process_time()
    findings = judge(settings(), hosts, probes)
    assert time.process_time() - began < 5
    assert len(findings) == 1
