"""The example of a user's own loop keeps the contract of docs/own-script.md, with real processes."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.ports import free_port

SCRIPT = Path(__file__).parents[3] / "examples" / "code" / "own_loop" / "my_train.py"
TIMEOUT_S = 60

Start = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(directory)`: two ranks as torchrun starts them, each with an exit code of its own."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    started: list[subprocess.Popen[str]] = []

    def start_ranks(directory: Path, steps: int = 100_000) -> list[subprocess.Popen[str]]:
        port = free_port()
        ranks = [start_rank(directory, rank, port, steps) for rank in range(2)]
        started.extend(ranks)
        return ranks

    yield start_ranks
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def start_rank(directory: Path, rank: int, port: int, steps: int) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    env = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": "",
        "DDPGEN_CHECKPOINT_DIR": str(directory),
        "DDPGEN_STOP_FILE": str(directory / "stop"),
    }
    return subprocess.Popen(
        [sys.executable, "-u", str(SCRIPT), f"--steps={steps}", "--checkpoint-every=10"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps_said(process: subprocess.Popen[str]) -> Iterator[int]:
    """The steps of the lines it prints, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield int(line.split()[1].split("/")[0])


def codes(ranks: list[subprocess.Popen[str]]) -> list[int]:
    return [rank.wait(TIMEOUT_S) for rank in ranks]


def saved(directory: Path) -> dict:
    return torch.load(directory / "checkpoint.pt", weights_only=True)


@pytest.mark.real
@pytest.mark.nightly
def test_it_is_stopped_goes_on_is_killed_goes_on_and_ends(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"

    ranks = start(directory)
    said = steps_said(ranks[0])
    assert next(said) == 10
    (directory / "stop").touch()
    stopped_at = list(said)[-1]
    assert codes(ranks) == [75, 75], "stopped is 75, on every rank"
    assert saved(directory)["step"] == stopped_at

    (directory / "stop").unlink()  # what the launch script does before it starts
    ranks = start(directory)
    said = steps_said(ranks[0])
    assert next(said) == (stopped_at // 10 + 1) * 10, "it goes on after the stop"
    next(said)
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
    assert codes(ranks) == [-9, -9]
    killed_at = saved(directory)["step"]
    assert killed_at > stopped_at, "a kill leaves a whole checkpoint"

    last = killed_at + 100
    ranks = start(directory, last)
    assert list(steps_said(ranks[0])) == list(range(killed_at + 10, last + 1, 10))
    assert codes(ranks) == [0, 0], "done is 0, on every rank"
    state = saved(directory)
    assert state["step"] == last
    assert state["optimizer"]["state"][0]["step"] == last, "every step was taken, and none twice"


def test_it_imports_nothing_of_the_training_module() -> None:
    imports = [
        name
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    assert imports
    assert not [name for name in imports if name.split(".")[0] in ("train", "ddpgen")]
