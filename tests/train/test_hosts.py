"""What several hosts agree on when they meet."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from train.base.errors import TrainError
from train.distributed.agreement import Assembly, Member
from train.run.lock import FencedOffError, claim
from train.run.node import Node
from train.training.data import ranges


def assembly(*hosts: tuple[str, int], **of_all: Any) -> Assembly:
    """These hosts with so many processes each."""
    members: list[Member] = []
    layout: list[list[int]] = []
    for name, count in hosts:
        layout.append(list(range(len(members), len(members) + count)))
        each = {
            "weight": Fraction(1),
            "device": "cpu",
            "facts": {},
            "attempt": f"{name}1",
            **of_all,
        }
        members += [Member(host=name, **each) for _ in range(count)]
    return Assembly(members, layout)


def with_member(given: Assembly, rank: int, **changes: Any) -> Assembly:
    members = list(given.members)
    members[rank] = Member(**{**vars(members[rank]), **changes})
    return Assembly(members, given.layout)


def test_it_says_who_has_come_with_which_part_of_a_step() -> None:
    pair = assembly(("fast", 2), ("slow", 1))
    assert pair.describe(ranges((3, 3, 2))) == (
        "3 processes on 2 hosts (fast: 2, micro-batches 0-5; slow: 1, 6-7)"
    )
    assert pair.describe(ranges((1, 1, 1))).endswith("(fast: 2, micro-batches 0-1; slow: 1, 2)")


def test_of_many_hosts_it_names_some() -> None:
    many = assembly(*((f"h{n}", 1) for n in range(200)))
    line = many.describe(ranges([1] * 200))
    assert line.startswith("200 processes on 200 hosts (h0: 1, micro-batches 0; h1: 1, 1; ")
    assert line.endswith("h7: 1, 7 and 192 more)")


def test_a_launch_that_a_host_remembers_goes_on_and_else_that_of_rank_0_begins() -> None:
    fresh = assembly(("a", 1), ("b", 2))
    assert fresh.launch == "a1"
    assert with_member(fresh, 1, launch="earlier").launch == "earlier"


def test_the_start_is_at_the_newest_step_and_knows_the_hosts_as_they_were_started() -> None:
    pair = assembly(("a", 1), ("b", 1))
    assert with_member(pair, 1, step=40).start.step == 40
    assert assembly(("b", 1), ("a", 1)).start == pair.start
    assert with_member(pair, 1, attempt="b2").start.world != pair.start.world


def test_two_hosts_of_one_name_are_refused() -> None:
    with pytest.raises(TrainError, match=r"'a' \(attempts a1 and a1\)"):
        assembly(("a", 1), ("a", 1)).check_names()
    with pytest.raises(TrainError, match="started by the launch script"):
        assembly(("a", 1), ("", 1)).check_names()
    assembly(("a", 2), ("b", 1)).check_names()


def test_what_the_bits_depend_on_and_differs_is_named_with_who_has_what() -> None:
    trio = assembly(("a", 1), ("b", 2), ("c", 1), facts={"device": "cpu", "torch": "2.13.0"})
    assert trio.differences() == []
    mixed = with_member(trio, 1, facts={"device": "H200", "torch": "2.13.0"}, device="cuda")
    assert mixed.differences() == ["device: 'cpu' on a, c, 'H200' on b"]
    assert mixed.devices() == "cpu and cuda"


def node(directory: Path, **more: str) -> Node:
    attempt = claim(directory / "nodes" / "desk", "job", 1)
    env = {"DDPGEN_NODE_DIR": str(directory / "nodes" / "desk"), "DDPGEN_ATTEMPT": attempt, **more}
    found = Node.from_environment(env)
    assert found is not None
    return found


def test_a_host_remembers_its_launch_until_its_script_is_started_anew(tmp_path: Path) -> None:
    first = node(tmp_path, DDPGEN_LAUNCH="given")
    assert first.launch() == "given"
    first.remember("met")
    assert first.launch() == "met"
    (tmp_path / "nodes" / "desk" / "lock").unlink()
    second = node(tmp_path)
    assert second.launch() == ""
    with pytest.raises(FencedOffError, match="no longer holds"):
        first.write("done", 3)
    second.write("failed", reason="a\nreason")
    status = (tmp_path / "nodes" / "desk" / "status").read_text()
    assert status == f"failed {second.attempt} 0 a reason\n"


def test_without_a_node_directory_there_are_no_other_hosts() -> None:
    assert Node.from_environment({"DDPGEN_ATTEMPT": "a"}) is None
    assert Node.from_environment({"DDPGEN_NODE_DIR": "a"}) is None
