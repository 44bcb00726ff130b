"""The checkpoint directory, before it is taken: every way in which it cannot be used, and no other."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import give_time
from train.preflight import directory
from train.preflight.finding import Finding
from train.preflight.settings import Settings
from train.run import lock
from train.run.layout import node_directory


@pytest.fixture
def job(tmp_path: Path) -> Settings:
    """On one machine."""
    return Settings("job", "desk", tmp_path / "checkpoints" / "job")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A live process to hold a lock."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=10)


def of_hosts(job: Settings, **changes: Any) -> Settings:
    return replace(job, head="slow", nodes=2, min_nodes=2, is_head=False, node_rank=1, **changes)


def found(job: Settings) -> list[Finding]:
    return list(directory.judge(job, directory.look(job)))


def everything(where: Path) -> list[str]:
    return sorted(path.relative_to(where).as_posix() for path in where.rglob("*"))


def edit(where: Path, **changes: Any) -> None:
    data = json.loads((where / "lock").read_text())
    (where / "lock").write_text(json.dumps({**data, **changes}))


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code), "checkpoints")

    monkeypatch.setattr(directory.os, name, failing)


def test_a_directory_that_can_be_made_is_made_and_left_empty(job: Settings) -> None:
    assert found(job) == []
    assert everything(job.checkpoint_dir) == []


@pytest.mark.parametrize("below", ["", "job/deeper"])
@pytest.mark.parametrize("link", [False, True])
def test_a_file_or_a_link_that_leads_nowhere_in_its_place_is_named(
    job: Settings, below: str, link: bool
) -> None:
    job.checkpoint_dir.parent.mkdir()
    if link:
        job.checkpoint_dir.symlink_to("/nowhere at all")
    else:
        job.checkpoint_dir.write_text("mine")
    (finding,) = found(replace(job, checkpoint_dir=job.checkpoint_dir / below))
    assert (finding.code, finding.host) == ("DIR001", "desk")
    assert f"{job.checkpoint_dir} is no directory" in finding.cause


@pytest.mark.parametrize(
    ("where", "code", "expected", "words"),
    [
        ("mkdir", errno.EACCES, "DIR001", "make it writable for this user"),
        ("mkdir", errno.ENOTCONN, "DIR006", "mount it anew"),
        ("open", errno.EROFS, "DIR002", "mount it for writing"),
        ("open", errno.EACCES, "DIR002", "make it writable for this user"),
        ("fsync", errno.ENOSPC, "DIR003", "free some space"),
        ("fsync", errno.EDQUOT, "DIR003", "free some space"),
        ("fsync", errno.EIO, "DIR006", "file server"),
    ],
)
def test_what_the_system_refuses_has_a_code_and_a_remedy_of_its_own(
    job: Settings,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    code: int,
    expected: str,
    words: str,
) -> None:
    fail(monkeypatch, where, code)
    (finding,) = found(job)
    assert finding.code == expected
    assert os.strerror(code) in finding.cause
    assert words in finding.remedy
    monkeypatch.undo()
    # Whatever failed, the trial is not left behind.
    assert not job.checkpoint_dir.exists() or everything(job.checkpoint_dir) == []


def test_a_hosts_own_part_that_another_user_has_made_is_named(
    job: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_directory(job.checkpoint_dir, "desk")
    node.mkdir(parents=True)
    real = os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).parent == node:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(directory.os, "open", refuse)
    (finding,) = found(job)
    assert finding.code == "DIR002"
    assert f" {node} of desk cannot be written to: Permission denied" in finding.cause


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"f_bavail": 15}, ["only 15.0 MiB"]),
        ({"f_bavail": 16}, []),
        ({"f_files": 9, "f_favail": 0}, ["only 0.0 MiB"]),
        ({"f_blocks": 0, "f_bavail": 0}, []),  # a bucket, which has no size
    ],
)
def test_too_little_room_is_told(
    job: Settings, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], told: list[str]
) -> None:
    class Space:
        f_frsize, f_blocks, f_bavail, f_files, f_favail = 1 << 20, 100, 100, 0, 0

    for name, value in changes.items():
        setattr(Space, name, value)
    monkeypatch.setattr(directory.os, "statvfs", lambda _: Space)
    findings = found(job)
    assert [finding.code for finding in findings] == ["DIR003"] * len(told)
    assert all(part in finding.cause for part, finding in zip(told, findings, strict=True))


def test_a_live_job_is_named_and_not_disturbed_and_one_that_ends_is_a_note(
    job: Settings, sleeper: subprocess.Popen[bytes]
) -> None:
    where = job.checkpoint_dir
    attempt = lock.claim(where, "other", sleeper.pid)
    before = (where / "lock").read_bytes()
    (finding,) = found(job)
    assert (finding.code, finding.is_error) == ("DIR004", True)
    assert f" 'other', attempt {attempt}, process {sleeper.pid} on" in finding.cause
    assert f"touch {where}/stop" in finding.remedy
    assert (where / "lock").read_bytes() == before
    # Its script was killed, and its workers are about to end.
    alive = json.loads(before)["launcher"]
    edit(where, launcher=[alive[0], alive[1] - 1], writer=alive)
    (finding,) = found(job)
    assert (finding.code, finding.severity) == ("DIR004", "note")
    assert "last processes are ending" in finding.cause
    sleeper.kill()
    sleeper.wait(10)
    assert found(job) == []


@pytest.mark.parametrize(("holder", "severity"), [("job", "note"), ("other", "error")])
def test_to_a_check_alone_a_run_of_the_job_itself_is_a_note(
    job: Settings, sleeper: subprocess.Popen[bytes], holder: str, severity: str
) -> None:
    lock.claim(job.checkpoint_dir, holder, sleeper.pid)
    (finding,) = found(replace(job, check_only=True))
    assert (finding.code, finding.severity) == ("DIR004", severity)


def test_one_live_job_is_named_once(job: Settings, sleeper: subprocess.Popen[bytes]) -> None:
    lock.claim(job.checkpoint_dir, "other", sleeper.pid)
    lock.claim(node_directory(job.checkpoint_dir, "desk"), "other", sleeper.pid)
    (finding,) = found(of_hosts(job))
    assert f"{job.checkpoint_dir} is in use by job 'other'" in finding.cause


def test_a_host_asks_its_own_node_directory(
    job: Settings, sleeper: subprocess.Popen[bytes]
) -> None:
    node = node_directory(job.checkpoint_dir, "desk")
    lock.claim(node, "job", sleeper.pid)
    lock.claim(node_directory(job.checkpoint_dir, "slow"), "job", sleeper.pid)
    (finding,) = found(of_hosts(job))
    assert finding.code == "DIR004"
    assert f"{node} is in use by job 'job'" in finding.cause
    assert f"touch {job.checkpoint_dir}/stop" in finding.remedy


@pytest.mark.parametrize(
    ("holder", "least", "remembered", "refused"),
    [
        ("other", 2, "", True),
        ("other", 1, "", True),
        ("job", 2, "", True),  # the same job, started on one machine
        ("job", 2, "the launch", False),  # this host was in it, and goes back to it
        ("job", 1, "", False),  # hosts come and go
    ],
)
def test_the_whole_directory_may_be_held_by_the_launch_that_a_host_goes_back_to(
    job: Settings,
    sleeper: subprocess.Popen[bytes],
    holder: str,
    least: int,
    remembered: str,
    refused: bool,
) -> None:
    launch = lock.claim(job.checkpoint_dir, holder, sleeper.pid)
    node = node_directory(job.checkpoint_dir, "desk")
    node.mkdir(parents=True)
    (node / "launch").write_text(f"1234 {launch if remembered else 'another'}\n")
    findings = found(replace(of_hosts(job), min_nodes=least))
    assert [finding.code for finding in findings] == ["DIR004"] * refused


def test_a_host_with_no_launch_on_record_may_join_one_that_another_host_has_begun(
    job: Settings, sleeper: subprocess.Popen[bytes]
) -> None:
    lock.claim(job.checkpoint_dir, "job", sleeper.pid)
    (finding,) = found(of_hosts(job))
    assert (finding.code, finding.is_error) == ("DIR004", True)
    edit(job.checkpoint_dir, boot="another machine")
    assert found(of_hosts(job)) == []


def test_a_schedulers_job_goes_back_to_no_other_jobs_launch(
    job: Settings, sleeper: subprocess.Popen[bytes]
) -> None:
    """All nodes then name the same directory, and not each its part of it."""
    launch = lock.claim(job.checkpoint_dir, "job", sleeper.pid)
    node = node_directory(job.checkpoint_dir, "desk")
    lock.claim(node, "job", sleeper.pid)
    (node / "launch").write_text(f"1234 {launch}\n")
    (finding,) = found(of_hosts(job, scheduler="slurm 4711 0"))
    assert f"{job.checkpoint_dir} is in use by job 'job'" in finding.cause


def test_a_holder_on_another_machine_that_cannot_be_told_dead_in_time_is_a_note(
    job: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = job.checkpoint_dir
    lock.claim(where, "other", os.getpid())
    edit(where, boot="elsewhere", generation=1)
    monkeypatch.setattr(directory, "WATCH_S", 0.6)
    slept: list[float] = []
    give_time(monkeypatch, lock, sleep=lambda s: slept.append(s) or time.sleep(s))
    (finding,) = found(job)
    assert (finding.code, finding.severity) == ("DIR004", "note")
    # A moment later this would pass for a file server that does not answer.
    assert sum(slept) <= 0.6
    os.utime(where / "lock", (0, time.time() - lock.SILENCE_S - 5))
    assert found(job) == []
    assert everything(where) == [".lock.guard", "lock"]


def test_hosts_that_share_the_directory_have_one_token(job: Settings) -> None:
    shared = of_hosts(job, shared=True)
    first = directory.look(shared).token
    assert len(first) == 32
    assert directory.look(replace(shared, host_name="slow")).token == first
    elsewhere = replace(shared, checkpoint_dir=job.checkpoint_dir.with_name("other"))
    assert directory.look(elsewhere).token not in ("", first)
    # Nobody compares where the spec says nothing: then none is left behind.
    assert directory.look(of_hosts(elsewhere, shared=None)).token == ""


def test_a_token_that_another_host_is_about_to_write_is_waited_for(
    job: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.checkpoint_dir.mkdir(parents=True)
    token = job.checkpoint_dir / directory.TOKEN
    token.touch()
    give_time(monkeypatch, directory, sleep=lambda _: token.write_text("late"))
    assert directory.look(of_hosts(job, shared=True)).token == "late"


def test_an_earlier_start_of_the_same_scheduler_job_is_no_fault_alive_or_not(
    job: Settings, sleeper: subprocess.Popen[bytes]
) -> None:
    lock.claim(job.checkpoint_dir, "job", sleeper.pid, scheduler="slurm 4711 0")
    node = node_directory(job.checkpoint_dir, "desk")
    lock.claim(node, "job", sleeper.pid, scheduler="slurm 4711 0")
    edit(node, boot="another machine")
    assert found(of_hosts(job, scheduler="slurm 4711 1")) == []
    assert found(of_hosts(job, scheduler="slurm 4711 0")) == []


def test_a_later_start_of_the_same_scheduler_job_is(job: Settings) -> None:
    lock.claim(job.checkpoint_dir, "job", os.getpid(), scheduler="slurm 4711 2")
    edit(job.checkpoint_dir, boot="another machine", host="n3")
    (finding,) = found(of_hosts(job, scheduler="slurm 4711 1"))
    assert (finding.code, finding.is_error) == ("DIR004", True)
    assert "Slurm job 4711: start 3, on n3" in finding.cause
