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
        ("abcdef", ALL, "PORT005", "a", "between most of the hosts (a to b, "),
        # Where both are reached by others, no filter of theirs can be to blame (Wi-Fi).
        ("abc", both("bc"), "LINK004", "c", "nothing gets through between c (192.168.7.3) and b ("),
        ("abc", both("bc", trouble="unreachable"), "LINK004", "c", "nothing gets through"),
        ("abc", both("bc", trouble="broken"), "LINK004", "c", "between c (192.168.7.3) and b (192.168.7.2) break off"),
        ("abc", both("ac", "bc", trouble="large"), "LINK001", "c", "large packets between c ("),
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


def test_a_slow_host_is_told_once_with_its_rate_and_what_is_usual() -> None:
    probes = dict.fromkeys(["ad", "bd", "cd", "da", "db", "dc"], 1.2e6)
    assert one(said("abcd", rate=110e6, **dict.fromkeys(probes, 1.2e6)))[:2] == ("LINK002", "d")
    (finding,) = said("abcde", **probes)
    assert finding.cause == (
        "only 1.2 MB/s between d (192.168.7.4) and a, b and c each, where half of the hosts have a "
        "link of 110 MB/s or more"
    )


def test_what_crawls_is_told_also_where_all_do() -> None:
    assert one(said("ab", rate=0.4e6)) == (
        "LINK002",
        "b",
        "only 0.4 MB/s between b (192.168.7.2) and a (192.168.7.1)",
    )


def test_a_way_that_is_slow_in_one_direction_is_told_with_both_rates_and_only_once() -> None:
    assert one(said("abc", ca=1.2e6, cb=2e6)) == (
        "LINK003",
        "c",
        "only 1.2 MB/s from c (192.168.7.3) to a and b, and 110 MB/s the other way",
    )


def test_a_slow_way_out_that_holds_up_receipts_is_one_fault_of_one_host() -> None:
    """Rates of the rig, where b sends no more than 8 Mbit/s."""
    code, where, cause = one(said("abc", ab=132e6, cb=0.64e6, bc=1.12e6, ba=0.96e6))
    assert (code, where) == ("LINK002", "b")
    assert "between b (192.168.7.2) and a and c each" in cause


@pytest.mark.parametrize(
    ("rate", "others"),
    [(1.1e6, {}), (3e6, {}), (5e9, {"ab": 13e6, "ba": 13e6}), (0.0, {}), (110e6, {"ab": 0.0})],
)
def test_what_is_the_same_for_all_or_fast_enough_or_unknown_is_no_fault(
    rate: float, others: dict[str, float]
) -> None:
    assert said("abc", rate=rate, **others) == []


def test_a_thousand_hosts_are_judged_at_once() -> None:
    names = [f"h{n}" for n in range(1000)]
    hosts = [
        Report(name, n, 1000, 1000, 1, "h0", "eth0", f"10.0.{n // 250}.{n % 250 + 1}", 8)
        for n, name in enumerate(names)
    ]
    probes = [
        Link(name, names[(n + 2**k) % 1000], "timeout" if n % 2 else "", 0.001, 110e6)
        for n, name in enumerate(names)
        for k in range(10)
    ]
    began = time.process_time()
    findings = judge(settings(), hosts, probes)
    assert time.process_time() - began < 5
    assert len(findings) <= 13
