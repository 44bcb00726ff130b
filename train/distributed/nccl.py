"""NCCL's own reports: its log (how NCCL connects the ranks) and its flight recorder (the last collectives).

Imports no torch, because the variables have to be set before NCCL is loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from pathlib import Path

from train.health.heartbeats import NAME

_FILE = "NCCL_DEBUG_FILE"
_CARDS = Path("/sys/class/infiniband")


def record_collectives(env: MutableMapping[str, str], directory: Path) -> None:
    """When a collective times out, let each rank write its last collectives into the directory of the heartbeats.

    torch's `torchfrtrace` reads these files. The variables have the names of torch 2.9 and later, which warns of the
    older names.
    """
    env.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    env.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(directory / NAME / "nccl-rank-"))


def log_to_file(env: MutableMapping[str, str], rank: int, directory: Path) -> None:
    """Let NCCL log its transports, into a file of this rank."""
    env.setdefault("NCCL_DEBUG", "INFO")
    env.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM")
    env[_FILE] = str(directory / f".nccl-{rank}.log")


def chosen(env: MutableMapping[str, str]) -> list[str]:
    """Return the transports that this rank's NCCL has chosen, and delete its log. Empty if NCCL was not used."""
    path = Path(env.get(_FILE, ""))
    with contextlib.suppress(OSError):
        log = path.read_text(errors="replace")
        path.unlink()
        return transports(log)
    return []


def transports(log: str) -> list[str]:
    """Return the transports that a log names: P2P, SHM, NET/IB, NET/Socket …"""
    found = (line.partition(" via ")[2].split() for line in log.splitlines() if " via " in line)
    named = (words[0].split("/") for words in found if words)
    return sorted({"/".join(parts[:2]) if parts[0] == "NET" else parts[0] for parts in named})


def infiniband(cards: Path = _CARDS) -> list[str]:
    """Return the names of the InfiniBand (or RoCE) cards of this host."""
    return sorted(card.name for card in cards.glob("*"))


def idle_infiniband(host: str, names: list[str], cards: list[str]) -> str:
    """Return the finding if NCCL uses sockets although the host has InfiniBand, else ""."""
    if not cards or "NET/Socket" not in names:
        return ""
    return (
        f"NCCL on {host} uses sockets although it has InfiniBand ({', '.join(cards)}): see NCCL_IB_DISABLE, "
        "NCCL_IB_HCA, and whether the container has /dev/infiniband"
    )
