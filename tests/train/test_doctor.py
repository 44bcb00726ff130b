"""Which rank the others wait for: the judgement over heartbeats, and the page that shows it."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from train import lock, processes
from train.health import doctor, heartbeats, network, view
from train.health.diagnosis import Diagnosis, examine
from train.health.heartbeats import Beat, Heard, HostView
from train.health.phase import EXCHANGE
from train.layout import MARKER, step_directory
from train.status import Status, read_status, write_status

NOW = 1_000.0
FORWARD = {"phase": "forward", "where": "my_model.py:88 in forward", "waits": False}


def beat(rank: int, size: int = 4, **more: Any) -> Beat:
    host = "a" if rank < size / 2 else "b"
    made = Beat(
        rank, rank, size, host, 100 + rank, f"machine {host}", world="w", born=NOW - 500, time=NOW,
        step=120, phase=EXCHANGE, waits=True, where="train/parallel/step_exchange.py:58 in receive",
        in_step=20.0, in_phase=20.0, usual=0.1,
    )  # fmt: skip
    return replace(made, **more)


def world(odd: Mapping[int, tuple[float, dict[str, Any]]], size: int = 4) -> list[Heard]:
    """All wait for 20 s, but these ranks: (age, what is odd)."""
    return [
        Heard(beat(r, size, **odd[r][1]), odd[r][0]) if r in odd else Heard(beat(r, size), 0.5)
        for r in range(size)
    ]


def test_a_rank_that_is_not_heard_of_is_named_with_who_waits() -> None:
    found = examine(world({3: (22.0, {**FORWARD, "in_step": 0.1})}), {0: "S", 1: "S"}, late=2.0)
    assert found.wrong
    lost, waiting = found.sentences
    assert lost == (
        "rank 3 on b (process 103) has not been heard of for 22 s: its host or its network is gone, "
        "or it is frozen there; it last stood at step 121, forward, my_model.py:88 in forward"
    )
    assert waiting == f"ranks 0-2 wait in step 121, {EXCHANGE}"


def test_a_host_that_is_silent_altogether_is_one_sentence() -> None:
    found = examine(world({2: (22.0, FORWARD), 3: (21.0, {})}), {0: "S", 1: "S"}, late=2.0)
    assert found.blamed == (2, 3)
    assert len(found.sentences) == 2
    assert found.sentences[0] == (
        "ranks 2-3 on b have not been heard of for 22 s: the host or its network is gone, or it is "
        "frozen there; rank 2 last stood at step 121, forward, my_model.py:88 in forward; rank 3 last "
        f"stood at step 121, {EXCHANGE}, train/parallel/step_exchange.py:58 in receive"
    )


@pytest.mark.parametrize(
    ("state", "age", "says"),
    [
        ("T", 1.0, "is stopped, by SIGSTOP, Ctrl-Z or a debugger; kill -CONT 101 has it go on"),
        ("", 1.0, "is gone without a word (last heartbeat 1 s ago): killed"),
        ("Z", 1.0, "is gone without a word"),
        ("D", 30.0, "has been silent for 30 s in state D: it waits for a disk or a driver"),
        ("R", 30.0, "has been silent for 30 s although it runs: native code"),
    ],
)
def test_what_the_system_says_of_a_process_here_counts(state: str, age: float, says: str) -> None:
    found = examine(world({1: (age, {})}), {0: "S", 1: state})
    assert found.blamed == (1,)
    assert says in found.sentences[0]


def test_a_rank_that_stands_in_the_users_code_while_others_wait_is_the_one() -> None:
    found = examine(world({2: (0.5, {**FORWARD, "in_step": 41.0, "busy": 0.99})}), {})
    stands, waiting = found.sentences
    assert stands == (
        "rank 2 on b stands at step 121, forward, my_model.py:88 in forward for 42 s, with 99% of a "
        "processor"
    )
    assert waiting == f"ranks 0-1, 3 wait in step 121, {EXCHANGE}"
    assert found.blamed == (2,)


def test_who_waits_for_one_that_stands_is_told_however_short_it_has_waited() -> None:
    odd: dict[int, tuple[float, dict[str, Any]]] = {r: (0.5, {"in_step": 9.6}) for r in (0, 1, 3)}
    found = examine(world({**odd, 2: (0.5, {**FORWARD, "in_step": 10.1})}), {})
    assert found.blamed == (2,)
    assert found.sentences[1:] == (f"ranks 0-1, 3 wait in step 121, {EXCHANGE}",)


def test_of_two_that_stand_the_one_behind_is_the_cause() -> None:
    behind = {**FORWARD, "step": 119}
    found = examine(world({1: (0.5, behind), 2: (0.5, FORWARD)}), {})
    assert found.blamed == (1,)


def test_when_all_wait_it_is_the_network_or_who_got_less() -> None:
    (says,) = examine(world({}), {}).sentences
    assert says.startswith("all ranks wait for each other at step 121")
    assert says.endswith("look at the network")
    found = examine(world({3: (0.5, {"step": 119})}), {})
    assert found.blamed == (3,)
    assert "rank 3 still waits at step 120" in found.sentences[0]


@pytest.mark.parametrize(
    "well",
    [
        {"in_step": 3.0},
        {"in_step": 60.0, "usual": 30.0},  # its steps take that long
        {"phase": "evaluation", "in_step": 90.0, "in_phase": 90.0},
        {"phase": "building model and data", "step": -1, "in_step": 900.0, "in_phase": 900.0},
    ],
)
def test_what_takes_its_time_is_no_alarm(well: dict[str, Any]) -> None:
    found = examine(world(dict.fromkeys(range(4), (2.0, well))), {})
    assert not found.wrong
    assert found.sentences == ()


def test_a_late_heartbeat_is_no_alarm() -> None:
    going = {"in_step": 0.1}
    odd = dict.fromkeys(range(4), (5.5, going))
    assert not examine(world(odd), {}).wrong
    odd[3] = (9.0, going)
    assert not examine(world(odd), {}, late=4.0).wrong
    assert examine(world(odd), {}).blamed == (3,)


def test_a_host_that_hears_nothing_blames_nobody_by_name() -> None:
    found = examine(world({2: (60.0, {}), 3: (60.0, {})}), {0: "S", 1: "S"}, cut_off=True)
    assert found.sentences == ("ranks 2-3: nothing can be heard of from this host",)
    assert found.wrong


def test_a_rank_never_heard_of_is_missing_once_it_had_time_to_come() -> None:
    heard = world({})[:3]
    found = examine(heard, {}, homes={3: "b"})
    assert found.blamed == (3,)
    assert found.sentences[0].startswith("rank 3 (on b): no heartbeat was ever seen here")
    fresh = [Heard(replace(each.beat, born=NOW - 3, in_step=1.0), 0.1) for each in heard]
    assert not examine(fresh, {}).wrong


def test_who_ended_by_waiting_in_vain_is_not_the_cause() -> None:
    ended = {"ended": "RuntimeError: Timed out waiting", "waited": True}
    odd: dict[int, tuple[float, dict[str, Any]]] = dict.fromkeys((0, 1, 3), (0.5, ended))
    odd[2] = (0.5, {**FORWARD, "in_step": 24.0})
    found = examine(world(odd), {})
    assert found.blamed == (2,)
    assert "stands at step 121, forward, my_model.py:88 in forward" in found.sentences[0]
    odd[2] = (0.5, {"in_step": 0.1})  # it waits as well
    assert examine(world(odd), {}).sentences == (
        "ranks 0-3 waited for each other in vain: look at the network",
    )
    odd[2] = (0.5, {"ended": "ValueError: bad", "where": "mine.py:3 in f"})
    found = examine(world(odd), {})
    assert found.blamed == (2,)
    assert "has ended: ValueError: bad; it last stood at step 121" in found.sentences[0]


def conditions(found: Diagnosis) -> list[str]:
    return [member.condition for member in found.members]


def test_a_host_that_hears_nothing_takes_no_old_beat_for_news() -> None:
    ended = {"ended": "RuntimeError: Timed out waiting", "waited": True, "step": 519}
    odd = {0: (0.5, ended), 1: (0.5, ended), 2: (20.0, {"step": 401}), 3: (20.0, {"step": 401})}
    found = examine(world(odd), {0: "", 1: ""}, cut_off=True, late=4.0)
    assert found.sentences == ("ranks 2-3: nothing can be heard of from this host",)
    odd |= {2: (9.0, {"step": 401}), 3: (0.5, ended)}
    found = examine(world(odd), {0: "", 1: ""}, late=4.0)
    (late,) = found.sentences
    assert late.startswith("rank 2 on b was last heard of 9 s ago, at step 402")
    assert late.endswith("how it is now is not known yet")


def test_a_late_beat_says_how_the_rank_was() -> None:
    going = {"in_step": 0.1, "step": 401}
    odd = {**dict.fromkeys((0, 1, 3), (0.5, going)), 2: (4.0, {**going, "step": 346})}
    found = examine(world(odd), {0: "S", 1: "S"}, late=4.0)
    assert not found.wrong
    assert conditions(found) == ["goes on", "goes on", "late", "goes on"]
    assert found.sentences[0].startswith("rank 2 on b was last heard of 4 s ago, at step 347")
    assert not examine(world(dict.fromkeys(range(4), (2.9, going))), {}, late=4.0).sentences
    # Who waits for it already is well only as far as is known.
    odd |= dict.fromkeys((0, 1, 3), (0.5, {"in_step": 11.0}))
    found = examine(world(odd), {0: "S", 1: "S"}, late=4.0)
    assert (found.wrong, found.sentences[1]) == (True, f"ranks 0-1, 3 wait in step 121, {EXCHANGE}")


def test_a_step_that_others_have_completed_since_is_a_sign_of_life() -> None:
    thawed = {
        0: (0.3, {"in_step": 0.1, "step": 519}),
        1: (2.0, {"in_step": 14.0, "step": 401}),
        2: (16.0, {"in_step": 0.1, "step": 401}),
        3: (0.3, {"in_step": 0.1, "step": 519}),
    }
    found = examine(world(thawed), {0: "S"}, late=4.0)
    assert not found.wrong
    assert conditions(found) == ["goes on", "late", "late", "goes on"]
    assert "wait" not in " ".join(found.sentences)
    # An evaluation is no step; that the last one is long ago is seen by its own time.
    pause = {"phase": "evaluation", "in_step": 0.0, "in_phase": 30.0, "step": 519}
    frozen = {**dict.fromkeys((0, 1, 3), (0.5, pause)), 2: (31.0, {"in_step": 0.1, "step": 510})}
    assert examine(world(frozen), {}, late=4.0).blamed == (2,)


def test_who_waits_for_a_lost_one_waits_at_once_in_table_and_text() -> None:
    soon = {"in_step": 2.0}
    odd = {**dict.fromkeys((0, 1, 3), (0.5, soon)), 3: (0.5, {**soon, **FORWARD}), 2: (2.0, soon)}
    found = examine(world(odd), {2: "T"})
    assert conditions(found) == ["waits", "waits", "stopped", "goes on"]
    assert found.sentences[1] == f"ranks 0-1 wait in step 121, {EXCHANGE}"


def test_who_waits_long_for_one_that_goes_on_is_told() -> None:
    found = examine(world({0: (0.5, {"phase": "evaluation", "in_step": 0.0, "waits": False})}), {})
    assert not found.wrong
    assert found.sentences == (f"ranks 1-3 wait in step 121, {EXCHANGE}",)


def living(directory: Path, *odd: Beat) -> None:
    """A world of two on this machine; rank 0 is this process. Late after 25 s, silent after 40."""
    (directory / heartbeats.NAME).mkdir()
    for rank in range(2):
        mine = replace(
            beat(rank, 2, host="here", machine=processes.machine(), in_step=0.1),
            pid=os.getpid(), started=processes.start_time(os.getpid()), born=time.time() - 90,
            time=time.time(), monotonic=time.monotonic(), every=10.0,
        )  # fmt: skip
        heartbeats.write(heartbeats.rank_file(directory, rank), mine.as_json())
    for each in odd:
        heartbeats.write(heartbeats.rank_file(directory, each.rank), each.as_json())


def run(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = doctor.main([str(directory), *options])
    return code, capsys.readouterr().out


def test_a_healthy_run_is_0_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, Status("running", "abc", 100))
    living(tmp_path)
    code, said = run(tmp_path, capsys)
    assert code == 0
    assert "All ranks beat and go on, at step 121." in said
    assert len([line for line in said.splitlines() if " goes on " in line]) == 2
    assert "network" not in said  # one host


def test_a_process_that_is_gone_is_1_here_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, Status("running", "abc", 100))
    now = {"time": time.time(), "monotonic": time.monotonic(), "born": time.time() - 90}
    dead = beat(1, 2, host="here", machine=processes.machine(), **now)
    living(tmp_path, replace(dead, pid=2**22 + 1, stack=("my_model.py:88 in forward",)))
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert "Rank 1 on here (process 4194305) is gone without a word" in said
    assert "rank 1 on here, innermost line first:\n  my_model.py:88 in forward" in said
    code, said = run(tmp_path, capsys, "--json")
    page = json.loads(said)
    assert (code, page["wrong"], page["blamed"]) == (1, True, [1])
    assert [each["condition"] for each in page["ranks"]] == ["waits", "gone"]


def test_another_process_with_the_same_number_is_not_taken_for_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, Status("running", "abc", 100))
    living(tmp_path)
    file = heartbeats.rank_file(tmp_path, 1)
    heartbeats.write(file, {**json.loads(file.read_text()), "started": 1})
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert "is gone" in said


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("done", 0, "The job is done, at step 7."),
        ("stopped", 0, "The job was stopped cleanly, at step 7."),
        ("failed", 1, "The job has failed, at step 7: no space."),
    ],
)
def test_an_end_is_told_whatever_heartbeats_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, code: int, says: str
) -> None:
    living(tmp_path, beat(1, 2))
    write_status(tmp_path, Status(word, "abc", 7, "no space" if word == "failed" else ""))
    got, said = run(tmp_path, capsys)
    assert got == code
    assert says in said


def test_only_ranks_with_young_heartbeats_are_said_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "NEWS_S", 0.0)
    write_status(tmp_path, Status("running", "abc", 100))
    living(tmp_path)
    file = heartbeats.rank_file(tmp_path, 1)
    said = json.loads(file.read_text())
    heartbeats.write(file, {**said, "monotonic": time.monotonic() - 30, "step": 90})
    code, text = run(tmp_path, capsys)
    assert code == 0
    assert "These go on, at step 121: rank 0.\nRank 1 on here was last heard of " in text
    assert re.search(r"was last heard of 3[0-9] s ago", text)
    monkeypatch.setattr(doctor, "NEWS_S", 20.0)

    def comes(_: float) -> None:
        now = {"monotonic": time.monotonic(), "time": time.time()}
        heartbeats.write(file, {**said, **now})

    monkeypatch.setattr("train.health.view.time.sleep", comes)
    assert "All ranks beat and go on, at step 121." in run(tmp_path, capsys)[1]


def test_a_running_job_is_as_far_as_its_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, Status("running", "abc", 0))
    living(tmp_path)
    assert "\nstatus: running\n" in run(tmp_path, capsys)[1]
    for step in (400, 600, 800):
        step_directory(tmp_path, step).mkdir()
        if step < 800:  # this one is being written
            (step_directory(tmp_path, step) / MARKER).write_text("{}")
    assert "\nstatus: running; newest checkpoint: step 600\n" in run(tmp_path, capsys)[1]
    assert json.loads(run(tmp_path, capsys, "--json")[1])["newest_checkpoint"] == 600


@pytest.mark.parametrize("part", ["", "nodes/a"])
def test_a_command_is_alive_without_heartbeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    attempt = lock.claim(tmp_path / part, "mine", os.getpid())
    write_status(tmp_path / part, Status("running", attempt, 0))
    code, said = run(tmp_path, capsys)
    assert code == 0
    assert f"The job is alive (process {os.getpid()} on {socket.gethostname()})" in said
    assert "a command (train.command) never has one" in said
    held = json.loads((tmp_path / part / "lock").read_text())
    held["launcher"] = [2**22 + 1, 1]
    (tmp_path / part / "lock").write_text(json.dumps(held))
    assert "it has not begun, or has ended" in run(tmp_path, capsys)[1]
    (tmp_path / part / "lock").write_text(json.dumps({**held, "boot": "b", "host": "b\x1b[2J"}))
    assert "whether it is alive can be seen on b\\x1b[2J." in run(tmp_path, capsys)[1]
    write_status(tmp_path / part, Status("done", attempt, 0))
    assert "The job is done." in run(tmp_path, capsys)[1]


def test_of_a_schedulers_job_it_is_told_how_to_ask_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock.claim(tmp_path, "mine", os.getpid(), scheduler="slurm 4711 1")
    assert f"alive (Slurm job 4711, process {os.getpid()} on " in run(tmp_path, capsys)[1]
    held = json.loads((tmp_path / "lock").read_text())
    (tmp_path / "lock").write_text(json.dumps({**held, "boot": "another", "host": "n3"}))
    said = run(tmp_path, capsys)[1]
    assert "whether it is alive can be seen on n3, or by 'squeue --job 4711'." in said
    odd = {**held, "boot": "another", "host": "n3", "scheduler": "slurm ;rm 0"}
    (tmp_path / "lock").write_text(json.dumps(odd))
    assert "can be seen on n3." in run(tmp_path, capsys)[1]


def test_a_launch_that_the_preflight_refused_is_told_with_its_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {"code": "PORT001", "host": "a", "cause": "port 1 is taken\x1b", "remedy": "free it"}
    check = {"ok": False, "findings": [fault, 3, {"code": "NIC001"}]}
    (tmp_path / "preflight.json").write_text(json.dumps(check))
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert said.endswith(
        "The last launch was refused by the preflight, and nothing was started:\n"
        "  PORT001  a: port 1 is taken\\x1b; free it\n"
    )
    assert json.loads(run(tmp_path, capsys, "--json")[1])["preflight"]["findings"][0]["host"] == "a"
    (tmp_path / "preflight.json").write_text(json.dumps({"ok": True, "findings": []}))
    code, said = run(tmp_path, capsys)
    assert (code, "Nothing has begun" in said) == (0, True)
    write_status(tmp_path, Status("done", "abc", 7))
    assert "The job is done, at step 7." in run(tmp_path, capsys)[1]


def test_where_a_rank_should_be_is_known_from_the_preflight(tmp_path: Path) -> None:
    hosts = [
        {"host": name, "address": "192.0.2.1", "node_rank": rank, "procs": 2}
        for rank, name in ((1, "b"), (0, "a"))
    ]
    (tmp_path / "preflight.json").write_text(json.dumps({"ok": True, "hosts": hosts}))
    assert view.homes(tmp_path) == {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_is_no_checkpoint_directory_is_2_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        doctor.main([str(tmp_path / name)])
    assert caught.value.code == 2
    assert "checkpoint.dir in the spec" in capsys.readouterr().err


def test_hostile_files_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    living(
        tmp_path, replace(beat(1, 2), host="b\x1b]0;x\x07", where="a\x1b[2Jb", stack=("\x9b31m",))
    )
    node = tmp_path / "nodes" / "x\x1b[31m"
    node.mkdir(parents=True)
    write_status(node, Status("running", "a", 1, "r\x1b[0m\u202e"))
    (tmp_path / heartbeats.NAME / "said-b-w.txt").write_text("ha\x1b[2J\n")
    (tmp_path / "preflight.json").write_text('{"hosts": [{"host": "\\u001b[2J"}, 3, null]}')
    said = run(tmp_path, capsys)[1]
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "\\x1b[2J" in said


OURS = ("status", "nodes/a/status", "preflight.json", f"{heartbeats.NAME}/rank-00001.json",
        f"{heartbeats.NAME}/seen-by-b.json", f"{heartbeats.NAME}/said-b-w.txt", "lock")  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("pipe", "it is no ordinary file"),
        ("endless", "it is no ordinary file"),
        ("huge", "it is larger than "),
        ("directory", "it is no ordinary file"),
    ],
)
def test_what_is_no_file_of_ours_is_told_and_neither_waited_for_nor_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str, says: str
) -> None:
    living(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 20 << 30)
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert f"cannot be read: {name}: {says}" in said
    assert "the network is not well" not in said
    assert json.loads(run(tmp_path, capsys, "--json")[1])["unreadable"]


def test_a_directory_that_is_closed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, Status("running", "abc", 100))
    living(tmp_path)
    (tmp_path / "nodes").mkdir()

    def closed(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)  # root reads everything
    assert run(tmp_path, capsys)[0] == 0
    monkeypatch.setattr(doctor, "steps_on_disk", closed)
    monkeypatch.setattr("train.health.doctor.os.listdir", closed)
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert "cannot be read: nodes: Permission denied" in said
    assert "network" not in said


@pytest.mark.parametrize("step", ["\u00b2", "\u0663", "9" * 5000, "-1"])
def test_a_status_with_a_step_that_is_none_is_no_status(tmp_path: Path, step: str) -> None:
    (tmp_path / "status").write_text(f"running abc {step}\n", "utf-8")
    assert read_status(tmp_path) is None


def test_a_reason_without_end_does_not_make_a_status_unreadable(tmp_path: Path) -> None:
    write_status(tmp_path, Status("failed", "abc", 7, "x" * (2 << 20)))
    status = read_status(tmp_path)
    assert status is not None
    assert status.step == 7


def test_an_address_is_nothing_but_an_address(tmp_path: Path) -> None:
    report = {"host": "a", "address": "192.0.2.1 \x1b[2J", "node_rank": 0, "procs": 1}
    (tmp_path / "preflight.json").write_text(json.dumps({"hosts": [report]}))
    assert view.addresses(Diagnosis((), (), False), "", tmp_path) == {}


@pytest.mark.parametrize("known", [1, 20_000])
def test_a_world_without_end_is_judged_at_once(tmp_path: Path, known: int) -> None:
    size = 100_000
    silent = [Heard(beat(rank, size), 60.0) for rank in range(known)]
    began = time.process_time()
    found = examine([*silent, Heard(beat(size - 1, size), 0.5)], {})
    view.addresses(replace(found, blamed=tuple(range(size, 2 * size))), "a")
    list(doctor._stacks(found))
    assert list(doctor._table(found.members, 100))[-1] == "… and 99936 more (--json shows all)"
    assert len(found.blamed) == size - 1
    assert time.process_time() - began < 3


def test_a_host_that_is_not_on_this_network_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, Status("running", "abc", 100))
    living(tmp_path)
    heartbeats.rank_file(tmp_path, 1).unlink()
    away = beat(1, 2, host="b", machine="other", address="192.0.2.1", born=time.time() - 90)
    host_view = HostView(
        "here", processes.machine(), time.time(), time.monotonic(), 2.0, 0.0, (Heard(away, 44.0),)
    )
    heartbeats.write_host_view(tmp_path, host_view)
    monkeypatch.setattr(network, "_connect", lambda address, port: "silent")
    monkeypatch.setattr(network, "_ping", lambda address: "silent")
    code, said = run(tmp_path, capsys)
    assert code == 1
    assert re.search(r"Rank 1 on b \(process 101\) has not been heard of for 4[4-9] s", said)
    assert "  WRONG b (192.0.2.1) does not answer" in said


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", free_port())) as made:
        yield made


def test_the_network_is_asked_for_real(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    answers = network.look({"near": "127.0.0.1"}, f"127.0.0.1:{port}", "nosuch0", "127.0.0.9")
    assert answers[0] == (False, answers[0][1])
    assert "has no interface nosuch0 any more" in answers[0][1]
    assert answers[1] == (True, "near (127.0.0.1) answers")
    assert answers[2] == (True, f"the run's store (127.0.0.1 port {port}) takes connections")
    listener.close()
    assert network.look({}, f"127.0.0.1:{port}") == [
        (
            False,
            f"the run's store (127.0.0.1 port {port}) is closed: its process on the head has ended",
        )
    ]


def test_the_own_interface_is_looked_at() -> None:
    assert network.look({}, "", "lo", "127.0.0.1")[0][0]
    well, says = network.look({}, "", "lo", "10.1.2.3")[0]
    assert not well
    assert "has lost its address 10.1.2.3" in says
