"""A scheduler starts a job anew while its earlier start goes on: that one ends and leaves no trace.

What Slurm does when it loses the daemon of a host: the processes there go on, and nobody tells them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import Host, c10d, hosts, until_step
from train.run.lock import read_lock, take
from train.run.replaced import LOOK_S
from train.run.status import Status, write_status

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(240)]

# torchrun, by the first process of its host; what counts is the status.
KILLED = -signal.SIGKILL
LATE_S = 1.0  # for a busy machine, and a step that is being taken
# Long enough that none of it ends by itself in a test.
EARLIER = ("--steps=1000000", "--checkpoint-every=5 steps", "--checkpoint-keep=1000000")
LATER = ("--steps=1000000", "--checkpoint-every=1000 steps", "--checkpoint-keep=1000000")


def start(
    name: str, directory: Path, port: int, *, restart: int, nodes: int, procs: int = 1,
    head: bool = True,
    more: Sequence[str] = (),
) -> Host:  # fmt: skip
    """A host of this start of the job 4711; its torchrun would start workers again that fail."""
    slow = directory.with_name("slow")
    slow.mkdir(exist_ok=True)
    (slow / "slow.py").write_text(jobs.SLOW["slow.py"])
    paced = [f"--workload={slow / 'slow.py'}:build"]
    env = {
        "SLOW": "0.03",
        "DDPGEN_SCHEDULER": f"slurm 4711 {restart}",
        "DDPGEN_LAUNCH": f"slurm.4711.{restart}",
    }
    launcher = c10d(port, procs, str(nodes), head=head, restarts=3)
    return Host(name, directory, launcher, [*paced, *(LATER if restart else EARLIER), *more], **env)


def resumed_at(host: Host) -> int:
    return int(host.until(r"resuming at step (\d+) of")[1])


def assert_no_trace(directory: Path, resumed: int) -> None:
    """Of the earlier start, since the later one took the directory."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    attempts = [row["attempt"] for row in rows]
    later = attempts.index("slurm.4711.1")
    assert set(attempts[:later]) == {"slurm.4711.0"}
    # A process of the earlier start looks once in LOOK_S, and may add a row until then.
    looked = rows[later]["time"] + LOOK_S + LATE_S
    assert {row["attempt"] for row in rows[later:] if row["time"] > looked} <= {"slurm.4711.1"}
    for place in jobs.checkpoints(directory):
        marker = json.loads((place / "checkpoint.json").read_text())
        assert marker["attempt"] == (
            "slurm.4711.0" if marker["step"] <= resumed else "slurm.4711.1"
        )
    assert list(directory.glob(".tmp-step-*")) == []


def stop(directory: Path, host: Host) -> None:
    """The later start, by the stop file; then what it has written is complete."""
    (directory / "stop").touch()
    assert host.end() == 0, host.output
    assert re.fullmatch(r"stopped slurm\.4711\.1 \d+ user\n", (directory / "status").read_text())
    holder = read_lock(directory)
    assert holder is not None
    assert (holder.attempt, holder.scheduler) == ("slurm.4711.1", "slurm 4711 1")
    assert not (directory / "heartbeats").exists()


def test_an_earlier_start_that_hangs_ends_too_and_so_does_a_rank_that_wakes_up_later(
    tmp_path: Path,
) -> None:
    port = free_port()
    first = start("a", tmp_path, port, restart=0, nodes=2, procs=2)
    second = start("b", tmp_path, port, restart=0, nodes=2, head=False)
    with hosts(first, second):
        until_step((first, second), 20)
        (frozen,) = second.workers()
        os.kill(frozen, signal.SIGSTOP)  # now the others wait for it in a step
        later = start("c", tmp_path, free_port(), restart=1, nodes=1)
        with hosts(later):
            resumed = resumed_at(later)
            assert first.end() == KILLED, first.output
            later.until_step(resumed + 20)
            os.kill(frozen, signal.SIGCONT)
            assert second.end() == KILLED, second.output
            stop(tmp_path, later)
    told = "a later start of Slurm job 4711 has taken over (start 2, on"
    for host in (first, second):
        assert told in host.output
        assert "restart 1 of 3" not in host.output
        assert host.status.startswith("failed ")
        assert told in host.status
    assert later.status.startswith("stopped ")
    assert resumed >= 15
    assert_no_trace(tmp_path, resumed)


def test_a_host_may_belong_to_the_earlier_and_to_the_later_start(tmp_path: Path) -> None:
    first = start("a", tmp_path, free_port(), restart=0, nodes=1, procs=2)
    with hosts(first):
        until_step((first,), 20)
        later = start("a", tmp_path, free_port(), restart=1, nodes=1)
        with hosts(later):
            resumed = resumed_at(later)
            assert first.end() == KILLED, first.output
            assert later.status.startswith("running ")
            stop(tmp_path, later)
    assert "has taken over" in first.output
    assert "waiting for its workers" not in later.output
    assert later.status.startswith("stopped ")
    assert_no_trace(tmp_path, resumed)


def test_nothing_is_written_from_the_moment_the_directory_is_taken(tmp_path: Path) -> None:
    # Who writes no checkpoint has no other reason to look.
    rarely = ["--checkpoint-every=100000 steps"]
    first = start("a", tmp_path, free_port(), restart=0, nodes=1, procs=2, more=rarely)
    with hosts(first):
        until_step((first,), 20)
        take(tmp_path, "test", os.getpid(), "slurm.4711.1", "slurm 4711 1")
        write_status(tmp_path, Status("running", "slurm.4711.1", 20))
        beats = tmp_path / "heartbeats"
        for beat in beats.iterdir():
            beat.unlink(missing_ok=True)  # its process may end meanwhile
        taken = time.time()
        assert first.end() == KILLED, first.output
    # A process looks once in LOOK_S, and may write rows until then. What it had looked for just before, it may write just
    # after: a beat each.
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["time"] for line in lines) < taken + LOOK_S + LATE_S
    assert len(list(beats.iterdir())) <= 2
    assert (tmp_path / "status").read_text() == "running slurm.4711.1 20\n"
    assert list(tmp_path.glob(".tmp-step-*")) == []
