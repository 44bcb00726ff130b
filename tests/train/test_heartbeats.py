"""The reporter beats whatever the disk and the store do, and knows where the main thread stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import train.health.reporter
from tests.clocks import give_time
from tests.ports import free_port
from train.health import heartbeats, stacks
from train.health.heartbeats import Beat, HostView, ReceivedBeat, read_beats
from train.health.phase import BACKWARD, EXCHANGE, FORWARD, NOW, WAITING, doing
from train.health.reporter import Durations, Reporter, Standstill
from train.health.stacks import Position, ThreadSampler

ENV = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}


class Steps:
    step = 7


def until(done: Callable[[], object], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


OURS = str(Path(stacks.__file__).parents[1])


def test_it_says_who_and_where_it_is_and_leaves_nothing_after_a_good_end(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, ENV, "desk", interval_s=0.05)
    reporter.start()
    reporter.meet("w", None)
    reporter.follow(Steps())
    until(lambda: read_beats(tmp_path) and read_beats(tmp_path)[0].step == 7)
    (beat,) = read_beats(tmp_path)
    assert (beat.rank, beat.world_size, beat.host, beat.pid) == (0, 2, "desk", os.getpid())
    assert (beat.world, beat.machine) == ("w", heartbeats.machine())
    # It may have looked while this test read beats, deep in the product's own frames.
    until(
        lambda: any(
            "test_heartbeats.py:" in line for each in read_beats(tmp_path) for line in each.stack
        )
    )
    before = beat.monotonic
    until(lambda: read_beats(tmp_path)[0].monotonic > before)
    reporter.stop()
    assert os.listdir(tmp_path) == []


def test_a_place_that_takes_no_file_costs_heartbeats_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / heartbeats.NAME).write_text("in the way")
    reporter = Reporter(tmp_path, ENV, interval_s=0.02)
    reporter.start()
    first = reporter.beat.monotonic
    until(lambda: reporter.beat.monotonic > first)
    reporter.fail(RuntimeError("why"), peer_failed=True)
    assert reporter.beat.ended == "RuntimeError: why"
    reporter.stop()


def test_a_file_server_that_hangs_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, reached = threading.Event(), threading.Event()

    def write(*_: Any) -> None:
        reached.set()
        hangs.wait(60)

    monkeypatch.setattr(heartbeats, "write_beat", write)
    reporter = Reporter(tmp_path, ENV, interval_s=0.02)
    reporter.start()
    assert reached.wait(10)
    began = time.monotonic()
    reporter.follow(Steps())
    reporter.meet("w", None)
    reporter.fail(RuntimeError("why"), peer_failed=True)
    assert time.monotonic() - began < 30
    hangs.set()


def test_the_end_of_a_process_stays_on_file_with_its_line(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, ENV, interval_s=0.05)
    reporter.start()
    reporter.meet("w", None)
    try:
        exec(compile("def f():\n\n    return 1 / 0\nf()", "/home/me/mine.py", "exec"), {})
    except ZeroDivisionError as error:
        reporter.fail(error, peer_failed=False)
    (beat,) = read_beats(tmp_path)
    assert beat.ended == "ZeroDivisionError: division by zero"
    assert beat.where == "/home/me/mine.py:3 in f"
    assert not beat.waited


def test_what_a_step_takes_is_learned_after_the_first_that_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    give_time(monkeypatch, train.health.reporter, monotonic=lambda: clock[0])
    moves, mine = Durations(), Beat(0, 0, 2, "a", 1, "machine")
    standing = Position("forward", "", (), False, 0.0)
    usual = []
    # Resumed at step 100; its first step compiles for 30 s.
    for clock[0], step in ((0.0, 100), (30.0, 101), (32.0, 103), (34.0, 103), (36.0, 105)):
        mine = moves.update(mine, standing, step)
        usual.append(round(mine.usual, 3))
    assert usual == [0.0, 0.0, 1.0, 1.0, 1.2]
    assert moves.update(mine, standing, 50).usual == mine.usual  # in another world
    clock[0] = 90.0
    assert moves.update(mine, standing, 51).usual == mine.usual


def test_only_the_first_of_a_host_explains(tmp_path: Path) -> None:
    gone = Beat(
        rank=1, local_rank=1, world_size=2, host="desk", pid=2**22 + 1, world="w",
        machine=heartbeats.machine(), born=time.time(), time=time.time(),
        monotonic=time.monotonic(), step=120, phase="backward", where="my_model.py:88 in forward",
    )  # fmt: skip
    (tmp_path / heartbeats.NAME).mkdir()
    reporter = Reporter(tmp_path, ENV, "desk", interval_s=0.02)
    reporter.start()
    reporter.meet("w", None)
    heartbeats.write_beat(tmp_path, gone)
    until(lambda: any(beat.world == "w" and beat.rank == 0 for beat in read_beats(tmp_path)))
    reporter.fail(RuntimeError("Connection closed by peer"), peer_failed=True)
    (line,) = reporter.explain(wait=False)
    assert line.startswith(f"rank 1 on desk (process {2**22 + 1}) ended ")
    assert line.endswith(" at step 121, backward, my_model.py:88 in forward")
    assert reporter.explain(wait=False) == []
    assert Reporter(tmp_path, {"WORLD_SIZE": "1"}).explain() == []  # by itself


def test_hosts_hear_of_each_other_through_the_store_and_notice_silence(tmp_path: Path) -> None:
    port = free_port()
    stores = [
        dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=20), False)
        for rank in range(2)
    ]
    reporters = []
    for rank, name in enumerate(("a", "b")):
        place = tmp_path / name
        place.mkdir()
        env = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        reporters.append(Reporter(place, env, name, interval_s=0.05))
    for reporter, store in zip(reporters, stores, strict=True):
        reporter.start()
        reporter.meet("w", store)

    def heard() -> list[ReceivedBeat]:
        host_views = heartbeats.read_host_views(tmp_path / "a")
        return [each for each in host_views[0].heard if each.beat.host == "b"] if host_views else []

    until(heard)
    assert heard()[0].beat.rank == 1
    reporters[1]._end_thread()  # as if it were frozen
    exchange = reporters[0]._exchange
    assert exchange is not None
    last = reporters[1].beat.monotonic

    def age() -> float:
        """Of its last heartbeat; 0 until that has arrived."""
        found = [each for each in exchange.host_view().heard if each.beat.monotonic == last]
        return found[0].age if found else 0.0

    until(age)
    until(lambda: age() > 2.0)
    exchange.refresh(1.0)
    assert age() > 2.0, "asking again makes it no younger"
    for reporter in reporters:
        reporter.stop()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    """now(phase, waits): what the training says of itself."""

    def says(name: str, waits: bool = False) -> None:
        monkeypatch.setattr(NOW, "name", name)
        monkeypatch.setattr(NOW, "waits", int(waits))

    says("")
    return says


MINE, LIBRARY = ("/home/me/mine.py", 3, "f", 1), (json.__file__, 9, "loads", 1)
TRAINER = (f"{OURS}/trainer.py", 2, "step", 1)
HOOK = (f"{OURS}/script/hooks/in_torch.py", 5, "saved", 1)
STARTS = (f"{OURS}/script/script.py", 8, "_run_script", 1)
TORCHS = (str(Path(dist.distributed_c10d.__file__)), 7, "all_reduce", 1)


@pytest.mark.parametrize(
    ("phase", "says", "frames", "busy", "where", "waits"),
    [
        (FORWARD, False, [TRAINER], 0.0, "train/trainer.py:2 in step", False),
        (EXCHANGE, True, [TRAINER], 0.0, "train/trainer.py:2 in step", True),
        # Nothing shows a reduction in a backward pass but the processor, which is idle meanwhile.
        (BACKWARD, False, [TRAINER], 0.0, "train/trainer.py:2 in step", True),
        (BACKWARD, False, [TRAINER], 0.9, "train/trainer.py:2 in step", False),
        (BACKWARD, False, [TRAINER], -1.0, "train/trainer.py:2 in step", False),  # no such clock
        (BACKWARD, False, [MINE, TRAINER], 0.0, "/home/me/mine.py:3 in f", False),
        # The user's line is shown and not what it calls; a collective that it calls is a wait.
        (FORWARD, False, [LIBRARY, MINE, TRAINER], 0.0, "/home/me/mine.py:3 in f", False),
        (FORWARD, False, [TORCHS, MINE, TRAINER], 0.0, "/home/me/mine.py:3 in f", True),
        # A hook in a user's own script, and what started the script, are not shown.
        (FORWARD, False, [HOOK, MINE, STARTS], 0.0, "/home/me/mine.py:3 in f", False),
    ],
)
def test_where_a_thread_stands_and_whether_it_waits(
    now: Any,
    phase: str,
    says: bool,
    frames: list[stacks.Frame],
    busy: float,
    where: str,
    waits: bool,
) -> None:
    now(phase, says)
    found = stacks.position(frames, busy)
    assert (found.phase, found.where, found.waits) == (phase, where, waits)


def test_what_is_said_ends_with_what_is_done_and_stays_after_an_error(now: Any) -> None:
    now(FORWARD)
    with doing("evaluation"), WAITING, WAITING:
        assert (NOW.name, NOW.waits) == ("evaluation", 2)
    assert (NOW.name, NOW.waits) == (FORWARD, 0)
    with pytest.raises(ValueError, match="why"), doing("evaluation"), WAITING:
        raise ValueError("why")
    assert (NOW.name, NOW.waits) == ("evaluation", 0)


@pytest.mark.slow
def test_a_thread_that_runs_on_is_looked_at_without_harm() -> None:
    """Following f_back of another thread's live frames has crashed CPython 3.11."""
    going, watches = threading.Event(), []

    def generator(depth: int) -> Any:
        if depth:
            yield from generator(depth - 1)
        yield sum(x for x in range(50))

    def run() -> None:
        watches.append(ThreadSampler())
        while not going.is_set():
            list(generator(20))

    runner = threading.Thread(target=run)
    runner.start()
    until(lambda: watches)
    try:
        seen = set()
        for _ in range(300):
            seen.add(watches[0].sample().stack)
            time.sleep(0.0001)  # so that it does run on
    finally:
        going.set()
        runner.join()
    assert len(seen) > 1
    assert all(any("test_heartbeats.py" in line for line in stack) for stack in seen), seen


# A thread that is not Python's gets its state, without the GIL, when it first calls into Python:
# gloo's do at the first collective.
NATIVE_THREADS = """
import ctypes, sys, threading
from train.health import stacks

libc = ctypes.CDLL(None)
in_a_native_thread = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)

def threads():
    for _ in range(1000):
        thread = ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, in_a_native_thread, None) == 0
        assert libc.pthread_join(thread, None) == 0

sys.setswitchinterval(0.00005)
sampler = stacks.ThreadSampler()
made = threading.Thread(target=threads)
made.start()
while made.is_alive():
    sampler.sample()
print("looked on")
"""


def test_threads_that_a_library_makes_meanwhile_do_no_harm() -> None:
    """faulthandler has crashed CPython 3.11 on them: a training died of SIGSEGV as it began."""
    command = [sys.executable, "-c", NATIVE_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "looked on\n"), done.stderr


def test_a_file_that_makes_no_sense_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / heartbeats.NAME).mkdir()
    for name in ("rank-00000.json", "seen-by-b.json"):
        (tmp_path / heartbeats.NAME / name).write_text('{"rank": "1"}')
    assert heartbeats.gather(tmp_path) == ([], None)


def test_only_what_is_ours_is_cleared(tmp_path: Path) -> None:
    place = tmp_path / heartbeats.NAME
    place.mkdir()
    ours = [
        "rank-00001.json",
        "seen-by-b.json",
        "explained-b-w",
        ".rank-00001.json.7",
        ".seen-by-b.7",
    ]
    theirs = [".bashrc", ".nfs0001", "notes", "rank-00000.json"]
    for name in ours + theirs:
        (place / name).touch()
    heartbeats.clear(tmp_path, keep_ranks_below=1)
    assert sorted(os.listdir(place)) == sorted(theirs)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / heartbeats.NAME).symlink_to(place)
    heartbeats.clear(tmp_path / "run")
    assert sorted(os.listdir(place)) == sorted(theirs)


def test_of_each_rank_the_newest_heartbeat_of_the_newest_world_counts() -> None:
    beat = Beat(0, 0, 2, "h", 1, "m", world="w", born=500.0, monotonic=5.0)
    later, old = replace(beat, monotonic=6.0), replace(beat, rank=1, world="old", born=100.0)
    coming = replace(beat, rank=1, world="", born=499.0)
    for found, newest in (
        (
            [ReceivedBeat(beat, 1.0), ReceivedBeat(beat, 9.0)],
            [ReceivedBeat(beat, 9.0)],
        ),  # the longer silence
        ([ReceivedBeat(later, 3.0), ReceivedBeat(beat, 1.0)], [ReceivedBeat(later, 3.0)]),
        ([ReceivedBeat(old, 1.0), ReceivedBeat(beat, 1.0)], [ReceivedBeat(beat, 1.0)]),
        (
            [ReceivedBeat(beat, 1.0), ReceivedBeat(coming, 1.0)],
            [ReceivedBeat(beat, 1.0), ReceivedBeat(coming, 1.0)],
        ),
    ):
        assert heartbeats.newest_world(found) == newest


def test_what_a_host_received_in_an_earlier_world_does_not_count(tmp_path: Path) -> None:
    (tmp_path / heartbeats.NAME).mkdir()
    here = heartbeats.machine()
    old, new = (Beat(0, 0, 2, "h", 1, here, world=w, born=b) for w, b in (("old", 1.0), ("", 9.0)))
    view = HostView("h", here, 1.0, 2.0, 3.0, 4.0, (ReceivedBeat(old, 5.0),), world="old")
    heartbeats.write_host_view(tmp_path, view)
    assert heartbeats.gather(tmp_path)[1] == view
    heartbeats.write_beat(tmp_path, new)  # the next start, which has not met the others yet
    heard, own = heartbeats.gather(tmp_path)
    assert ([each.beat for each in heard], own) == ([new], None)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / heartbeats.NAME).mkdir()
    odd = {"host": "h\x1b[2J\u202e", "where": "a\nb\ud800", "stack": ("x\r",)}
    beat = Beat(0, 0, 1, pid=1, machine="m", **odd)
    host_view = HostView("../h", "m", 1.0, 2.0, 3.0, 4.0, (ReceivedBeat(beat, 5.0),))
    heartbeats.write_host_view(tmp_path, host_view)
    assert os.listdir(tmp_path / heartbeats.NAME) == ["seen-by-.._h.json"]
    assert heartbeats.read_host_views(tmp_path) == [host_view]


def test_buckets_are_written_to_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heartbeats.write_interval_s(tmp_path, 1.0) == 1.0
    mounts = f"/dev/x / ext4 rw 0 0\nbucket {tmp_path} fuse.rclone rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: mounts)
    assert heartbeats.write_interval_s(tmp_path / "ckpt", 1.0) == 30.0


def test_a_process_that_was_frozen_knows_it_and_blames_nobody(tmp_path: Path) -> None:
    standstill = Standstill(interval_s=1.0)
    for began, ended in ((100, 101), (101, 110), (110, 151)):
        standstill.begin(began)
        standstill.end(ended)
    assert [standstill.recent_s(now) for now in (151, 200, 212)] == [41, 41, 0]
    reporter = Reporter(tmp_path, ENV, "desk")
    reporter._standstill = standstill
    reporter.meet("w", None)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    standstill.check(now)  # whatever held this thread up, it was no wait
    assert standstill.recent_s(now) == 0
    standstill.begin(now - 30)
    standstill.check(now)
    (line,) = reporter.explain()
    assert line.startswith("desk itself stood still for 30 s, ")
