"""Why a training of several hosts was stopped: every host's status says the same.

Each host has a checkpoint directory of its own, as machines in a cloud do.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import Host, hosts, static
from tests.train.metadata import WHEN, metadata
from train import notice

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

LONG = ["--steps=100000", "--world-size=2"]
TAKEN = f"preempted: aws takes this machine back at {WHEN}"


def two(tmp_path: Path, **env: str) -> tuple[Host, Host]:
    """Two hosts with one process each, of which the first has rank 0."""
    port = free_port()
    first = Host("first", tmp_path / "a", static(port, 1, "2", 0), LONG, **env)
    other = Host("other", tmp_path / "b", static(port, 1, "2", 1), LONG, **env)
    return first, other


def ends(tmp_path: Path, first: Host, other: Host) -> str:
    """The reason that both hosts and the job give, for a stop at the same step, with its checkpoint."""
    assert (first.end(), other.end()) == (0, 0), first.output + other.output
    word, step, reason = first.status.split(maxsplit=2)
    assert word == "stopped"
    assert other.status == first.status
    job = (tmp_path / "a" / "status").read_text().split(maxsplit=3)
    assert (job[0], job[2], job[3]) == ("stopped", step, f"{reason}\n")
    (saved,) = jobs.checkpoints(tmp_path / "a")
    assert saved.name == f"step-{int(step):09d}"
    assert f"stopped at step {step} ({reason}), " in first.output
    return reason


def test_a_cloud_that_takes_one_machine_back_stops_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata("aws") as aws:
        monkeypatch.setenv("DDPGEN_METADATA_AWS", aws.base)
        first, other = two(tmp_path)
        with hosts(first, other):
            first.until_step(20)
            # As the supervisor of the other host does.
            watch = threading.Thread(
                target=notice.watch, args=(tmp_path / "b" / "stop", ("aws",), 0.2), daemon=True
            )
            watch.start()
            first.until_step(60)
            aws.preempt()
            assert ends(tmp_path, first, other) == TAKEN
            watch.join(jobs.PATIENCE_S)
            assert not watch.is_alive()
    assert (tmp_path / "b" / "stop").read_text() == f"{TAKEN}\n"
    assert not (tmp_path / "a" / "stop").exists()


@pytest.mark.nightly
def test_a_signal_to_one_worker_is_the_reason_on_all_hosts(tmp_path: Path) -> None:
    first, other = two(tmp_path)
    with hosts(first, other):
        first.until_step(5)
        (worker,) = other.workers()
        os.kill(worker, signal.SIGTERM)
        assert ends(tmp_path, first, other) == "signal"
