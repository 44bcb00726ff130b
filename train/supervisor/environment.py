"""The environment of the workers: what is pinned, with the reason, and what tells them about the launch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Pin:
    """A variable that every worker gets, and why it is not left to chance."""

    name: str
    value: str
    why: str


def pins(nic: str, threads: int, over_network: bool) -> Iterator[Pin]:
    """What is pinned."""
    yield Pin("GLOO_SOCKET_IFNAME", nic, "gloo may otherwise pick docker0 or a VPN and hang")
    yield Pin("NCCL_SOCKET_IFNAME", f"={nic}", "the same for NCCL; = takes the name exactly")
    yield Pin(
        "OMP_NUM_THREADS", str(threads), "threads per process: another number gives other bits"
    )
    yield Pin(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "1",
        "restarted workers would read the dead ones' addresses from a shared store",
    )
    yield Pin("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS repeats its bits only with it")
    if over_network:
        yield Pin("TORCH_CPP_LOG_LEVEL", "ERROR", "torch warns at every address that has no name")
    yield Pin("PYTHONUNBUFFERED", "1", "the last lines of a crashed process are the ones needed")


def for_workers(
    inherited: Mapping[str, str], pinned: Collection[Pin], launch: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment: the supervisor's own, the pins, and what tells of the launch.

    PET_… are defaults of torchrun's options: left behind by a Kubernetes operator, PET_NNODES=2 makes
    it wait for a second node that never comes.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith("PET_")}
    return {**kept, **{pin.name: pin.value for pin in pinned}, **launch}
