"""The doctor's page and exit code, from the files of a checkpoint directory. For the judgement see
test_diagnosis.py."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train.test_diagnosis import beat
from train.base import processes
from train.health import heartbeats, network, view
from train.health.diagnosis import examine
from train.health.heartbeats import Beat, HostView, ReceivedBeat
from train.run import lock
from train.run.layout import MARKER, step_directory
from train.run.status import Status, write_status
from train.tools import doctor

NO_PROCESS = 2**22 + 1
RUNNING = Status("running", "abc", 100)
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The doctor's exit code and page."""

    def answer(*options: str) -> tuple[int, str]:
        code = doctor.main([str(tmp_path), *options])
        return code, capsys.readouterr().out

    return answer


def living(directory: Path, **odd: Any) -> None:
    """A running world of two on this machine, both are this process; `odd`: of rank 1."""
    write_status(directory, RUNNING)
    (directory / heartbeats.NAME).mkdir()
    for rank in range(2):
        mine = replace(
            beat(rank, 2, host="here", machine=processes.machine(), in_step=0.1),
            pid=os.getpid(), started=processes.start_time(os.getpid()), born=time.time() - 90,
            time=time.time(), monotonic=time.monotonic(), every=10.0,
        )  # fmt: skip
        heartbeats.write_beat(directory, replace(mine, **odd) if rank else mine)


def test_a_healthy_run_is_0_and_a_table(tmp_path: Path, ask: Ask) -> None:
    living(tmp_path)
    code, said = ask()
    assert code == 0
    assert "\nstatus: running\n" in said
    assert "All ranks beat and go on, " in said
    assert len([line for line in said.splitlines() if " goes on " in line]) == 2
    assert "network" not in said  # one host
    for step in (400, 600, 800):
        step_directory(tmp_path, step).mkdir()
        if step < 800:  # this one is being written
            (step_directory(tmp_path, step) / MARKER).write_text("{}")
    assert "\nstatus: running; newest checkpoint: step 600\n" in ask()[1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"slow": {"name": "rank 1 on b\x1b[2J", "cost": 0.31}}, "The others wait 31% of each step for rank 1 on b\\x1b[2J."),
        ({"waiting": [0.7, 0.8], "seconds": 1.0}, "Every rank waits 70% of each step"),
        ({"waiting": [0.1, 0.8], "seconds": 1.0, "shares": [4, 4]}, ""),
        ({"waiting": [0.1, 0.1], "seconds": 1.0, "shares": [3, 5]}, "The ranks compute 3, 5 micro-batches of a step.\n"),
        ({"slow": {"name": "rank 1", "cost": 0.2}, "shares": [7, 1]}, "7, 1 micro-batches of a step. The others wait 20%"),
        ({"slow": {"name": "rank 1", "cost": "much"}}, ""),
        ({"waiting": [], "seconds": 0}, ""),
    ],
)  # fmt: skip
def test_what_makes_the_steps_long_is_said_of_a_job_that_goes_on(
    tmp_path: Path, ask: Ask, row: dict[str, Any], said: str
) -> None:
    living(tmp_path)
    before = ask()[1]
    lines = [{"kind": "ranks", "slow": {"name": "old", "cost": 1}}, {"kind": "ranks", **row}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    after = ask()[1]
    assert (said in after) if said else len(after.splitlines()) == len(before.splitlines())


def test_in_a_large_job_a_host_speaks_of_its_own_ranks(tmp_path: Path, ask: Ask) -> None:
    living(tmp_path, world_size=4)
    own = HostView(
        "here", processes.machine(), time.time(), time.monotonic(), 2.0, 0.0, (), True, "w"
    )
    heartbeats.write_host_view(tmp_path, own)
    code, said = ask()
    assert (code, "at step 121: ranks 0-1." in said) == (0, True)


@pytest.mark.parametrize("another", [{"pid": NO_PROCESS}, {"started": 1}])
def test_a_process_that_is_gone_is_1_here_and_in_json(
    tmp_path: Path, ask: Ask, another: dict[str, int]
) -> None:
    living(tmp_path, stack=("my_model.py:88 in forward",), **another)
    code, said = ask()
    assert code == 1
    assert re.search(r"Rank 1 on here \(process \d+\) ended without an exception", said)
    assert ":\n  my_model.py:88 in forward" in said
    code, said = ask("--json")
    page = json.loads(said)
    assert (code, page["wrong"], page["blamed"]) == (1, True, [1])
    assert [each["condition"] for each in page["ranks"]] == ["waits", "gone"]


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("done", 0, "is done, at step 7."),
        ("stopped", 0, "stopped cleanly, at step 7."),
        ("failed", 1, "has failed, at step 7: no space."),
    ],
)
def test_an_end_is_shown_whatever_heartbeats_are_left(
    tmp_path: Path, ask: Ask, word: str, code: int, says: str
) -> None:
    living(tmp_path, pid=NO_PROCESS)
    write_status(tmp_path, Status(word, "abc", 7, "no space" if word == "failed" else ""))
    got, said = ask()
    assert (got, says in said) == (code, True)


@pytest.mark.parametrize("part", ["", "nodes/a"])
def test_a_command_is_alive_without_heartbeats(tmp_path: Path, ask: Ask, part: str) -> None:
    attempt = lock.claim(tmp_path / part, "mine", os.getpid(), scheduler="slurm 4711 1")
    write_status(tmp_path / part, replace(RUNNING, attempt=attempt))
    code, said = ask()
    assert code == 0
    here = f"(Slurm job 4711, process {os.getpid()} on {socket.gethostname()})"
    assert f"The job is alive {here}" in said
    assert "(train.command)" in said
    held = json.loads((tmp_path / part / "lock").read_text())

    def becomes(**changed: Any) -> str:
        (tmp_path / part / "lock").write_text(json.dumps({**held, **changed}))
        return ask()[1]

    assert "it has not begun, " in becomes(launcher=[NO_PROCESS, 1])
    away = {"boot": "another", "host": "b\x1b[2J"}
    assert "can be seen on b\\x1b[2J, or by 'squeue --job 4711'." in becomes(**away)
    assert "can be seen on b\\x1b[2J." in becomes(**away, scheduler="slurm ;rm 0")
    write_status(tmp_path / part, Status("done", attempt, 0))
    assert "The job is done." in ask()[1]


def test_a_launch_that_the_preflight_refused_is_shown_with_its_findings(
    tmp_path: Path, ask: Ask
) -> None:
    fault = {"code": "PORT001", "host": "a", "cause": "port 1 is taken\x1b", "remedy": "free it"}
    check = {"ok": False, "findings": [fault]}
    (tmp_path / "preflight.json").write_text(json.dumps(check))
    code, said = ask()
    assert code == 1
    assert said.endswith(":\n  PORT001  a: port 1 is taken\\x1b; free it\n")
    assert "preflight" in said
    assert json.loads(ask("--json")[1])["preflight"]["findings"][0]["host"] == "a"
    (tmp_path / "preflight.json").write_text(json.dumps({"ok": True, "findings": []}))
    code, said = ask()
    assert (code, "Nothing has begun" in said) == (0, True)


def test_hosts_without_a_heartbeat_are_known_from_the_preflight(tmp_path: Path, ask: Ask) -> None:
    hosts = [
        {"host": name, "address": address, "node_rank": rank, "procs": 2}
        for rank, name, address in ((1, "b\x1b", "127.0.0.1"), (0, "here", "1 \x1b[2J"))
    ]
    (tmp_path / "preflight.json").write_text(json.dumps({"hosts": hosts}))
    living(tmp_path, world_size=4)
    said = ask()[1]
    assert "Ranks 2-3 (on b\\x1b): no heartbeat " in said
    assert "  ok    b\\x1b (127.0.0.1) answers" in said


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


def test_hostile_files_reach_no_terminal(tmp_path: Path, ask: Ask) -> None:
    living(tmp_path, host="b\x1b]0;x\x07", where="a\x1b[2Jb", stack=("\x9b31m",))
    node = tmp_path / "nodes" / "x\x1b[31m"
    node.mkdir(parents=True)
    write_status(node, Status("running", "a", 1, "r\x1b[0m\u202e"))
    said = ask()[1]
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "b\\x1b]0;x\\x07" in said


OURS = ("status", "nodes/a/status", "preflight.json", f"{heartbeats.NAME}/rank-00001.json",
        f"{heartbeats.NAME}/seen-by-b.json", "lock")  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", ["pipe", "huge"])
def test_what_is_no_file_of_ours_is_named_and_neither_waited_for_nor_read(
    tmp_path: Path, ask: Ask, name: str, kind: str
) -> None:
    living(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 20 << 30)
    code, said = ask()
    assert code == 1
    says = "it is no ordinary file" if kind == "pipe" else "it is larger than "
    assert f"cannot be read: {name}: {says}" in said
    assert json.loads(ask("--json")[1])["unreadable"]


def test_a_directory_that_is_closed_is_named(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    living(tmp_path)
    (tmp_path / "nodes").mkdir()

    def closed(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)  # root reads everything
    assert ask()[0] == 0
    monkeypatch.setattr(doctor, "steps_on_disk", closed)
    monkeypatch.setattr("train.tools.doctor.os.listdir", closed)
    code, said = ask()
    assert code == 1
    assert "cannot be read: nodes: Permission denied" in said


@pytest.mark.parametrize("known", [1, 20_000])
def test_a_huge_world_is_judged_at_once(known: int) -> None:
    size = 100_000
    silent = [ReceivedBeat(beat(rank, size), 60.0) for rank in range(known)]
    began = time.process_time()
    found = examine([*silent, ReceivedBeat(beat(size - 1, size), 0.5)], {})
    view.addresses(replace(found, blamed=tuple(range(size, 2 * size))), "a")
    list(doctor._stacks(found))
    assert list(doctor._table(found.members, 100))[-1] == "… and 99936 more (--json shows all)"
    assert len(found.blamed) == size - 1
    assert time.process_time() - began < 3


def test_a_host_that_is_not_on_this_network_is_named(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    living(tmp_path)
    heartbeats.rank_file(tmp_path, 1).unlink()
    away: Beat = beat(1, 2, host="b", machine="other", address="192.0.2.1", born=time.time() - 90)
    clocks = (time.time(), time.monotonic(), 2.0, 0.0)
    received = HostView(
        "here", processes.machine(), *clocks, (ReceivedBeat(away, 44.0),), world="w"
    )
    heartbeats.write_host_view(tmp_path, received)
    monkeypatch.setattr(network, "_connect", lambda address, port: "silent")
    code, said = ask()
    assert code == 1
    assert re.search(r"Rank 1 on b \(process 101\) .* for 4[4-9] s", said)
    assert "  WRONG b (192.0.2.1) does not answer" in said


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", free_port())) as made:
        yield made


def test_the_network_is_asked_for_real(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    head, store = f"127.0.0.1:{port}", f"the TCPStore (127.0.0.1 port {port})"
    own, near, open_ = network.check_connections(
        {"near": "127.0.0.1"}, head, "nosuch0", "127.0.0.9"
    )
    assert not own[0]
    assert "no interface nosuch0 " in own[1]
    assert near == (True, "near (127.0.0.1) answers")
    assert open_ == (True, f"{store} takes connections")
    listener.close()
    closed = (False, f"{store} is closed: its process on the head has ended")
    assert network.check_connections({}, head) == [closed]
    assert network.check_connections({}, "", "lo", "127.0.0.1")[0][0]
    well, says = network.check_connections({}, "", "lo", "10.1.2.3")[0]
    assert not well
    assert "has lost its address 10.1.2.3" in says
