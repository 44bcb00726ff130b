"""Any other program as a worker: its end, its stop, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.train.own_script import Job, wait_for_line
from train.run.lock import claim

GONE_S = 20.0
LOOP = "echo $$; while :; do sleep 0.05; done"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


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
    job: Job, text: str, exit_code: int, word: str, reason: str
) -> None:
    process = job.program(text)
    process.communicate(timeout=60)
    assert (process.returncode, job.status) == (exit_code, job.says(word, reason))


def test_a_program_may_lie_in_the_home(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(job.code))
    (job.code / "train.sh").write_text("#!/bin/sh\nexit 1\n")
    (job.code / "train.sh").chmod(0o755)
    job.start("--no-python", "~/train.sh").communicate(timeout=60)
    assert job.status == job.says("running", "rank 0: train.sh ended with exit code 1")


def test_what_cannot_be_started_is_for_good(job: Job) -> None:
    (job.code / "train.sh").touch()
    process = job.start("--no-python", "./train.sh")
    said, _ = process.communicate(timeout=60)
    reason = "./train.sh cannot be started: Permission denied; correct train.command"
    assert (process.returncode, said) == (1, f"ddpgen: {reason}\n")
    assert job.status == job.says("failed", reason)


def test_its_words_and_where_it_runs(job: Job) -> None:
    there = job.work
    process = job.program(
        "printf '%s|' \"$PWD\" \"$@\"; touch ckpt.pt", "--resume-exists=ckpt.pt", "--resume-arg=--go on",
        arguments=("a b", "--lr=$1", "--"),
    )  # fmt: skip
    assert process.communicate(timeout=60)[0] == f"{there}|a b|--lr=$1|--|"
    process = job.program(
        'echo "$@"', "--resume-exists=ckpt.pt", "--resume-arg=--go on",
        arguments=("--at={master-port}",), MASTER_PORT="29501",
    )  # fmt: skip
    assert process.communicate(timeout=60)[0] == "--at=29501 --go on\n"
    assert os.listdir(job.code) == ["run.sh"]


def test_what_its_guard_does_not_show_to_be_whole_is_moved_away(job: Job) -> None:
    work = job.work
    for name in ("ckpt-1", "ckpt-2", "ckpt-[3]", "data"):
        (work / name).mkdir(parents=True)
    (work / "ckpt-1" / "DONE").touch()
    process = job.program("echo *", "--guard=ckpt-*/DONE")
    out, said = process.communicate(timeout=60)
    assert out == "ckpt-1 data run.sh\n"
    torn = job.directory / "torn"
    assert sorted(os.listdir(torn)) == ["ckpt-2", "ckpt-[3]"]
    assert f"{work}/ckpt-2 was cut off; it is now {torn}/ckpt-2" in said


@pytest.mark.parametrize(
    ("pattern", "stays"),
    [
        ("../../*/DONE", "checkpoints"),  # this job's own
        ("../*/DONE", "checkpoints/logs"),
        ("{home}/*/DONE", "precious"),
        ("*/DONE", "checkpoints/work/other"),
        ("*/DONE", "checkpoints/work/outer"),
        ("{home}/checkpoints/*/DONE", "checkpoints/work"),
    ],
)
def test_a_guard_moves_only_what_is_the_scripts(job: Job, pattern: str, stays: str) -> None:
    for name in ("precious", "checkpoints/logs", "checkpoints/step-1"):
        (job.home / name).mkdir(parents=True)
    for name in ("other", "outer/inner"):
        (job.work / name).mkdir(parents=True)
        claim(job.work / name, name, os.getpid())  # a job lives there
    process = job.program("exit 0", f"--guard={pattern.format(home=job.home)}")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, job.status) == (0, job.says("done"))
    assert f"{job.home / stays} has no DONE " in said
    assert (job.home / stays).is_dir()
    torn = [path.name for path in job.home.rglob("torn/*")]
    assert torn == (["step-1"] if "step-1" not in os.listdir(job.directory) else [])


@pytest.mark.parametrize("signum", ["", "USR1"])
@pytest.mark.parametrize("handles", [True, False])
def test_a_stop_reaches_all_that_it_has_started(job: Job, signum: str, handles: bool) -> None:
    name = signum or "TERM"
    inner = f'trap "echo saved; exit 0" {name}; {LOOP}' if handles else LOOP
    text = f"{f'trap : {name};' if handles else ''} bash -c '{inner}' & wait; wait"
    process = job.program(text, *([f"--stop-signal={signum}"] if signum else []))
    pid = wait_for_line(process)
    (job.directory / "stop").touch()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "saved\n" if handles else "")
    assert job.status.word == "stopped"
    assert_gone(pid)


def test_one_that_does_not_stop_is_killed_with_all_that_it_has_started(job: Job) -> None:
    text = f"trap '' TERM; bash -c '{LOOP}'"
    process = job.program(text, "--stop-grace=0.2s", "--term-grace=0.2s")
    pid = wait_for_line(process)
    (job.directory / "stop").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "run.sh did not stop within 0.2 s " in said
    assert_gone(pid)


def test_nothing_is_left_when_the_worker_is_killed(job: Job) -> None:
    process = job.program(f"bash -c '{LOOP}'")
    pid = wait_for_line(process)
    process.kill()
    process.communicate(timeout=60)
    assert_gone(pid)


def test_ended_by_the_launcher_it_is_neither_done_nor_crashed(job: Job) -> None:
    text = f"trap 'exit 0' TERM; {LOOP}"
    process = job.program(text)
    wait_for_line(process)
    os.killpg(process.pid, signal.SIGTERM)  # as torchrun does when another rank has failed
    process.communicate(timeout=60)
    assert (process.returncode, job.status) == (0, job.says("running"))
