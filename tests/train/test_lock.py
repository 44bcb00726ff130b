"""One live job per directory; a dead one holds nobody off; an old one does no harm."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import give_time
from train.base.errors import TrainError
from train.base.files import locked
from train.run import lock
from train.run.layout import MARKER, step_directory
from train.run.lock import (
    Fence,
    FencedOffError,
    HeldByLiveJobError,
    Start,
    claim,
    read_lock,
    take,
)
from train.run.node import Node, record_crash, record_end, settle_end
from train.run.status import Status, read_status, write_status
from train.script.program import Program


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A live process to hold a lock."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(10)


def edit(directory: Path, **changes: Any) -> None:
    data = json.loads((directory / "lock").read_text())
    (directory / "lock").write_text(json.dumps({**data, **changes}))


def test_a_second_live_job_is_refused_and_told_who_holds_the_directory(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    attempt = claim(tmp_path, "first", sleeper.pid)
    with pytest.raises(HeldByLiveJobError) as caught:
        claim(tmp_path, "second", os.getpid())
    message = str(caught.value)
    assert f" 'first', attempt {attempt}, process {sleeper.pid} on" in message
    assert f"'touch {tmp_path}/stop'" in message


def test_a_dead_job_does_not_block(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    first = claim(tmp_path, "first", sleeper.pid)
    sleeper.kill()
    # Not reaped yet: a zombie counts as dead.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert claim(tmp_path, "second", os.getpid()) != first


def test_a_holder_that_is_watched_can_renew_and_is_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    claim(tmp_path, "first", sleeper.pid)
    watched: list[int] = []

    def watch(directory: Path, holder: lock.Holder) -> bool:
        watched.append(holder.generation)
        if holder.generation == 0:
            with locked(
                directory / ".lock.guard"
            ):  # as the holder's rank 0 does when it is restarted
                edit(directory, generation=1)
            return False
        return True

    monkeypatch.setattr(lock, "_is_alive", watch)
    with pytest.raises(HeldByLiveJobError):
        claim(tmp_path, "second", os.getpid())
    assert watched == [0, 1]
    assert read_lock(tmp_path).job == "first"  # type: ignore[union-attr]


def test_a_reused_pid_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    claim(tmp_path, "first", os.getpid())
    pid, start = read_lock(tmp_path).launcher  # type: ignore[union-attr]
    edit(tmp_path, launcher=[pid, start - 1])
    claim(tmp_path, "second", os.getpid())


def test_a_live_worker_holds_the_directory_when_its_launcher_is_dead(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LAST_WORDS_S", 0.3)
    attempt = claim(tmp_path, "first", sleeper.pid)
    fence = Fence(tmp_path, attempt)
    sleeper.kill()
    sleeper.wait(10)
    with pytest.raises(HeldByLiveJobError):
        claim(tmp_path, "second", os.getpid())
    fence.close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"attempt": 3}'])
def test_a_lock_nobody_can_read_holds_nobody_off(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    claim(tmp_path, "job", os.getpid())


def test_of_many_claims_at_once_one_wins(tmp_path: Path) -> None:
    won, lost = [], []

    def try_it() -> None:
        try:
            won.append(claim(tmp_path, "job", os.getpid()))
        except HeldByLiveJobError:
            lost.append(1)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(won), len(lost)) == (1, 7)


def test_an_old_attempt_and_an_old_generation_are_fenced_off(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    first = Fence(tmp_path, attempt)
    first.check()
    second = Fence(tmp_path, attempt)
    assert (first.generation, second.generation) == (1, 2)
    second.check()
    with pytest.raises(FencedOffError):
        first.check()
    edit(tmp_path, attempt="newer", host="elsewhere")
    fenced = r"no longer holds .* \(attempt newer on elsewhere"
    with pytest.raises(FencedOffError, match=fenced):
        second.check()
    with pytest.raises(FencedOffError, match=fenced):
        Fence(tmp_path, attempt)
    first.close()
    second.close()


def test_the_heartbeat_tells_the_steps_that_the_directory_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    fence = Fence(tmp_path, claim(tmp_path, "job", os.getpid()))
    fence.check_seen()
    edit(tmp_path, attempt="newer", host="elsewhere")
    assert fence._is_lost.wait(30)
    with pytest.raises(FencedOffError, match=r"no longer holds .* \(attempt newer on elsewhere"):
        fence.check_seen()
    fence.close()


def commit(directory: Path, step: int) -> None:
    step_directory(directory, step).mkdir()
    (step_directory(directory, step) / MARKER).touch()


def test_it_gives_up_after_two_crashes_with_no_step_committed_between_them(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    Fence(tmp_path, attempt).close()
    commit(tmp_path, 10)  # then the first crash
    Fence(tmp_path, attempt).close()
    step_directory(tmp_path, 11).mkdir()  # without its marker it is none
    # The second crash, with nothing committed since the first.
    record_crash(tmp_path, attempt, None, "rank 1: ValueError: odd", lost=False)
    record_crash(tmp_path, attempt, None, "rank 0: lost a peer", lost=True)
    noted = read_status(tmp_path)
    assert noted is not None
    assert (noted.word, noted.step) == ("running", 10)  # what is on disk, and not where it began
    why = (
        "crashed twice without committing a step after step 10; giving up. The last crash: rank 1: "
        "ValueError: odd. If it"
    )
    with pytest.raises(TrainError, match=re.escape(why)):
        Fence(tmp_path, attempt)


def test_who_has_been_replaced_says_nothing_of_its_end(tmp_path: Path) -> None:
    node = Node("lap", tmp_path / "nodes" / "lap", "older", "launch")
    node.directory.mkdir(parents=True)
    mine = claim(node.directory, "job", os.getpid())
    take(tmp_path, "job", os.getpid(), "launch", "")
    record_crash(tmp_path, "older", node, "rank 1: odd", lost=False)
    record_end(tmp_path, "older", node, "failed", "why")
    assert read_status(node.directory) is None
    assert read_status(tmp_path) is None
    record_end(tmp_path, mine, replace(node, attempt=mine), "done")
    assert read_status(tmp_path) == Status("done", "launch", 0)
    # What has ended for good stays so.
    record_crash(tmp_path, mine, replace(node, attempt=mine), "rank 1: late", lost=False)
    assert read_status(node.directory) == Status("done", mine, 0)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (Status("running", "a", 7), Status("failed", "a", 7, "nobody said why")),
        (Status("running", "a", 7, "rank 1: odd"), Status("failed", "a", 7, "rank 1: odd")),
        (Status("done", "a", 7), Status("failed", "a", 7, "nobody said why")),
        (Status("failed", "a", 7, "wrong setting"), Status("failed", "a", 7, "wrong setting")),
        (Status("stopped", "a", 7, "user"), Status("stopped", "a", 7, "user")),
    ],
)
def test_the_status_of_a_launch_that_is_over_says_how_it_ended(
    tmp_path: Path, was: Status, becomes: Status
) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    write_status(tmp_path, replace(was, attempt=attempt))
    settle_end(tmp_path, attempt, None, "failed", "nobody said why")
    assert read_status(tmp_path) == replace(becomes, attempt=attempt)


def test_a_host_without_checkpoints_knows_its_last_step(tmp_path: Path) -> None:
    """Without a shared directory only the host of rank 0 has checkpoints."""
    node = Node("lap", tmp_path / "nodes" / "lap", "", "launch")
    node.directory.mkdir(parents=True)
    node = replace(node, attempt=claim(node.directory, "job", os.getpid()))
    record_crash(tmp_path, node.attempt, node, "rank 1 in step 26: lost a peer", lost=True, step=25)
    record_end(tmp_path, node.attempt, node, "failed", "killed")
    assert read_status(node.directory) == Status("failed", node.attempt, 25, "killed")


def test_it_goes_on_as_long_as_steps_are_committed(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    for step in range(1, 6):
        Fence(tmp_path, attempt).close()
        commit(tmp_path, step)


def test_a_holder_on_another_machine_is_judged_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its next heartbeat ends the watch, however late that comes.
    monkeypatch.setattr(lock, "SILENCE_S", 60.0)
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.2)
    fence = Fence(tmp_path, claim(tmp_path, "remote", os.getpid()))
    monkeypatch.setattr(lock, "machine", lambda: "another machine")
    with pytest.raises(HeldByLiveJobError, match="job 'remote'"):
        claim(tmp_path, "second", os.getpid())
    fence.close()
    monkeypatch.setattr(lock, "SILENCE_S", 1.0)
    claim(tmp_path, "second", os.getpid())


def test_a_holder_that_beat_while_the_claim_stood_still_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 1e6)
    fence = Fence(tmp_path, claim(tmp_path, "remote", os.getpid()))
    monkeypatch.setattr(lock, "machine", lambda: "another machine")
    os.utime(tmp_path / "lock", (time.time() - 30,) * 2)

    def stand_still(_: float) -> None:
        monkeypatch.setattr(lock, "SILENCE_S", 10.0)  # what has passed since is more than that
        os.utime(tmp_path / "lock")

    give_time(monkeypatch, lock, sleep=stand_still)
    with pytest.raises(HeldByLiveJobError, match="job 'remote'"):
        claim(tmp_path, "second", os.getpid())
    fence.close()


def test_a_renewal_counts_although_the_watch_itself_stood_still_for_longer() -> None:
    looks = iter([(1, False), (2, True)])
    assert lock.watch(lambda: next(looks), 10.0, 0.0) is True


def test_other_hosts_are_no_crash_of_those_that_stay(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    for world in ("a b", "a", "a b", "a", "a b"):
        Fence(tmp_path, attempt, Start(10, world)).close()
    Fence(tmp_path, attempt, Start(10, "a b")).close()
    with pytest.raises(TrainError, match=r"crashed twice .* after step 10"):
        Fence(tmp_path, attempt, Start(10, "a b"))


def test_a_launch_goes_on_in_a_directory_it_holds_and_enters_one_it_does_not(
    tmp_path: Path,
) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    take(shared, "job", os.getpid(), "launch1")
    first = Fence(shared, "launch1", Start(0, "a b"))
    # Its rank 0 moves to another machine that sees the same directory …
    edit(shared, boot="another machine", host="first")
    take(shared, "job", os.getpid(), "launch1")
    second = Fence(shared, "launch1", Start(5, "b"))
    holder = read_lock(shared)
    assert holder is not None
    assert (holder.generation, holder.boot, holder.starts) == (2, lock.machine(), (0, 5))
    with pytest.raises(FencedOffError):
        first.check()
    # … or one that has a directory of its own.
    take(other, "job", os.getpid(), "launch1")
    Fence(other, "launch1", Start(5, "b")).close()
    first.close()
    second.close()


def test_a_launch_takes_its_own_host_from_an_earlier_world_but_not_from_a_rival(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    take(tmp_path, "job", os.getpid(), "launch1")
    take(tmp_path, "job", os.getpid(), "launch2")
    assert read_lock(tmp_path).attempt == "launch2"  # type: ignore[union-attr]
    with pytest.raises(HeldByLiveJobError):
        take(tmp_path, "job", sleeper.pid, "launch3")


# --- started by a scheduler -----------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["slurm 4711 1", "slurm 4711 0"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_same_scheduler_job_takes_over_at_once_from_a_live_start(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    scheduler: str,
    elsewhere: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = claim(tmp_path, "job", sleeper.pid, scheduler="slurm 4711 0")
    old = Fence(tmp_path, first)
    # A launch script that is gone, with a worker that is not: nobody waits for that one's end.
    edit(tmp_path, launcher=[sleeper.pid, 1])
    monkeypatch.setattr(lock, "say", pytest.fail)
    if elsewhere:
        monkeypatch.setattr(lock, "machine", lambda: "another machine")
        monkeypatch.setattr(lock, "_pulse", lambda *_: pytest.fail("it looks whether it is alive"))
    assert claim(tmp_path, "job", os.getpid(), scheduler=scheduler) != first
    with pytest.raises(FencedOffError):
        old.check()
    old.close()


def test_an_earlier_start_of_a_scheduler_job_never_gets_the_directory_back(tmp_path: Path) -> None:
    claim(tmp_path, "job", os.getpid(), scheduler="slurm 4711 2")
    # Not even when the later one is dead.
    edit(tmp_path, launcher=[1, 1])
    with pytest.raises(HeldByLiveJobError) as caught:
        claim(tmp_path, "job", os.getpid(), scheduler="slurm 4711 1")
    assert "Slurm job 4711: start 3, on" in str(caught.value)
    assert caught.value.job == "job"
    assert f"rm {tmp_path / 'lock'}" in str(caught.value)


@pytest.mark.parametrize("scheduler", ["", "slurm 4712 9", "slurm 471 1", "nonsense"])
def test_another_job_is_refused_and_told_the_scheduler_job_that_holds_the_directory(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], scheduler: str
) -> None:
    claim(tmp_path, "first", sleeper.pid, scheduler="slurm 4711 0")
    with pytest.raises(HeldByLiveJobError) as caught:
        claim(tmp_path, "second", os.getpid(), scheduler=scheduler)
    message = str(caught.value)
    assert f"{tmp_path} is held by Slurm job 4711, " in message
    assert f"'touch {tmp_path}/stop', " in message


def test_rank_0_of_a_users_program_shows_that_it_lives_in_the_directory_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    env = {
        "DDPGEN_ATTEMPT": "a1",
        "DDPGEN_CHECKPOINT_DIR": str(tmp_path),
        "DDPGEN_NODE_DIR": str(tmp_path / "nodes" / "n1"),
        "DDPGEN_SCHEDULER": "slurm 1 0",
        "RANK": "0",
    }
    node = Node.from_environment(env)
    assert node is not None
    Program(argparse.Namespace(command=["true"], stop_signal=""), env)._take_lock(node)
    os.utime(tmp_path / "lock", (0, 0))
    until = time.monotonic() + 30
    while (tmp_path / "lock").stat().st_mtime == 0:
        assert time.monotonic() < until
        time.sleep(0.01)
