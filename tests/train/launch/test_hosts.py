"""Who takes part, and which ranks are a host's: counted by every host from one list."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ddpgen.driver.ends import Evidence, Report
from tests.train.launch.test_driver_link import Recorded
from train.base import nic
from train.base.errors import Refusal
from train.launch import supervisor as supervisor_module
from train.launch.decision import ExitReport, Request
from train.launch.events import Event, Signal
from train.launch.hosts import HostEntry, Hosts, Listed, membership, read
from train.launch.supervisor import NotBegunError, Supervisor
from train.launch.tier import Membership, Tier
from train.launch.words import Command, workers

HOSTS = (
    HostEntry("desk", "10.0.0.1", 2),
    HostEntry("laptop", "10.0.0.2", 1),
    HostEntry("tower", "tower.lan", 4),
)
NOTHING = Command((), (), (), ())
LISTED = Listed(HOSTS)


@pytest.mark.parametrize(
    ("head", "only", "order"),
    [
        ("", "", ["desk 0 0", "laptop 1 2", "tower 2 3"]),
        ("tower", "", ["tower 0 0", "desk 1 4", "laptop 2 6"]),
        ("", "desk,tower", ["desk 0 0", "tower 1 2"]),
        ("", "tower,desk", ["desk 0 0", "tower 1 2"]),
        ("laptop", "tower,laptop", ["laptop 0 0", "tower 1 1"]),
        ("", "desk", ["desk 0 0"]),
    ],
)
def test_ranks_follow_the_list_with_the_head_first(head: str, only: str, order: list[str]) -> None:
    names = [line.split()[0] for line in order]
    members = [membership(LISTED, name, head, only) for name in names]
    assert [f"{each.host_name} {each.node_rank} {each.first_rank}" for each in members] == order
    procs = {host.name: host.procs for host in HOSTS}
    for each in members:
        assert [name for name, _ in each.roster] == names
        assert (each.head, each.is_head) == (names[0], each.host_name == names[0])
        assert each.procs == procs[each.host_name]
        assert each.world_size == sum(procs[name] for name in names)
        assert each.nodes == len(names)


@pytest.mark.parametrize(
    ("least", "only", "expected"),
    [(3, "", (3, 3)), (2, "", (2, 3)), (2, "desk,laptop", (2, 2)), (2, "desk", (1, 1))],
)
def test_an_elastic_job_begins_with_fewer_hosts(
    least: int, only: str, expected: tuple[int, int]
) -> None:
    member = membership(Listed(HOSTS, (least, 3)), "desk", only=only)
    assert (member.min_nodes, member.nodes) == expected


def test_a_spare_takes_part_only_if_it_is_named() -> None:
    listed = Listed(HOSTS, spares=1)
    first, second, spare = (host.name for host in HOSTS)
    member = membership(listed, first)
    assert ([name for name, _ in member.roster], member.min_nodes) == ([first, second], 2)
    with pytest.raises(Refusal, match=f"without {spare}, this host has nothing to do"):
        membership(listed, spare)
    member = membership(listed, spare, only=f"{first},{spare}")
    assert (member.node_rank, member.nodes) == (1, 2)


@pytest.mark.parametrize(
    ("head", "only", "said"),
    [
        (
            "",
            "desk,desk,laptop",
            "--hosts=desk,desk,laptop: ",
        ),
        ("", "desk,lptop", " desk laptop tower"),
        ("", "desk", "--hosts=desk: without laptop, this host has nothing to do; name it too"),
        ("", "laptop", "--head=desk: takes no part; "),
        ("nobody", "", "--head=nobody: takes no part; "),
    ],
)
def test_what_would_give_two_hosts_one_rank_is_refused(head: str, only: str, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        membership(LISTED, "laptop", head, only)
    assert refused.value.code == 2
    assert said in str(refused.value)


def test_many_others_are_counted_and_not_all_named() -> None:
    many = Listed(tuple(HostEntry(f"n{i}", f"n{i}", 1) for i in range(100)))
    assert membership(many, "n0").other_names == "n1, n2, n3, n4, n5, n6, n7, n8 and 91 more"


@pytest.mark.parametrize(("rank", "expected"), [(0, "10.0.0.2"), (1, "127.0.0.1")])
def test_torch_gets_the_address_of_the_head_that_was_tried(
    rank: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a name torch tries the IPv6 address first, which the preflight has not looked at.
    command = Command(("host",), ("torchrun", "--rdzv-endpoint={head}:{port}"), ("run",), ())
    options = argparse.Namespace(job="job", store="", nic="")
    monkeypatch.setattr(nic, "choose", lambda *_: ("eth0", "10.0.0.2"))
    monkeypatch.setattr(nic, "check_port_free", lambda *_: None)
    supervisor = Supervisor(Tier(options, command), options, command, Recorded())
    supervisor.checkpoint_dir = Path("/x")
    supervisor.member = Membership(
        host_name="laptop", procs=1, world_size=2, node_rank=rank, nodes=2,
        head="desk", head_address="localhost", port=4711,
    )  # fmt: skip
    _, address, head = supervisor._network()
    words = workers(command, supervisor._placeholder_values(address, head))
    assert f"--rdzv-endpoint={expected}:4711" in words


def test_the_list_is_read_as_ddpgen_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    hosts = [{**vars(host), "ssh": "x", "dir": "~", "script": "y"} for host in HOSTS]
    path.write_text(json.dumps({"elastic": [2, 3], "hosts": hosts}))
    assert read(path) == Listed(HOSTS, (2, 3))
    path.write_text(json.dumps({"elastic": None, "hosts": hosts}))
    assert read(path) == LISTED


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"elastic": null, "hosts": [{"name": "a"}]}'])
def test_a_list_that_is_none_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(text)
    with pytest.raises(
        Refusal, match=r"hosts.json cannot be read.*; copy the whole bundle"
    ) as refused:
        read(path)
    assert refused.value.code == 69


@pytest.mark.parametrize(
    ("me", "elastic", "only", "driven", "action"),
    [
        ("laptop", (2, 3), "", "t", "leave"),
        ("desk", (2, 3), "", "t", "stop"),  # the head's stop ends the job on all hosts
        ("laptop", (2, 3), "desk,laptop", "t", "stop"),  # the others are too few to go on
        ("laptop", None, "", "t", "stop"),
        ("laptop", (2, 3), "", "", "stop"),  # a user has closed the terminal
    ],
)
def test_a_host_that_has_lost_the_driver_stops_the_job_only_if_the_others_need_it(
    me: str, elastic: tuple[int, int] | None, only: str, driven: str, action: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hosts = [vars(host) for host in HOSTS]
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "hosts.json").write_text(json.dumps({"elastic": elastic, "hosts": hosts}))
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace(me=me, head="", hosts=only, port=1, driven="")
    tier = Hosts(options, NOTHING)
    options.driven = driven  # without the standard input that a driver speaks on
    tier.membership()
    assert tier.on_signal("HUP", 0, met=True).action == action
    assert tier.on_signal("TERM", 0, met=True).action == "stop"


@pytest.mark.parametrize(("action", "asks_all"), [("leave", False), ("stop", True)])
def test_a_host_that_leaves_ends_its_workers_and_asks_no_other_host_to_stop(
    action: str, asks_all: bool, tmp_path: Path
) -> None:
    options = argparse.Namespace(job="job", store="")
    supervisor = Supervisor(Tier(options, NOTHING), options, NOTHING, Recorded())
    supervisor.checkpoint_dir = tmp_path
    workers = MagicMock()
    supervisor._workers = workers
    supervisor._act_on(Request(action, "why"))
    assert (tmp_path / "stop").exists() == asks_all
    assert workers.end.called != asks_all
    workers.kill.assert_not_called()


def test_the_driver_gets_the_end_in_a_line_with_its_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user's program prints what it likes; only the supervisor has the driver's word."""
    tier = Hosts(argparse.Namespace(me="desk", driven=""), NOTHING)
    tier.report(ExitReport(1, ("crashed: odd",), reason="odd", crashed=True))
    assert capsys.readouterr().err == ""
    tier._options.driven = "t"  # without the standard input that a driver speaks on
    for outcome, data in (
        (
            ExitReport(1, ("crashed: a", "to resume: x"), "a\nb", True),
            '"crashed": true, "reason": "a b"',
        ),
        (
            ExitReport(75, ("stopped at step 7; to resume: x",)),
            '"crashed": false, "reason": "stopped at step 7; to resume: x"',
        ),
        (ExitReport(69), '"crashed": false, "reason": ""'),
    ):
        tier.report(outcome)
        assert capsys.readouterr().err == f"ddpgen-end t {{{data}}}\n"
    refused = ExitReport(69, reason="preflight: GPU006 on laptop; nothing was started")
    tier.report(refused)
    fault = Report(False, refused.reason, ("laptop", "GPU006: the GPU driver does not answer"))
    evidence = Evidence("t")
    assert not evidence.add(capsys.readouterr().err.rstrip())
    assert evidence.report == fault


class Stopped(Recorded):
    """A stop comes as soon as the setup has started something."""

    started: Path

    def result_of(self, work: Callable[[], Any], on_event: Callable[[Event], None]) -> Any:
        threading.Thread(target=work, daemon=True).start()
        until = time.monotonic() + 30
        while not (self.started.exists() and self.started.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        on_event(Signal("TERM"))


def test_a_stop_ends_the_setup_with_all_that_it_has_started(tmp_path: Path) -> None:
    lines, events = tmp_path / "setup.sh", Stopped()
    events.started = tmp_path / "pid"
    lines.write_text(f"(trap '' TERM; echo $BASHPID >'{events.started}'; sleep 97; sleep 97)\n:\n")
    options = argparse.Namespace(job="job")
    supervisor = Supervisor(Tier(options, NOTHING), options, NOTHING, events)
    with pytest.raises(NotBegunError):
        supervisor._set_up(str(lines))
    with pytest.raises(ProcessLookupError):
        os.kill(int(events.started.read_text()), 0)


@pytest.mark.parametrize("why", ["preflight: CLK001 on laptop; nothing was started", ""])
def test_the_finding_of_the_preflight_is_the_reason_of_the_end(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module.preflight, "run", lambda *_: why)
    options = argparse.Namespace(
        secrets="",
        lock="", install=False, checkpoint_dir=str(tmp_path), setup="", preflight=True,
        no_preflight=False, driven="",
    )  # fmt: skip
    command = Command(("host",), (), ("run",), ())
    tier = Tier(options, command)
    member = Membership(host_name="laptop", procs=1, world_size=1, node_rank=0, nodes=1)
    monkeypatch.setattr(tier, "membership", lambda: member)
    supervisor = Supervisor(tier, options, command, Recorded())
    monkeypatch.setattr(supervisor, "_settings", lambda: None)
    monkeypatch.setattr(supervisor, "_run_in_thread", lambda work: work())
    assert supervisor._run() == ExitReport(69 if why else 0, reason=why)
