"""The end of a node, as it tells the batch supervisor."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from train.launch.decision import End, ExitReport
from train.launch.slurm.decision import Failure
from train.launch.slurm.directory import Directory
from train.launch.slurm.node import SlurmNode
from train.launch.words import Command
from train.run.status import Status


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path, "7", "7", 0)


@pytest.fixture
def node(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> SlurmNode:
    for name, value in (
        ("DDPGEN_SCHEDULER", directory.scheduler),
        ("SLURM_JOB_ID", "7"),
        ("SLURMD_NODENAME", "node2"),
    ):
        monkeypatch.setenv(name, value)
    options = argparse.Namespace(checkpoint_dir=str(directory.path))
    return SlurmNode(options, Command((), (), (), ()))


def test_a_node_that_the_preflight_refuses_gives_the_finding_as_its_reason(
    node: SlurmNode, directory: Directory
) -> None:
    finding = "preflight: CLK001 on node2; nothing was started"
    node.report(ExitReport(69, reason=finding))
    assert directory.failure() == Failure(69, "node2", finding)


@pytest.mark.parametrize(
    ("end", "code", "decisive"),
    [
        (End(0, Status("done", "a1", 7)), 0, ""),
        (End(0, Status("stopped", "a1", 7), stops=1), 0, ""),
        (End(0, Status("failed", "a1", 7, "why")), 1, "why"),
        (End(1, Status("running", "a1", 7), stops=1, met=False), 0, ""),
        # torchrun ended well, but no process has said that the job is over.
        (End(0, Status("running", "a1", 7)), 1, "code 0"),
        (End(137, Status("running", "a1", 7)), 137, "signal 9"),
        (End(1, Status("running", "a1", 7, "rank 1: odd")), 1, "rank 1: odd"),
        (End(1, None), 1, "another job"),
        (End(1, None, stops=1, met=False), 0, "before the training began"),
    ],
)
def test_the_end_of_a_node(node: SlurmNode, end: End, code: int, decisive: str) -> None:
    report = node.at_end(end)
    assert report.code == code
    assert decisive in report.why
