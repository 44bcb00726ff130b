"""The check of a job that a scheduler has started: names and counts, no addresses, no terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.project.tree import ROOT
from tests.train.preflight.hosts import settings
from train.preflight import messages
from train.preflight.phrases import NamedHost

NODES = ("n1", "n2", "n3")


class Job:
    """Nodes of one job; all of them are this machine."""

    def __init__(self, directory: Path, roster: bool) -> None:
        self.port, self.directory, self.roster = free_port(), directory, roster

    def start(self, name: str, rank: int, *more: str, timeout_s: float) -> subprocess.Popen[str]:
        given = {
            "job": "gpt", "checkpoint_dir": str(self.directory), "host_name": name, "node_rank": rank,
            "head": "127.0.0.1", "port": self.port, "nodes": 3, "min_nodes": 3, "world_size": 3,
            "shared": True, "addresses": dict.fromkeys(NODES, "") if self.roster else {},
            "timeout_s": timeout_s,
        }  # fmt: skip
        program = [sys.executable, "-m", "tests.train.preflight.program"]
        env = {"DDPGEN_SCHEDULER": "slurm 4711 0", "DDPGEN_SCRIPT": "sbatch slurm.sbatch"}
        return subprocess.Popen(
            [*program, json.dumps(given), *more], cwd=ROOT, env={**os.environ, **env}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, ranks: Mapping[str, int], *more: str, timeout_s: float = 60) -> dict[str, str]:
        """What each said; the exit code is the same of all."""
        started = {
            name: self.start(name, rank, *more, timeout_s=timeout_s) for name, rank in ranks.items()
        }
        said = {name: each.communicate(timeout=60)[1] for name, each in started.items()}
        self.codes = {each.returncode for each in started.values()}
        return said


@pytest.fixture(params=[True, False], ids=["with names", "without names"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(tmp_path / "checkpoints", request.param)


def test_three_nodes_meet(job: Job) -> None:
    said = job.run({"n1": 0, "n2": 1, "n3": 2}, "--only")
    assert job.codes == {0}, said
    *_, last = said["n1"].splitlines()  # it may have had to wait for the others, and said so
    assert ": preflight: 3 hosts can start " in last  # behind time and host, as under Slurm
    *_, last = said["n2"].splitlines()
    assert last.endswith(" all hosts can start the job")


def test_a_node_that_does_not_come_is_named_with_what_to_do_about_it(job: Job) -> None:
    said = job.run({"n1": 0, "n2": 1}, timeout_s=7)
    assert job.codes == {69}, said
    missing = "n3" if job.roster else "node 2"
    assert f"{missing} has not checked in within 7 s" in said["n1"]
    assert "Slurm job 4711" in said["n1"]
    assert f"exclude {missing}" in said["n1"]
    assert "terminal" not in said["n1"] + said["n2"]
    # All nodes write to one log.
    assert "error" not in said["n2"]
    assert "nothing was started" not in said["n2"]


@pytest.mark.parametrize(
    ("addresses", "head"), [(dict.fromkeys(NODES, ""), "n1 (127.0.0.1)"), ({}, "127.0.0.1")]
)
def test_a_head_that_does_not_come_and_two_with_one_rank_are_told_in_the_schedulers_words(
    addresses: dict[str, str], head: str
) -> None:
    job = settings(
        host_name="n2", node_rank=1, is_head=False, head="127.0.0.1", addresses=addresses,
        scheduler="slurm 4711 0", script="sbatch slurm.sbatch",
    )  # fmt: skip
    absent = messages.no_head(job, "127.0.0.1", "refused")
    assert absent.cause.startswith(f"the head, {head}, has not ")
    assert "Slurm job 4711" in absent.remedy
    twice = messages.same_rank(job, 1, NamedHost("n2"), NamedHost("n3"))
    assert twice.cause.startswith("n2 and n3 ")
    assert twice.cause.endswith(" as node 1")
    assert "`sbatch slurm.sbatch`" in twice.remedy
