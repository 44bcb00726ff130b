"""The end of a node, as it tells the batch supervisor."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from train.launch.decision import ExitReport
from train.launch.slurm.decision import Failure
from train.launch.slurm.directory import Directory
from train.launch.slurm.node import SlurmNode
from train.launch.words import Command


def test_a_node_that_the_preflight_refuses_gives_the_finding_as_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path, "7", "7", 0)
    for name, value in (
        ("DDPGEN_SCHEDULER", directory.scheduler),
        ("SLURM_JOB_ID", "7"),
        ("SLURMD_NODENAME", "node2"),
    ):
        monkeypatch.setenv(name, value)
    options = argparse.Namespace(checkpoint_dir=str(tmp_path))
    node = SlurmNode(options, Command((), (), (), ()))
    finding = "preflight: CLK001 on node2; nothing was started"
    node.report(ExitReport(69, reason=finding))
    assert directory.failure() == Failure(69, "node2", finding)
