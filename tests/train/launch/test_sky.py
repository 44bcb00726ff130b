"""The tier sky on its machines: who takes part, the number of a signals, ends."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from train.base.errors import EXIT_UNAVAILABLE, Refusal
from train.base.scheduler import Scheduled
from train.launch.decision import End
from train.launch.options import add_options
from train.launch.sky import Sky, enroll, membership, task_name
from train.launch.words import Command
from train.run.status import Status

ID = "sky-managed-2026-11-21-21-51-28-123456_spot_7-0"
TOLD = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_TASK_ID": ID,
    "SKYPILOT_INTERNAL_JOB_ID": "3",
}
PORTS = range(29500, 30500)
WAIT_S = 20.0


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in TOLD.items() if key != name}


def test_who_takes_part() -> None:
    found = membership(TOLD, 2, 4, PORTS)
    assert (found.host_name, found.node_rank, found.first_rank, found.world_size) == (
        "node1",
        1,
        4,
        8,
    )
    assert (found.head, found.head_address, found.is_head) == ("node0", "10.0.0.1", False)
    assert (found.nodes, found.min_nodes) == (2, 2)
    assert list(found.roster) == [("node0", "10.0.0.1"), ("node1", "10.0.0.2")]
    assert found.task_directory == ID


def test_all_machines_of_a_start_work_out_one_port_and_another_start_another() -> None:
    ports = [
        membership({**TOLD, "SKYPILOT_NODE_RANK": rank, **more}, 2, 4, PORTS).port
        for more in ({}, {"SKYPILOT_INTERNAL_JOB_ID": "4"})
        for rank in ("0", "1")
    ]
    assert ports[0] == ports[1] != ports[2] == ports[3]
    assert set(ports) <= set(PORTS)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (without("SKYPILOT_NODE_IPS"), "SkyPilot has not said which machine this is"),
        (without("SKYPILOT_NODE_RANK"), "SKYPILOT_NODE_RANK"),
        (without("SKYPILOT_TASK_ID"), "start it by sky jobs launch sky.yaml"),
        ({**TOLD, "SKYPILOT_NODE_RANK": "x"}, "SKYPILOT_NODE_RANK"),
        ({**TOLD, "SKYPILOT_NODE_IPS": "10.0.0.1"}, "planned for 2 machine(s)"),
        (
            {**TOLD, "SKYPILOT_NODE_RANK": "2"},
            "planned for 2 machine(s), and this is number 2 of 2; set nodes in the spec",
        ),
    ],
)
def test_what_skypilot_has_not_said_is_named(told: Mapping[str, str], words: str) -> None:
    with pytest.raises(Refusal, match=r".") as refused:
        membership(told, 2, 4, PORTS)
    assert words in str(refused.value)
    assert refused.value.code == EXIT_UNAVAILABLE


@pytest.mark.parametrize("task", [ID, "sky-" + "x" * 100, "sky/a b:c"])
def test_a_tasks_name_is_one_of_files_and_of_a_scheduler(task: str) -> None:
    name = task_name(task)
    assert Scheduled.parse(f"sky {name} 7") == Scheduled("sky", name, 7)
    assert task_name(task + "y") != name


# --- the number of a start ------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["", "[1]", '{"number": "x"}'])
def test_machines_of_a_start_that_share_a_directory_have_one_number(
    tmp_path: Path, record: str
) -> None:
    (tmp_path / "starts.json").write_text(record)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda rank: enroll(tmp_path, "a", rank), range(8)))
    assert numbers == [0] * 8


def test_a_later_start_has_a_higher_number_than_every_earlier_one(tmp_path: Path) -> None:
    first = [enroll(tmp_path, "a", rank) for rank in (1, 0)]
    second = [enroll(tmp_path, "b", rank) for rank in (0, 1)]
    # Machines that were given out again, with their addresses, to a cluster that counts from 1 again.
    third = [enroll(tmp_path, "b", rank) for rank in (0, 1)]
    # Of this one not all have come.
    fourth = [enroll(tmp_path, "c", 1)]
    fifth = [enroll(tmp_path, "d", rank) for rank in (0, 1)]
    assert (first, second, third, fourth, fifth) == ([0, 0], [1, 1], [2, 2], [3], [4, 4])


def test_only_the_first_machine_of_a_start_removes_what_was_asked_before(tmp_path: Path) -> None:
    enroll(tmp_path, "a", 0)
    for name in ("stop", "store-turn"):
        (tmp_path / name).write_text("of the start before\n")
    enroll(tmp_path, "b", 1)
    assert not (tmp_path / "stop").exists()
    assert not (tmp_path / "store-turn").exists()
    # A machine that is a little faster has been signalled already.
    (tmp_path / "stop").write_text("signal: TERM\n")
    enroll(tmp_path, "b", 0)
    assert (tmp_path / "stop").read_text() == "signal: TERM\n"


def test_what_tells_two_starts_apart() -> None:
    def made(**more: str) -> str:
        return membership({**TOLD, **more}, 2, 2, PORTS).launch

    assert made() == made(SKYPILOT_NODE_RANK="0")
    # A new cluster counts its jobs from 1 again.
    changes = {
        "SKYPILOT_NODE_IPS": "10.0.0.3\n10.0.0.2", "SLURM_JOB_ID": "9", "SKYPILOT_INTERNAL_JOB_ID": "7"
    }  # fmt: skip
    assert len({made(), *(made(**{name: value}) for name, value in changes.items())}) == 4
    assert re.fullmatch(rf"sky\.{ID}\.3\.[0-9a-f]{{8}}", made())


# --- signals and ends -----------------------------------------------------------------------------


def machine() -> Sky:
    sky = Sky(argparse.Namespace(), Command((), (), (), ()))
    sky.me = "n"
    return sky


@pytest.mark.parametrize(
    ("stops", "met", "action", "message", "words"),
    [
        (0, True, "stop", "n: TERM: asking for a clean stop", "signal: TERM"),
        (1, True, "stop", "", "signal: TERM"),  # SkyPilot may send it more than once
        (0, False, "kill", "n: TERM: stopping before the training begins", ""),
        (1, False, "kill", "", ""),
    ],
)
def test_a_signal(stops: int, met: bool, action: str, message: str, words: str) -> None:
    request = machine().on_signal("TERM", stops, met)
    assert (request.action, request.message, request.words) == (action, message, words)


def status(word: str, reason: str = "", step: int = 7) -> Status:
    return Status(word, "a1", step, reason)


BACK = "SkyPilot starts a managed job again"
ON = "to resume: sky jobs launch sky.yaml"


@pytest.mark.parametrize(
    ("end", "code", "line"),
    [
        (End(0, status("done")), 0, "n: done at step 7"),
        (End(0, status("failed", "why")), 1, "n: failed at step 7: why"),
        (End(0, status("stopped")), 130, f"n: stopped at step 7 (user); {ON}"),
        (End(0, status("stopped", "user: x")), 130, f"n: stopped at step 7 (user: x); {ON}"),
        (
            End(0, status("stopped", "signal: TERM")),
            175,
            f"n: stopped at step 7, signal: TERM; {BACK}",
        ),
        (
            End(0, status("stopped", "preempted: aws takes it"), met=True),
            175,
            f"n: stopped at step 7, preempted: aws takes it; {BACK}",
        ),
        (End(137, status("running"), 1, True, False), 175, "n: stopped before the training began"),
        (
            End(3, status("running"), 1),
            1,
            "n: crashed: the launcher ended with code 3 and no process said why, as when one is killed",
        ),
    ],
)
def test_the_end_of_the_workers(end: End, code: int, line: str) -> None:
    outcome = machine().at_end(end)
    assert (outcome.code, outcome.lines) == (code, (line,))


# --- what a pod's hook reads ----------------------------------------------------------------------


def test_a_pods_hook_is_told_this_python_and_what_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TOLD, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_options(parser)
    Sky.add_options(parser)
    words = ["--job=j", "--checkpoint-dir=~/.ddpgen/j", "--nodes=2", "--hook=~/.ddpgen/j/hook"]
    tier = Sky(parser.parse_args(words), Command(("sky",), ("torchrun",), ("run",), ()))
    tier.prepare(tier.membership(), "10.0.0.2")
    told = (tmp_path / ".ddpgen/j/hook").read_text()
    assert told == f"{sys.executable}\n{tmp_path}/.ddpgen/j/{ID}\n"
    assert tier.scheduler == f"sky {ID} 0"
