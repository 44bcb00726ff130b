"""One live job per directory; a dead one holds nobody off; an old one does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train import lock
from train.errors import TrainError
from train.layout import step_directory
from train.lock import Fence, FencedOffError, HeldByLiveJobError, claim, read_lock


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
    assert f"in use by job 'first', attempt {attempt}, process {sleeper.pid} on" in message
    assert f"'touch {tmp_path}/stop'" in message


def test_a_dead_job_does_not_block(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    first = claim(tmp_path, "first", sleeper.pid)
    sleeper.kill()
    # Not reaped yet: a zombie counts as dead.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert claim(tmp_path, "second", os.getpid()) != first


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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"attempt": 3}'])
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


def test_an_old_attempt_is_fenced_off_when_a_new_one_begins(tmp_path: Path) -> None:
    old = Fence(tmp_path, claim(tmp_path, "job", os.getpid()))
    old.check()
    edit(tmp_path, attempt="newer", host="elsewhere")
    with pytest.raises(FencedOffError, match=r"no longer holds .* \(attempt newer on elsewhere"):
        old.check()
    old.close()


def test_a_restart_within_the_attempt_fences_off_the_worker_before_it(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    first = Fence(tmp_path, attempt)
    second = Fence(tmp_path, attempt)
    assert (first.generation, second.generation) == (1, 2)
    second.check()
    with pytest.raises(FencedOffError):
        first.check()
    first.close()
    second.close()


def test_an_attempt_that_was_replaced_cannot_enter(tmp_path: Path) -> None:
    with pytest.raises(FencedOffError):
        Fence(tmp_path, "never claimed")


def test_it_gives_up_after_two_crashes_with_no_step_committed_between_them(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    Fence(tmp_path, attempt).close()
    step_directory(tmp_path, 10).mkdir()  # committed, then the first crash
    Fence(tmp_path, attempt).close()
    # The second crash, with nothing committed since the first.
    with pytest.raises(TrainError, match="crashed twice without committing a step after step 10"):
        Fence(tmp_path, attempt)


def test_it_goes_on_as_long_as_steps_are_committed(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    for step in range(1, 6):
        Fence(tmp_path, attempt).close()
        step_directory(tmp_path, step).mkdir()


def test_a_holder_on_another_machine_is_judged_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "SILENCE_S", 1.0)
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.2)
    fence = Fence(tmp_path, claim(tmp_path, "remote", os.getpid()))
    monkeypatch.setattr(lock, "_boot", lambda: "another machine")
    with pytest.raises(HeldByLiveJobError, match="job 'remote'"):
        claim(tmp_path, "second", os.getpid())
    fence.close()
    claim(tmp_path, "second", os.getpid())
