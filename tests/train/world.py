"""Real process groups in a fraction of a second: a world of forked processes with torch loaded.

Starting Python and importing torch takes seconds, a fork of this process takes milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.distributed.process_group import RankInfo, World

TIMEOUT_S = 60.0


def in_world(
    size: int, body: Callable[[World], Any], layout: list[list[int]] | None = None
) -> list[Any]:
    """What `body` returns on each rank of a gloo world of `size` processes.

    `layout` lets them pass for the ranks of several hosts. An exception on any rank is raised here.
    """
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        pipes, children = [], []
        for rank in range(size):
            mine, theirs = fork.Pipe()
            child = fork.Process(
                target=_rank, args=(rank, size, body, layout, directory, theirs), daemon=True
            )
            child.start()
            theirs.close()
            pipes.append(mine)
            children.append(child)
        try:
            return [_answer(pipe, rank) for rank, pipe in enumerate(pipes)]
        finally:
            for child in children:
                child.kill()
                child.join()


def _answer(pipe: Connection, rank: int) -> Any:
    if not pipe.poll(TIMEOUT_S):
        raise TimeoutError(f"rank {rank} said nothing for {TIMEOUT_S} s")
    good, value = pickle.loads(pipe.recv_bytes())
    if not good:
        raise AssertionError(f"rank {rank}:\n{value}")
    return value


def _rank(
    rank: int,
    size: int,
    body: Callable[[World], Any],
    layout: list[list[int]] | None,
    directory: str,
    pipe: Connection,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = dist.FileStore(str(Path(directory) / "store"), size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )
        hosts = tuple(map(tuple, layout or [list(range(size))]))
        host = next(h for h in hosts if rank in h)
        place = RankInfo(rank, size, host.index(rank), len(host), launched=True)
        control = dist.group.WORLD
        assert control is not None
        world = World(place, "gloo", torch.device("cpu"), control, hosts, store, 30.0)
        value = body(world)
        world.barrier()
        answer = (True, value)
    except BaseException:  # noqa: BLE001 - sent to the test
        answer = (False, traceback.format_exc())
    # Plain pickle: multiprocessing's own would pass tensors as shared memory of a process that ends.
    pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)
