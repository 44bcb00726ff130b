"""A later start of a scheduler's job: the earlier one sees it, says so once, and writes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.base.scheduler import Scheduled
from train.health.reporter import Reporter
from train.run.lock import claim, take
from train.run.node import Node
from train.run.replaced import Replacement
from train.run.status import Status, read_status

ROOT = Path(__file__).parents[2]
ENV = {"DDPGEN_SCHEDULER": "slurm 4711 0"}


def test_a_start_of_a_job_is_read() -> None:
    found = Scheduled.parse("slurm 4711_3 12")
    assert found == Scheduled("slurm", "4711_3", 12)
    assert (found.name, found.cancel_command) == ("Slurm job 4711_3", "scancel 4711_3")


@pytest.mark.parametrize(
    "text",
    ["", "slurm", "slurm 4711", "slurm 4711 -1", "slurm 4711 x", "slurm 4711 0 0", "slurm  1 0",
     "slurm ;rm 0", "slurm $(a) 0", "slurm 4711 0\n", "slurm 4711 ٣", None, 5],
)  # fmt: skip
def test_what_makes_no_sense_is_no_start(text: object) -> None:
    assert Scheduled.parse(text) is None


@pytest.mark.parametrize(
    ("later", "replaces"),
    [("slurm 4711 1", True), ("slurm 4711 0", False), ("slurm 4712 1", False), ("", False),
     ("pbs 4711 1", False)],
)  # fmt: skip
def test_only_a_later_start_of_the_same_job_replaces_one(
    tmp_path: Path, later: str, replaces: bool
) -> None:
    take(tmp_path, "job", os.getpid(), "other", later)
    assert Replacement(tmp_path, ENV, None).has_come() is replaces
    assert not Replacement(tmp_path, {}, None).has_come()


def test_a_replaced_process_puts_no_heartbeat_on_file_and_removes_none(tmp_path: Path) -> None:
    replaced = Replacement(tmp_path, ENV, None)
    reporter = Reporter(tmp_path, {}, may_write=lambda: not replaced.has_come())
    take(tmp_path, "job", os.getpid(), "slurm.4711.1", "slurm 4711 1")
    others = tmp_path / "heartbeats" / "rank-00000.json"
    others.parent.mkdir()
    others.write_text("the later start's")
    reporter.start()
    reporter.meet("world", None)
    reporter.fail(RuntimeError("lost"), peer_failed=True)
    assert others.read_text() == "the later start's"
    reporter.stop()
    assert others.read_text() == "the later start's"


WAITING = """
import sys
print("begun", flush=True)
sys.stdin.read()
"""


def script(tmp_path: Path, restart: int) -> tuple[subprocess.Popen[str], Node]:
    """A training loop of the user's own, as rank 0 of a host of this start."""
    directory = tmp_path / "checkpoints"
    held = directory / "nodes" / "a"
    which = f"slurm 4711 {restart}"
    attempt = claim(held, "job", os.getpid(), scheduler=which)
    loop = tmp_path / "loop.py"
    loop.write_text(WAITING)
    env = {
        "DDPGEN_SCHEDULER": which, "DDPGEN_LAUNCH": f"slurm.4711.{restart}",
        "DDPGEN_ATTEMPT": attempt, "DDPGEN_NODE": "a", "DDPGEN_NODE_DIR": str(held),
        "DDPGEN_CHECKPOINT_DIR": str(directory), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "train", "script", str(loop)], env={**os.environ, **env},
        cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    return process, Node("a", held, attempt, "")


def test_a_script_of_ones_own_ends_too(tmp_path: Path) -> None:
    process, node = script(tmp_path, 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    take(tmp_path / "checkpoints", "job", os.getpid(), "slurm.4711.1", "slurm 4711 1")
    assert process.wait(60) == 0
    _, errors = process.communicate()
    assert "Slurm job 4711 has taken over (start 2, on " in errors
    status = read_status(node.directory)
    assert status is not None
    assert (status.word, status.attempt) == ("failed", node.attempt)
    # The whole job's is the later start's to write.
    assert read_status(tmp_path / "checkpoints") is None


def test_a_script_of_an_earlier_start_does_not_begin(tmp_path: Path) -> None:
    take(tmp_path / "checkpoints", "job", os.getpid(), "slurm.4711.1", "slurm 4711 1")
    process, _ = script(tmp_path, 0)
    said, errors = process.communicate("", timeout=60)
    assert (process.returncode, said) == (0, "")
    assert "has taken over" in errors


def test_a_script_that_ends_well_says_so_for_the_whole_job(tmp_path: Path) -> None:
    process, _ = script(tmp_path, 2)
    process.communicate("", timeout=60)
    assert read_status(tmp_path / "checkpoints") == Status("done", "slurm.4711.2", 0)
