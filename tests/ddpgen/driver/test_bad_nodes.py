"""Hosts whose own fault has ended two starts: who takes part instead, and who is blamed for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddpgen.driver import plan as plans
from ddpgen.driver.bad_nodes import taking_part
from ddpgen.driver.ends import End, all_by_fault, lost_host
from tests.ddpgen.driver.conftest import Stage

Make = Callable[..., Stage]
THREE = ("desk", "lap", "tower")


def plan(*names: str, **keys: object) -> plans.Plan:
    hosts = tuple(plans.PlannedHost(name, name, "~", f"{name}.sh") for name in names)
    values = {"elastic": None, "restarts": 3, "ssh_options": (), **keys}
    return plans.Plan("pair", "torchrun", head=names[0], checkpoint_dir="c", hosts=hosts, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "keys", "bad", "names"),
    [
        ("a b c", {}, "", "a b c"),
        ("a b c", {}, "b", "a b c"),  # all are needed
        ("a b c", {"spares": 1}, "", "a b"),
        ("a b c", {"spares": 1}, "b", "a c"),
        ("a b c", {"spares": 1}, "a", "b c"),
        ("a b c", {"spares": 1}, "c", "a b"),
        ("a b c", {"spares": 1}, "b a", "a c"),  # the longest known one goes
        ("a b c d", {"spares": 2}, "b a", "c d"),
        ("a b c", {"spares": 1}, "x", "a b"),
        ("a b c", {"elastic": (2, 3)}, "b", "a c"),
        ("a b c", {"elastic": (2, 3)}, "b c", "a c"),
        ("a b c d", {"elastic": (2, 3), "spares": 1}, "b", "a c d"),
        ("a b c d", {"elastic": (2, 3), "spares": 1}, "b c", "a d"),
        ("a b c", {"spares": 1, "exclude_bad_nodes": False}, "b", "a b"),
    ],
)
def test_who_takes_part(hosts: str, keys: dict[str, object], bad: str, names: str) -> None:
    assert " ".join(taking_part(plan(*hosts.split(), **keys), bad.split())) == names


CUT = End(
    "b", "lost", 255, "the connection was lost: Timeout, server b not responding.", is_cut=True
)
MISSED = End("a", "crashed", 1, "rank 0: lost a peer: rank 1 on b is gone", is_consequence=True)


@pytest.mark.parametrize(
    ("ends", "host"),
    [
        ([CUT, MISSED], "b"),
        ([MISSED, CUT], "b"),
        # The driver's own cable; a script that was killed there, maybe by the kernel for its memory.
        ([CUT, End("a", "stopped", 75, "")], None),
        ([CUT], None),
        ([End("b", "lost", 255, "the connection was lost, or its script was killed there"), MISSED], None),
        ([MISSED, End("b", "crashed", 1, "rank 1: ValueError: odd")], None),
        # Several at once have lost something that they share.
        ([CUT, End("c", "lost", 255, "the connection was lost: x", is_cut=True), MISSED], None),
    ],
)  # fmt: skip
def test_a_host_is_lost_if_a_peer_has_lost_it_too(ends: list[End], host: str | None) -> None:
    assert lost_host(ends) == host


def test_a_job_that_has_failed_for_another_reason_is_not_started_again() -> None:
    faulty = End("b", "refused", 69, "preflight: GPU006 on b", fault=("b", "GPU006"))
    killed = End("c", "killed", 1, "killed, as it was asked to", forced=True)
    assert all_by_fault([faulty, killed, CUT, MISSED])
    assert not all_by_fault([faulty, End("a", "failed", 1, "rank 0: CUDA out of memory")])


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_host_whose_gpu_failed_twice(stage: Make) -> None:
    ours = stage(*THREE, spares=1)
    for name in ("desk", "lap"):
        ours.part(name, "gpu", "gpu", "done")
    code, output = ours.play("--steps=5")
    assert code == 0, output
    assert output.count("lap has ended this start by its own fault: GPU006: no answer") == 2
    assert "lap is left out: bad node lap since 2" in output
    assert "in its place: tower" in output
    assert (ours.home("lap") / "launches").read_text().count("\n") == 2
    given = (ours.home("tower") / "arguments").read_text().split("\0")
    assert given[1:3] == ["--hosts=desk,tower", "--steps=5"]
    listed = ours.logs / "bad-nodes"
    assert [line.split()[0] for line in listed.read_text().splitlines()] == ["#", "lap", "lap"]
    assert "bad node lap since 2" in ours.play("--status")[1]
    # The next launch knows it, until a person removes a line.
    assert "lap is left out" in ours.play()[1]
    listed.write_text(listed.read_text().rpartition("lap")[0])
    code, output = ours.play()
    assert code == 0, output
    assert "left out" not in output
    assert (ours.home("lap") / "launches").read_text().count("\n") == 3


@pytest.mark.slow
def test_an_elastic_job_goes_on_without_its_bad_head(stage: Make) -> None:
    ours = stage("lap", "desk", "tower", elastic=[2, 3])
    for name in ("lap", "desk", "tower"):
        ours.part(name, "gpu", "gpu", "done")
    code, output = ours.play()
    assert code == 0, output
    given = (ours.home("tower") / "arguments").read_text().split("\0")
    assert [word for word in given if word.startswith("--h")][-1] == "--hosts=desk,tower"
    assert (ours.home("lap") / "launches").read_text().count("\n") == 2


@pytest.mark.slow
def test_without_room_or_if_it_is_only_a_check_nothing_is_started_again(stage: Make) -> None:
    ours = stage()
    for name in ("desk", "lap"):
        ours.part(name, "gpu")
    assert ours.play()[0] == 69
    assert (ours.logs / "bad-nodes").exists()
    assert ours.play()[0] == 69
    code, output = ours.play()
    assert code == 69
    assert "lap has to stay: bad node lap since 2" in output
    assert (ours.home("lap") / "launches").read_text().count("\n") == 3
    (ours.logs / "bad-nodes").unlink()
    assert ours.play("--preflight")[0] == 69
    assert not (ours.logs / "bad-nodes").exists()


@pytest.mark.slow
def test_a_lost_host_that_stays_away_is_replaced_by_a_spare(stage: Make) -> None:
    ours = stage(*THREE, spares=1)
    ours.door("lap", "refused")
    # No start has ended by that host's fault yet, so the driver's own network may be the cause.
    code, output = ours.play()
    assert code == 69, output
    assert ours.started() == []
    (ours.logs / "bad-nodes").write_text(
        "lap 2026-11-26T10:00:00 its peers and the driver have lost it\n"
    )
    code, output = ours.play()
    assert code == 0, output
    assert "lap has ended this start by its own fault: it cannot be reached" in output
    assert ours.started() == ["desk", "tower"]


def test_bad_hosts_stay_if_the_spec_says_so(stage: Make) -> None:
    ours = stage(*THREE, spares=1, exclude_bad_nodes=False)
    for name in ("desk", "lap"):
        ours.part(name, "gpu")
    assert ours.play()[0] == 69
    assert not (ours.logs / "bad-nodes").exists()
    assert ours.started() == ["desk", "lap"]
