"""Any other program as a worker: its end, its stop, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.test_script import ROOT, Script
from train.status import Status, read_status

GONE_S = 20.0
LOOP = "echo $$; while :; do sleep 0.05; done"


class Program(Script):
    """A shell script in a claimed directory, run as one rank of a job."""

    def start(
        self, text: str, *options: str, arguments: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        code = self.home / "code"
        code.mkdir(exist_ok=True)
        (code / "run.sh").write_text(f"#!/bin/bash\n{text}\n")
        (code / "run.sh").chmod(0o755)
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DDPGEN_CHECKPOINT_DIR": str(self.directory),
            "DDPGEN_ATTEMPT": self.attempt,
            **variables,
        }
        words = ["script", *options, "--no-python", "./run.sh", *arguments]
        return subprocess.Popen(
            [sys.executable, "-m", "train", *words],
            cwd=self.home, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, Status | None]:
        process.communicate(timeout=60)
        return process.returncode, read_status(self.directory)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def assert_gone(pid: str) -> None:
    until = time.monotonic() + GONE_S
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "exit_code", "word", "reason"),
    [
        ("exit 0", 0, "done", ""),
        ("exit 75", 0, "stopped", ""),
        ("exit 1", 1, "running", "rank 0: run.sh ended with exit code 1"),
        ("kill -SEGV $$", 139, "running", "rank 0: run.sh ended with exit code 139"),
        (
            "exit 2",
            1,
            "failed",
            "run.sh refused its arguments (exit code 2); correct train.command",
        ),
    ],
)
def test_its_exit_code_is_the_status(
    program: Program, text: str, exit_code: int, word: str, reason: str
) -> None:
    ended = program.ended(program.start(text))
    assert ended == (exit_code, Status(word, program.attempt, 7, reason))


def test_what_cannot_be_started_is_for_good(program: Program) -> None:
    process = program.start("exit 0")
    process.communicate(timeout=60)
    (program.home / "code" / "run.sh").chmod(0o644)
    words = ["script", "--no-python", "./run.sh"]
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "DDPGEN_CHECKPOINT_DIR": str(program.directory),
        "DDPGEN_ATTEMPT": "",
    }
    done = subprocess.run(
        [sys.executable, "-m", "train", *words],
        cwd=program.home, env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = "ddpgen: ./run.sh cannot be started: Permission denied; correct train.command\n"
    assert done.stderr == said


def test_its_words_and_where_it_runs(program: Program) -> None:
    there = program.directory / "work"
    process = program.start(
        "printf '%s|' \"$PWD\" \"$@\"; touch ckpt.pt", "--resume-exists=ckpt.pt", "--resume-arg=--go on",
        arguments=("a b", "--lr=$1", "--"),
    )  # fmt: skip
    assert process.communicate(timeout=60)[0] == f"{there}|a b|--lr=$1|--|"
    process = program.start(
        'echo "$@"', "--resume-exists=ckpt.pt", "--resume-arg=--go on",
        arguments=("--at={master-port}",), MASTER_PORT="29501",
    )  # fmt: skip
    assert process.communicate(timeout=60)[0] == "--at=29501 --go on\n"
    assert os.listdir(program.home / "code") == ["run.sh"]


def test_what_its_guard_does_not_show_to_be_whole_is_moved_away(program: Program) -> None:
    work = program.directory / "work"
    for name in ("ckpt-1", "ckpt-2", "ckpt-[3]", "data"):
        (work / name).mkdir(parents=True)
    (work / "ckpt-1" / "DONE").touch()
    process = program.start("echo *", "--guard=ckpt-*/DONE")
    out, said = process.communicate(timeout=60)
    assert out == "ckpt-1 data run.sh\n"
    torn = program.directory / "torn"
    assert sorted(os.listdir(torn)) == ["ckpt-2", "ckpt-[3]"]
    assert f"the saving of {work}/ckpt-2 was cut off; it is now {torn}/ckpt-2" in said


@pytest.mark.parametrize("signum", ["", "USR1"])
@pytest.mark.parametrize("handles", [True, False])
def test_a_stop_reaches_all_that_it_has_started(
    program: Program, signum: str, handles: bool
) -> None:
    name = signum or "TERM"
    inner = f'trap "echo saved; exit 0" {name}; {LOOP}' if handles else LOOP
    text = f"{f'trap : {name};' if handles else ''} bash -c '{inner}' & wait; wait"
    process = program.start(text, *([f"--stop-signal={signum}"] if signum else []))
    pid = wait_for_line(process)
    (program.directory / "stop").touch()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "saved\n" if handles else "")
    status = read_status(program.directory)
    assert status is not None
    assert status.word == "stopped"
    assert_gone(pid)


def test_one_that_does_not_stop_is_killed_with_all_that_it_has_started(program: Program) -> None:
    text = f"trap '' TERM; bash -c '{LOOP}'"
    process = program.start(text, "--stop-grace=0.2s", "--term-grace=0.2s")
    pid = wait_for_line(process)
    (program.directory / "stop").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (
        "run.sh did not stop within 0.2 s and is killed; it goes on from what it has saved" in said
    )
    assert_gone(pid)


def test_nothing_is_left_when_the_worker_is_killed(program: Program) -> None:
    process = program.start(f"bash -c '{LOOP}'")
    pid = wait_for_line(process)
    process.kill()
    process.communicate(timeout=60)
    assert_gone(pid)


def test_ended_by_the_launcher_it_is_neither_done_nor_crashed(program: Program) -> None:
    text = f"trap 'exit 0' TERM; {LOOP}"
    process = program.start(text)
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGTERM)  # as torchrun does when another rank has failed
    assert program.ended(process) == (0, Status("running", program.attempt, 7))
