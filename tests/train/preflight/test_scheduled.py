"""The check of a job that a scheduler has started: names and counts, no addresses, no terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.project.tree import ROOT

NODES = ("n1", "n2", "n3")


class Job:
    """Nodes of one job; all of them are this machine."""

    def __init__(self, directory: Path, roster: bool) -> None:
        self.port, self.directory, self.roster = free_port(), directory, roster

    def start(self, name: str, rank: int, *more: str, timeout_s: float) -> subprocess.Popen[str]:
        settings = {
            "job": "gpt", "checkpoint_dir": str(self.directory), "me": name, "node_rank": rank,
            "head": "127.0.0.1", "port": self.port, "nodes": 3, "least": 3, "world_size": 3,
            "shared": True, "addresses": dict.fromkeys(NODES, "") if self.roster else {},
            "timeout_s": timeout_s,
        }  # fmt: skip
        program = [sys.executable, "-m", "tests.train.preflight.program"]
        env = {"DDPGEN_SCHEDULER": "slurm 4711 0", "DDPGEN_SCRIPT": "sbatch slurm.sbatch"}
        return subprocess.Popen(
            [*program, json.dumps(settings), *more], cwd=ROOT, env={**os.environ, **env}, text=True,
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

    def remedies(self) -> Sequence[str]:
        found = json.loads((self.directory / "preflight.json").read_text())["findings"]
        return [finding["remedy"] for finding in found]


@pytest.fixture(params=[True, False], ids=["with names", "without names"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(tmp_path / "checkpoints", request.param)


def test_three_nodes_meet(job: Job) -> None:
    said = job.run({"n1": 0, "n2": 1, "n3": 2}, "--only")
    assert job.codes == {0}, said
    *_, last = said["n1"].splitlines()  # it may have had to wait for the others, and said so
    assert (
        ": preflight: 3 hosts can start the job (" in last
    )  # behind time and host, as under Slurm
    *_, last = said["n2"].splitlines()
    assert last.endswith(": preflight: the head says that all hosts can start the job")


def test_a_node_that_does_not_come_is_named_with_what_to_do_about_it(job: Job) -> None:
    said = job.run({"n1": 0, "n2": 1}, timeout_s=7)
    assert job.codes == {69}, said
    missing = "n3" if job.roster else "node 2"
    for text in said.values():
        assert f"{missing} has not checked in within 7 s" in text
        assert "see what Slurm job 4711 says of it in its log" in text
        assert f"exclude {missing}" in text
        assert "terminal" not in text


def test_a_head_that_does_not_come_is_named(job: Job) -> None:
    said = job.run({"n2": 1}, timeout_s=4)
    assert job.codes == {69}, said
    head = "n1 (127.0.0.1)" if job.roster else "127.0.0.1"
    assert f"the head, {head}, has not checked in within 4 s" in said["n2"]
    assert "see what Slurm job 4711 says of it in its log" in said["n2"]


def test_two_with_one_rank_are_told_to_start_as_one_job(job: Job) -> None:
    said = job.run({"n1": 0, "n2": 1, "n3": 1}, timeout_s=20)
    assert job.codes == {69}, said
    assert "were both started as node 1" in said["n1"]
    (remedy,) = set(job.remedies())
    assert remedy == (
        "start the job by `sbatch slurm.sbatch` alone, which starts one task on each node"
    )
