"""What a crash says of other processes: asked of torch itself, and of the errors of a user's own code."""

from __future__ import annotations

import datetime
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.train.world import in_world
from train.base.errors import GONE, LATE, PeerGoneError, PeerLateError, peer_failure
from train.distributed.process_group import World
from train.run.config import parse
from train.run.lock import claim
from train.run.status import Status, read_status
from train.worker import Worker


def raised_by(action: object) -> str:
    assert callable(action)
    try:
        for _ in range(3):  # a send into a socket that was closed just now succeeds
            action()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return f"{peer_failure(error)}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize("exchange", ["all_reduce", "broadcast", "barrier"])
def test_a_process_that_ends_in_a_collective_is_gone(tmp_path: Path, exchange: str) -> None:
    told = tmp_path / "told"
    connected = multiprocessing.get_context("fork").Event()

    def body(world: World) -> None:
        tensor = torch.ones(1 << 20)
        calls = {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "broadcast": lambda: dist.broadcast(tensor, 1),
            "barrier": dist.barrier,
        }
        if world.rank == 0:
            connected.set()
            told.write_text(raised_by(calls[exchange]))
        connected.wait()
        os._exit(0)

    with pytest.raises(EOFError):  # none of them is there to answer any more
        in_world(2, body)
    assert told.read_text().startswith(GONE), told.read_text()


def test_a_process_that_does_not_come_is_late() -> None:
    def body(world: World) -> list[str]:
        told = []
        if world.rank == 0:
            short = datetime.timedelta(seconds=0.5)
            group = dist.new_group(timeout=short, backend="gloo")
            store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
            told = [
                raised_by(lambda: dist.all_reduce(torch.ones(4), group=group)),
                raised_by(lambda: store.wait(["nothing"], short)),
            ]
        else:
            dist.new_group(backend="gloo")
        world.barrier()
        return told

    assert [text.split(":")[0] for text in in_world(2, body)[0]] == [LATE, LATE]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (PeerGoneError("x"), GONE),
        (PeerLateError("x"), LATE),
        (TimeoutError("the file server timed out"), ""),
        (ConnectionResetError("Connection reset by peer"), ""),
        (RuntimeError("DataLoader timed out after 30 seconds"), ""),
        (ValueError("closed by peer"), ""),
        (RuntimeError("CUDA out of memory"), ""),
    ],
)
def test_an_error_of_the_users_own_code_is_none_of_a_peer(error: Exception, meaning: str) -> None:
    assert peer_failure(error) == meaning


class DistError(RuntimeError):
    """By this name torch's own errors are known; some of them have no text."""


def test_the_loss_of_a_peer_that_torch_has_no_words_for_is_noted(tmp_path: Path) -> None:
    attempt = claim(tmp_path, "job", os.getpid())
    argv = ["--workload=toy", "--steps=9", "--global-batch-size=8", "--micro-batch-size=8"]
    config = parse([*argv, "--optimizer=sgd", "--lr=1", f"--checkpoint-dir={tmp_path}"])
    Worker(config, {"DDPGEN_ATTEMPT": attempt, "RANK": "1"}, argv)._crash(DistError(""))
    noted = Status("running", attempt, 0, "rank 1: lost a peer: DistError")
    assert read_status(tmp_path) == noted
