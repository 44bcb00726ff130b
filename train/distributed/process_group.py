"""Joins the process group that the environment variables describe.

Owns torchrun's variables of this process, the choice of backend and device, and the joining of the process group
with explicit timeouts. Owns the small exchanges in the group that are not gradients. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.rendezvous import rendezvous

from train.base.errors import TrainError
from train.distributed.failures import FatalErrorBroadcast
from train.health.phase import WAITING

_LOOK_S = 5.0
# Objects that hold process groups, kept until the process ends: see leave_process_group().
_KEPT_UNTIL_EXIT: list[object] = []


@dataclass(frozen=True)
class RankInfo:
    """This process among the others, from torchrun's environment variables. `launched`: true if there were any."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launched: bool

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> RankInfo:
        """Read torchrun's variables; without any, the world is one process. Raises TrainError if some are missing."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if "RANK" not in env and "WORLD_SIZE" not in env:
            return cls(0, 1, 0, 1, launched=False)
        missing = [name for name in names if name not in env]
        if missing:
            raise TrainError(
                f"{', '.join(missing)} not set, although RANK or WORLD_SIZE is; start the job by "
                "its launch script or torchrun, or unset both to run a single process"
            )
        rank, world_size, local_rank, local_world_size = (int(env[name]) for name in names)
        return cls(rank, world_size, local_rank, local_world_size, launched=True)


@dataclass(frozen=True)
class World:
    """A joined world.

    `control`: a gloo group for decisions and losses, on CPU tensors. `layout`: the ranks of each host.
    """

    rank_info: RankInfo
    backend: str
    device: torch.device
    control: dist.ProcessGroup
    layout: tuple[tuple[int, ...], ...]
    store: Store
    collective_timeout: float

    @property
    def rank(self) -> int:
        return self.rank_info.rank

    @property
    def size(self) -> int:
        return self.rank_info.world_size

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on every rank."""
        with WAITING:
            return _gather(value, self.size, self.control)

    def barrier(self) -> None:
        with WAITING:
            dist.barrier(group=self.control)

    def broadcast(self, name: str, value: str, timeout_s: float) -> str:
        """Return rank 0's `value` on every rank, after at most `timeout_s` seconds.

        Uses many short waits in the TCPStore, because a collective would give up after the collective timeout. Raises
        TrainError when rank 0 is too late, and the store's own error when rank 0 is gone.
        """
        if self.rank == 0:
            self.store.set(name, value or " ")
            return value
        if self.wait_for(name, timeout_s):
            return self.store.get(name).decode().strip()
        raise TrainError(f"rank 0 was not done with its {name} after {timeout_s:g} s")

    def to_first(self, sender: int, name: str, text: str) -> str:
        """Return the `text` of rank `sender` on rank 0. Returns "" on other ranks, and if the text does not come."""
        if self.rank == sender:
            self.store.set(name, text)
        if self.rank == 0 and self.wait_for(name, self.collective_timeout):
            return self.store.get(name).decode()
        return ""

    def wait_for(self, name: str, timeout_s: float) -> bool:
        """Wait until the TCPStore has `name`, at most `timeout_s`, and return whether it has.

        Raises the store's error when rank 0 is gone.
        """
        looks = max(1, round(timeout_s / _LOOK_S))
        for _ in range(looks):
            with contextlib.suppress(dist.DistStoreError), WAITING:
                self.store.wait([name], timedelta(seconds=timeout_s / looks))
                return True
        return False

    def new_group(self, ranks: tuple[int, ...], backend: str = "") -> dist.ProcessGroup:
        """Make a process group, on the gradients' backend unless `backend` names another. Every rank has to call this
        for every group, in the same order."""
        group = dist.new_group(
            list(ranks),
            backend=backend or self.backend,
            timeout=timedelta(seconds=self.collective_timeout),
        )
        assert isinstance(group, dist.ProcessGroup) or self.rank not in ranks
        return group  # type: ignore[no-any-return]

    def once_per_node(self, key: str, action: Callable[[], None], timeout_s: float) -> None:
        """Run `action` in one process of each node; see train.workload.Context."""
        leader = next(host[0] for host in self.layout if self.rank in host)
        name = f"once/{leader}/{key}"
        if self.rank == leader:
            try:
                action()
            except BaseException as error:
                self.store.set(name, f"failed: {error}")
                raise
            self.store.set(name, "done")
            return
        if not self.wait_for(name, timeout_s):
            raise TrainError(
                f"{key}: the process of this node that does it was not done after {timeout_s:g} s"
            )
        outcome = self.store.get(name).decode()
        if outcome != "done":
            raise TrainError(f"{key} {outcome}")


def choose_backend(requested: str) -> str:
    """Return the backend: by default nccl on CUDA and gloo on the CPU. Raises TrainError for nccl without a GPU."""
    if requested == "auto":
        return "nccl" if torch.cuda.is_available() else "gloo"
    if requested == "nccl" and not torch.cuda.is_available():
        raise TrainError(
            "backend nccl needs CUDA, and this torch sees no CUDA device "
            f"(torch {torch.__version__}); set backend: gloo, or check the GPU driver with nvidia-smi"
        )
    return requested


def choose_device(backend: str, rank_info: RankInfo) -> torch.device:
    """Return this process' device: the CPU, or the GPU of its local rank if the host has a GPU for each process.

    Raises TrainError when the backend is nccl and this host has fewer GPUs than processes.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= rank_info.local_world_size:
        torch.cuda.set_device(rank_info.local_rank)
        return torch.device("cuda", rank_info.local_rank)
    if backend == "nccl":
        raise TrainError(
            f"this host runs {rank_info.local_world_size} processes and has {gpus} GPUs; set "
            f"procs_per_node to {gpus} or fewer (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')})"
        )
    return torch.device("cpu")


def join(
    rank_info: RankInfo,
    requested_backend: str,
    join_timeout: float,
    collective_timeout: float,
    failures: FatalErrorBroadcast | None = None,
) -> World:
    """Join the process group. Raises TrainError when the world cannot be joined in time."""
    # Connect the store first, so that a process that cannot go on can tell the processes that wait for it.
    store: Store = HashStore()
    if rank_info.launched:
        until = timedelta(seconds=join_timeout)
        store = next(rendezvous("env://", rank_info.rank, rank_info.world_size, timeout=until))[0]
    if failures is not None and rank_info.launched:
        failures.listen(store, rank_info.world_size)
    backend = choose_backend(requested_backend)
    if requested_backend == "auto" and failures is not None:
        backend = _common_backend(store, rank_info, backend, timedelta(seconds=join_timeout))
    device = choose_device(backend, rank_info)
    timeout = timedelta(seconds=collective_timeout)
    options: dict[str, Any] = {"device_id": device} if backend == "nccl" else {}
    dist.init_process_group(
        backend,
        store=store,
        rank=rank_info.rank,
        world_size=rank_info.world_size,
        timeout=timeout,
        **options,
    )
    control = dist.group.WORLD
    if backend != "gloo":
        control = dist.new_group(backend="gloo", timeout=timeout)
    assert control is not None
    layout = _layout(rank_info, control)
    return World(rank_info, backend, device, control, layout, store, collective_timeout)


def another_connection(store: Store) -> Store:
    """Return a further connection to the TCPStore in which the processes met, because only one request at a time waits
    on a connection."""
    if hasattr(store, "clone"):
        return store.clone()  # type: ignore[no-any-return]
    # torch 2.4 has no clone(), and no way to ask a PrefixStore for its prefix. Build the prefix as torchrun does: a
    # new one for each restart, so that no restart sees the keys of an earlier one.
    inner: Any = store.underlying_store if isinstance(store, PrefixStore) else store
    connection: Store = TCPStore(inner.host, inner.port, is_master=False, timeout=inner.timeout)
    if inner is not store:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        connection = PrefixStore(f"attempt {attempt}", connection)
    return connection


def _common_backend(store: Store, rank_info: RankInfo, own_backend: str, timeout: timedelta) -> str:
    """Return nccl if every process has chosen nccl, else gloo. The last process to report decides for all."""
    store.add("backend/nccl", int(own_backend == "nccl"))
    if store.add("backend/said", 1) == rank_info.world_size:
        with_gpu = store.add("backend/nccl", 0)
        store.set("backend", "nccl" if with_gpu == rank_info.world_size else "gloo")
    store.wait(["backend"], timeout)
    return store.get("backend").decode()


def _layout(rank_info: RankInfo, control: dist.ProcessGroup) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host: torchrun numbers the ranks of one agent consecutively."""
    first_ranks = _gather(rank_info.rank - rank_info.local_rank, rank_info.world_size, control)
    hosts: dict[int, list[int]] = {}
    for rank, first in enumerate(first_ranks):
        hosts.setdefault(first, []).append(rank)
    return tuple(tuple(ranks) for ranks in hosts.values())


def _gather(value: Any, size: int, group: dist.ProcessGroup) -> list[Any]:
    """Like torch's all_gather_object, but without numpy, because a host with torch need not have numpy."""
    own_bytes = bytearray(pickle.dumps(value))
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(own_bytes)]), group=group)
    max_length = max(int(length) for length in lengths)
    # A pickle marks its own end, so the padding is not read.
    own_bytes.extend(bytes(max_length - len(own_bytes)))
    received = [bytearray(max_length) for _ in range(size)]
    # The tensors are views of the bytes, so the received data lands in the bytes.
    views = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in received]
    dist.all_gather(views, torch.frombuffer(own_bytes, dtype=torch.uint8), group=group)
    return [pickle.loads(buffer) for buffer in received]


def leave_process_group(world: World, *holders: object) -> None:
    """Leave the process group together, so that no rank closes a connection that a peer still reads.

    `holders`: other objects that hold groups of this world. They are never freed, because of a deadlock in torch 2.4.
    In torch 2.4 the destructor of a gloo group keeps the GIL while it joins the group's threads. One of these threads
    may need the GIL to free a Python callback.
    """
    world.barrier()
    dist.destroy_process_group()
    _KEPT_UNTIL_EXIT.extend((world, *holders))
