"""Why a training of several hosts was stopped: every host's status says the same.

Each host has a checkpoint directory of its own, as machines in a cloud do.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import Host, hosts, static
from tests.train.metadata import WHEN, metadata
from train.launch import notice

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

LONG = ["--steps=100000", "--world-size=2"]
TAKEN = f"preempted: aws takes this machine back at {WHEN}"


@pytest.mark.nightly
def test_a_cloud_that_takes_one_machine_back_stops_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata("aws") as aws:
        monkeypatch.setenv("DDPGEN_METADATA_AWS", aws.base)
        port = free_port()
        first = Host("first", tmp_path / "a", static(port, 1, 2, 0), LONG)
        other = Host("other", tmp_path / "b", static(port, 1, 2, 1), LONG)
        with hosts(first, other):
            first.until_step(20)
            # As the supervisor of the other host does.
            watch = threading.Thread(
                target=notice.watch, args=(tmp_path / "b" / "stop", ("aws",), 0.2), daemon=True
            )
            watch.start()
            first.until_step(60)
            aws.preempt()
            assert (first.end(), other.end()) == (0, 0), first.output + other.output
            watch.join(jobs.PATIENCE_S)
            assert not watch.is_alive()
    word, step, reason = first.status.split(maxsplit=2)
    assert (word, reason) == ("stopped", TAKEN)
    assert other.status == first.status
    job = (tmp_path / "a" / "status").read_text().split(maxsplit=3)
    assert (job[0], job[2], job[3]) == ("stopped", step, f"{TAKEN}\n")
    (saved,) = jobs.checkpoints(tmp_path / "a")
    assert saved.name == f"step-{int(step):09d}"
    assert f"stopped at step {step} ({TAKEN}), " in first.output
    assert (tmp_path / "b" / "stop").read_text() == f"{TAKEN}\n"
    assert not (tmp_path / "a" / "stop").exists()
