"""The processes of one host end together, whoever ends first and however."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from tests.real.jobs import children
from train.__main__ import main

PATIENCE_S = 20


def spawn(script: str, *more: str, procs: int = 2) -> subprocess.Popen[str]:
    ranks = [f"--procs={procs}", "--first-rank=1", "--world-size=4", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "train", "spawn", *ranks, "--", "bash", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_each_process_gets_the_variables_torchrun_would_set() -> None:
    names = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK"
    process = spawn(f'echo {names} "$0"; ! read -r', "--node-rank=1")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert sorted(out.splitlines()) == ["1 4 0 2 1 bash", "2 4 1 2 1 bash"]
    assert process.returncode == 0


def test_when_one_fails_the_others_are_ended_and_it_is_named() -> None:
    process = spawn('[ "$RANK" = 1 ] || exit 7; exec sleep 600')
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    (line,) = error.splitlines()
    assert line.startswith("ddpgen: rank 2 (process ")
    assert line.endswith(") ended with code 7; ending the others")


def test_a_signal_is_passed_on_and_who_ends_well_ends_it_well() -> None:
    process = spawn('trap "echo ending; exit 0" TERM; echo ready; while :; do sleep 0.1; done')
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("ending\n" * 2, 0)


def test_a_signal_reaches_all_that_a_command_has_started() -> None:
    child = "bash -c 'echo ready; exec sleep 600'"  # its bash hears nothing before the end of that
    process = spawn(f'exec setsid bash -c "trap : TERM; {child}; exit 0"')
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_who_does_not_listen_is_killed_after_the_grace() -> None:
    code = (
        "import sys; from train.launch import spawn; spawn.GRACE_S = 0.3;"
        "sys.exit(spawn.main(['--procs=1', '--first-rank=0', '--world-size=1', '--', 'bash', '-c',"
        "'trap : TERM; echo ready; while :; do sleep 0.1; done']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
def test_its_processes_die_with_it() -> None:
    process = spawn("echo ready; exec sleep 600")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    handles = [os.pidfd_open(pid) for pid in children(process.pid)]
    process.kill()
    for handle in handles:
        assert select.select([handle], [], [], PATIENCE_S)[0]
        os.close(handle)
    process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("ranks", [["--procs=3"], ["--procs=0"], ["--procs=1", "--first-rank=-1"]])
def test_ranks_beyond_the_world_are_a_wrong_argument(
    ranks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["spawn", "--first-rank=2", "--world-size=4", *ranks, "--", "true"])
    assert caught.value.code == 2
    assert "these ranks do not fit" in capsys.readouterr().err


def test_a_command_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    kept = {
        s: signal.getsignal(s)
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
    }
    ranks = ["--procs=1", "--first-rank=0", "--world-size=1"]
    assert main(["spawn", *ranks, "--", "no-such-program"]) == 1
    for signum, handler in kept.items():
        signal.signal(signum, handler)
    said = capsys.readouterr().err
    assert "cannot start 'no-such-program': " in said
