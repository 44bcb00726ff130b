"""Two torchrun agents, as on two hosts: ranks meet within a host first, and the bits stay."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real import jobs

pytestmark = pytest.mark.real


def arguments(place: Path) -> list[str]:
    """The training command of a one-process bundle, as the plan has it."""
    bundle = jobs.render(place, jobs.spec({**jobs.GPT, "steps": 6}))
    text = (bundle / "local.sh").read_text().replace("\\\n", " ")
    own = ("--checkpoint-dir", "--checkpoint-every")
    words = shlex.split(text.partition(" -- ")[2].partition(" run ")[2].rpartition(" -- ")[0])
    return [word for word in words if not word.startswith(own)]


def test_two_agents_of_two_processes_give_the_bits_of_one_process(tmp_path: Path) -> None:
    argv = arguments(tmp_path / "alone")
    alone = jobs.run(tmp_path / "alone" / "bundle")
    assert alone.process.returncode == 0, alone.output
    port = free_port()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
             "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}",
             "-m", "train", "run", *argv, f"--checkpoint-dir={tmp_path / 'two'}", "--world-size=4"],
            cwd=tmp_path / "alone" / "bundle", env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for node in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [agent.communicate(timeout=jobs.PATIENCE_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait(10)
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    assert "4 processes, backend gloo" in outputs[0]
    expected = jobs.final_tensors(tmp_path / "alone" / "checkpoints" / "job")
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "two"), expected)
