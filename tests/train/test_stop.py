"""Why a job is to stop: what a stop file says, and what all ranks make of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.run import stop
from train.run.stop import StopRequest, foremost, is_for, reason_in


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for signum, handler in kept.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "user"),
        (b"\n", "user"),
        (b"  \t \npreempted: on the second line", "user"),
        (
            b"preempted: aws takes this machine back\nmore\n",
            "preempted: aws takes this machine back",
        ),
        (b"slurm 4711 0 USR1\n", "slurm 4711 0 USR1"),
        (b"user:   out of\tbudget \r\n", "user: out of budget"),
        (b"\x1b[31mred\x00\x07 \xff\n", "[31mred \ufffd"),
        (b"x" * 5000, "x" * 200),
        (b"x" * (2 << 20), "user"),
    ],
)
def test_the_first_line_is_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "stop").write_bytes(content)
    assert reason_in(tmp_path / "stop") == reason


def test_a_file_that_cannot_be_read_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "stop").mkdir()
    assert reason_in(tmp_path / "stop") == "user"
    os.mkfifo(tmp_path / "pipe")
    assert reason_in(tmp_path / "pipe") == "user", "nobody writes into it, and nobody waits"


@pytest.mark.usefixtures("handlers")
def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = StopRequest(tmp_path / "stop", watches=False)
    os.kill(os.getpid(), signal.SIGHUP)
    assert request.reason == ""
    os.kill(os.getpid(), signal.SIGTERM)
    assert request.reason == stop.BY_SIGNAL


@pytest.mark.parametrize(
    ("reason", "scheduler", "obeyed"),
    [
        ("user", "", True),
        ("user", "slurm 7 1", True),
        ("user: slurm 8 0 is in my way", "slurm 7 1", True),
        ("preempted: gcp", "sky a-1 0", True),
        ("signal: TERM", "slurm 7 1", True),
        ("slurm 7", "slurm 7 1", True),
        ("slurm 7 1 USR1", "slurm 7 1", True),
        ("slurm 7 2 USR1", "slurm 7 1", True),
        ("slurm 7 0 USR1", "slurm 7 1", False),
        ("slurm 8 1 USR1", "slurm 7 1", False),
        ("slurm 77 1 USR1", "slurm 7 1", False),
        ("sky 7 1 TERM", "slurm 7 1", False),
        ("slurm 8 1 USR1", "", False),
        ("slurm 8 1 USR1", "nonsense", False),
    ],
)
def test_a_stop_file_is_for_who_it_names_or_for_whoever_finds_it(
    reason: str, scheduler: str, obeyed: bool
) -> None:
    assert is_for(reason, scheduler) == obeyed


def test_what_another_job_left_ends_nobody_until_the_user_asks(
    tmp_path: Path, handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop").write_text("slurm 8 0 USR1\n")
    looked = threading.Event()
    look = stop.is_for

    def is_for(reason: str, scheduler: str) -> bool:
        obeyed = look(reason, scheduler)
        looked.set()
        return obeyed

    monkeypatch.setattr(stop, "is_for", is_for)
    others = set(threading.enumerate())
    asked = StopRequest(tmp_path / "stop", "slurm 7 0")
    (watcher,) = (t for t in set(threading.enumerate()) - others if t.name == "stop")
    looked.clear()
    assert looked.wait(10)
    assert (asked.by_file, asked.by_signal, asked.reason) == (False, False, "")
    (tmp_path / "draft").write_text("user: enough\n")
    (tmp_path / "draft").rename(tmp_path / "stop")
    watcher.join(10)
    (tmp_path / "stop").unlink()  # its words are kept
    assert (asked.by_file, asked.reason) == (True, "user: enough")


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        (["", ""], ""),
        (["", "user: a", "user: b"], "user: a"),
        (["user", "", "preempted: gcp", "preempted: aws"], "preempted: gcp"),
        (["signal", "signal"], "signal"),
        (["signal", "user"], "user"),
        (["signal: TERM", "preempted: gcp"], "preempted: gcp"),
        (["slurm 4711 0 TERM", "signal"], "slurm 4711 0 TERM"),
    ],
)
def test_of_several_reasons_one_is_the_jobs(reasons: list[str], reason: str) -> None:
    assert foremost(reasons) == reason


def test_a_file_says_more_than_a_signal(tmp_path: Path, handlers: None) -> None:
    asked = StopRequest(tmp_path / "stop")
    assert asked.reason == ""
    for _ in range(2):  # torchrun may send it again
        os.kill(os.getpid(), signal.SIGTERM)
    assert (asked.by_file, asked.by_signal, asked.reason) == (False, True, "signal")
    asked.close()
    (tmp_path / "stop").write_text("preempted: gcp\n")
    again = StopRequest(tmp_path / "stop")
    os.kill(os.getpid(), signal.SIGTERM)
    assert (again.by_file, again.reason) == (True, "preempted: gcp")


def test_one_process_of_a_host_looks_for_the_file(tmp_path: Path, handlers: None) -> None:
    (tmp_path / "stop").touch()
    threads = threading.active_count()
    other = StopRequest(tmp_path / "stop", watches=False)
    assert (other.by_file or other.by_signal, threading.active_count()) == (False, threads)
    first = StopRequest(tmp_path / "stop")
    assert first.by_file
    first.close()
