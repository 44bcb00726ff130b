"""What only all reports together tell: who differs, who shares an address, whose name leads elsewhere."""

from __future__ import annotations

import json
import random
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.preflight.hosts import FACTS, host, links, settings
from train.preflight.compare import judge
from train.preflight.finding import ERROR, NOTE, SEVERITIES, WARNING
from train.preflight.report import Link, Report
from train.run.saves import Saved


@pytest.mark.parametrize(
    ("third", "changes", "code", "severity", "cause"),
    [
        ({"torch": "2.6.0+cpu"}, {}, "VER001", ERROR, "c has torch 2.6.0; a and b have torch 2.13.0"),
        ({"python": "3.12.1"}, {}, "VER002", WARNING, "c has Python 3.12.1; a and b have Python 3.11.7"),
        ({"python": "3.11.9"}, {}, "VER002", NOTE, "c has Python 3.11.9; a and b have Python 3.11.7"),
        ({"cuda": "11.8"}, {"backend": "nccl"}, "VER003", WARNING, "c has a torch built for CUDA 11.8; a"),
        ({"nccl": "2.20.5"}, {"backend": "nccl"}, "VER004", ERROR, "c has NCCL 2.20.5; a and b have"),
        ({"code": "01d0" * 16}, {}, "VER005", ERROR, "c has code 01d001d001d0; a and b have code c0de"),
        ({"spec": "01d0" * 16}, {}, "VER006", ERROR, "c has spec 01d001d001d0; a and b have spec 5bec"),
        ({"isa": "avx512"}, {}, "VER007", WARNING, "c has processors for avx512; a and b have"),
        # Of no concern to this job, or how such hosts work together, or nothing that is known.
        ({"cuda": "11.8", "nccl": "2.20.5"}, {}, "", "", ""),
        ({"isa": "avx512"}, {"same_bits": False}, "", "", ""),
        ({"torch": "2.13.0+cu126", "cuda": ""}, {}, "", "", ""),
        (dict.fromkeys(FACTS | {"machine": ""}, ""), {}, "", "", ""),
    ],
)  # fmt: skip
def test_of_three_hosts_the_odd_one_is_named_with_what_each_has(
    third: dict[str, str], changes: dict[str, Any], code: str, severity: str, cause: str
) -> None:
    hosts = [host("a"), host("b"), host("c", **third)]
    findings = judge(settings(**changes), hosts, links("abc"))
    assert [(f.code, f.host, f.severity) for f in findings] == [(code, "c", severity)] * bool(code)
    assert all(f.cause.startswith(cause) for f in findings)
    assert all("run.sh" in f.remedy for f in findings if f.code in ("VER005", "VER006"))


@pytest.mark.parametrize(
    ("hosts", "odd", "cause"),
    [
        ([host("b", torch="2.6.0"), host("a")], "b", "b has torch 2.6.0; a has torch 2.13.0"),
        ([host("a", torch="2.6.0"), host("b"), host("c")], "a", "a has torch 2.6.0; b and c have"),
    ],
)
def test_of_two_the_one_that_is_not_the_head_is_named_and_of_more_the_minority(
    hosts: list[Report], odd: str, cause: str
) -> None:
    (finding,) = judge(settings(), hosts, [])
    assert finding.host == odd
    assert finding.cause.startswith(cause)


def test_of_hundreds_of_hosts_the_few_are_named_and_the_many_counted() -> None:
    odd = ("host-7", "host-70")
    hosts = [
        replace(host("b", torch="2.6.0" if f"host-{n}" in odd else "2.13.0"), host=f"host-{n}")
        for n in range(300)
    ]
    hosts = [replace(one, node_rank=n, address="") for n, one in enumerate(hosts)]
    (finding,) = judge(settings(), hosts, [])
    assert finding.cause == (
        "host-7 and host-70 have torch 2.6.0; "
        "host-0, host-1, host-2, host-3, host-4 and 293 more have torch 2.13.0"
    )


def test_of_hosts_that_all_differ_a_few_are_told() -> None:
    hosts = [host(name, torch=f"2.{number}.0") for number, name in enumerate("abcdefghij")]
    (finding,) = judge(settings(), hosts, [])
    assert len(finding.cause) < 200
    assert finding.cause.endswith("4 other kinds; a has torch 2.0.0")


def test_a_name_that_means_two_addresses_is_told_with_both() -> None:
    told = settings(head="desk")
    hosts = [host(name, head="desk") for name in "abc"]
    hosts[2] = replace(hosts[2], resolved="10.0.0.9")
    (finding,) = judge(told, hosts, [])
    assert (finding.code, finding.host, finding.severity) == ("NAME005", "c", WARNING)
    assert finding.cause == "the head's name desk is 10.0.0.9 on c; 192.168.7.1 on a and b"


def test_a_head_that_calls_itself_127_0_1_1_has_no_name_of_two_meanings() -> None:
    assert judge(settings(), [host("a", resolved="127.0.1.1"), host("b")], links("ab")) == []


def test_two_virtual_machines_with_one_address_are_told_and_nothing_of_the_way_between() -> None:
    same = {"address": "10.0.2.15", "nic": "enp0s3"}
    hosts = [host("a", **same), host("b", **same), host("c")]
    (finding,) = judge(settings(), hosts, links("abc", ab="refused", ba="refused"))
    assert (finding.code, finding.host) == ("NIC009", "b")
    assert finding.cause == (
        "a and b are different machines, and take part with one address, 10.0.2.15 (by enp0s3)"
    )


def test_two_hosts_on_one_machine_may_share_its_address() -> None:
    same = {"address": "192.168.7.1", "machine": "one"}
    assert judge(settings(), [host("a", **same), host("b", **same)], []) == []


def test_who_does_not_see_the_shared_directory_is_named_only_where_it_is_to_be_shared() -> None:
    hosts = [host("a"), host("b", filesystem="another"), host("c", filesystem="a third")]
    assert judge(settings(), hosts, []) == []
    assert judge(settings(shared=False), hosts, []) == []
    (finding,) = judge(settings(shared=True), hosts, [])
    assert (finding.code, finding.host, finding.severity) == ("DIR005", "b", ERROR)
    assert finding.cause == "b and c do not see in /ckpt what a put there"


def save(path: str = "", step: int = 0, digest: str = "") -> str:
    return json.dumps(Saved(path, step, digest))


@pytest.mark.parametrize(
    ("desk", "laptop", "cause"),
    [
        (save("/d/ckpt.pt", 20, "aa"), save(), "a has /d/ckpt.pt of step 20, and b has none"),
        (save(), save("/d/ckpt.pt", 0, "aa"), "b has /d/ckpt.pt, and a has none"),
        (save("/d/x", 20, "aa"), save("/d/x", 0, "bb"), "a has /d/x of step 20, and b has /d/x:"),
        (save("/d/x", 20, "aa"), save("/d/x", 0, "aa"), ""),  # a copy
        (save("/d/x", 20, "aa"), save("/d/x", 20, "bb"), ""),  # each host saves its part
        (save(), save(), ""),
        (save("/d/x", 20, "aa"), "", ""),  # a host that does not tell
        (save("/d/x", 20, "aa"), "[1]", ""),
    ],
)
def test_hosts_whose_script_would_begin_at_different_steps_are_told(
    desk: str, laptop: str, cause: str
) -> None:
    findings = judge(settings(), [host("a", save=desk), host("b", save=laptop)], [])
    assert [f.code for f in findings] == ["DIR007"] * bool(cause)
    for finding in findings:
        assert finding.cause.startswith(cause)
        has, lacks = cause[0], "ab".replace(cause[0], "")
        assert finding.host == lacks
        assert finding.remedy.startswith(f"copy it: on {lacks}, `rsync -a {has}:/d/")


facts = st.fixed_dictionaries(
    {"torch": st.sampled_from(["2.13.0", "2.6.0"]), "python": st.sampled_from(["3.11.7", "3.12.1"])}
    | {"address": st.sampled_from(["192.168.7.1", "10.0.0.1", "no address", ""])}
    | {"prefix": st.sampled_from([24, 32, 99]), "machine": st.sampled_from(["", "one", "two"])}
    | {"resolved": st.sampled_from(["", "127.0.1.1", "10.0.0.1", "{}"])}
    | {"filesystem": st.sampled_from(["x", "y"]), "nic": st.sampled_from(["eth0", "{nic}"])}
)
troubles = ["", "timeout", "refused", "unreachable", "large", "broken", "{what}"]


@st.composite
def sick(draw: st.DrawFn) -> tuple[list[Report], list[Link]]:
    """Hosts and links with faults of all kinds at once."""
    names = "abcde"[: draw(st.integers(2, 5))]
    hosts = [host(name, **draw(facts)) for name in names]
    return hosts, [replace(link, trouble=draw(st.sampled_from(troubles))) for link in links(names)]


@pytest.mark.slow
@given(sick(), st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_the_reports_does_not_matter(
    made: tuple[list[Report], list[Link]], dice: random.Random, shared: bool
) -> None:
    hosts, probes = made
    told = settings(shared=shared, backend="nccl")
    findings = judge(told, hosts, probes)
    dice.shuffle(hosts)
    dice.shuffle(probes)
    assert judge(told, hosts, probes) == findings
    assert [f.severity for f in findings] == sorted(
        (f.severity for f in findings), key=SEVERITIES.index
    )


@given(st.integers(2, 26), st.sampled_from(["gloo", "nccl"]), st.sampled_from([None, True, False]))
def test_healthy_hosts_never_give_a_finding(count: int, backend: str, shared: bool | None) -> None:
    names = string.ascii_lowercase[:count]
    hosts = [host(name) for name in names]
    assert judge(settings(backend=backend, shared=shared), hosts, links(names)) == []
