"""The resume of a run: loads the newest valid checkpoint of all hosts into every process.

Owns the agreement on this checkpoint, and the transfer of its bytes to hosts that lack it. A host that has it reads its
own disk. One process of each other host receives it, in pieces, and passes each piece on to its neighbours. So a large
checkpoint on a slow network takes long, but no single wait does.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.base.console import say
from train.base.errors import TrainError
from train.checkpoint import disk
from train.checkpoint.disk import Checkpoint
from train.checkpoint.state import State
from train.distributed.process_group import World
from train.run.layout import step_directory
from train.run.provenance import is_start

# A piece takes a tenth of a second at 1 Gbit/s, two seconds at the 50 Mbit/s of a bad Wi-Fi.
PIECE_BYTES = 1 << 24
# How long a host may take to read and verify its newest checkpoint: 60 GB at 100 MB/s.
LOOK_S = 600.0


class LostOnTheWayError(RuntimeError):
    """A peer ended or fell silent during the transfer; the message is torch's."""


@dataclass(frozen=True)
class NewestCheckpoint:
    """The newest checkpoint, and the rank of the process that found it on its host's disk.

    `earlier`: the start that wrote it, in the form of a manifest, only on rank 0.
    """

    source: Checkpoint | SentCheckpoint
    rank: int
    earlier: tuple[Mapping[str, Any], ...] = ()


def restore(state: State, checkpoint: Checkpoint | SentCheckpoint) -> None:
    """Load a checkpoint's content into the state. Raises TrainError when it does not fit."""
    try:
        state.model.load_state_dict(checkpoint.load("model.pt"))
        content = checkpoint.load("optimizer.pt", mapped=bool(state.shards))
        states = content["optimizer"]
        states = states if isinstance(states, list) else [states]
        if len(states) != len(state.optimizers):
            raise ValueError(
                f"it is of {len(states)} optimizers, and there are {len(state.optimizers)}"
            )
        for optimizer, saved in zip(state.optimizers, states, strict=True):
            for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=False):
                if "fused" in own:  # not a part of the state: --accept-changes may have changed it
                    group["fused"] = own["fused"]
            optimizer.load_state_dict(saved)
        state.scaler.load_state_dict(content["scaler"])
        if "selection" in content:
            state.selection.load_state_dict(content["selection"])
    except LostOnTheWayError:
        raise
    except OSError as error:
        raise TrainError(
            f"the checkpoint of step {checkpoint.step} cannot be read any more: {error.strerror}"
        ) from None
    except (
        AttributeError, KeyError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        raise TrainError(
            f"the checkpoint of step {checkpoint.step} does not fit this model or optimizer: {error}; "
            "use the code it was written with, or another checkpoint.dir to start over"
        ) from None
    state.step = checkpoint.step


def find_newest(
    directory: Path, world: World, may_tidy: Callable[[], None]
) -> NewestCheckpoint | None:
    """Return the newest valid checkpoint of all hosts, on every rank, or None.

    One process of each host looks at its own disk, so this works with and without a shared file
    system. Bad checkpoints are reported and set aside. `may_tidy` raises when this attempt no longer
    holds the directory.
    """
    own_checkpoint: Checkpoint | None = None
    if world.rank_info.local_rank == 0:
        own_checkpoint = _newest_on_disk(directory, world.rank, may_tidy)
        if world.store.add("resume/looked", 1) == len(world.layout):
            world.store.set("resume/all", "looked")
    # Wait in the store, because a collective would give up while a host still reads a large checkpoint.
    world.wait_for("resume/all", LOOK_S)
    summary: tuple[int, Any, Any] | None = None
    if own_checkpoint is not None:
        summary = own_checkpoint.step, _short(own_checkpoint.meta), own_checkpoint.files
    rank_checkpoints = world.all_gather(summary)
    holder = max(range(world.size), key=lambda rank: (_step(rank_checkpoints[rank]), -rank))
    if rank_checkpoints[holder] is None:
        return None
    step, meta, files = rank_checkpoints[holder]
    lacking = [
        host for host in world.layout
        if (own := rank_checkpoints[host[0]]) is None or (own[0], own[2]) != (step, files)
    ]  # fmt: skip
    local = Checkpoint(step, meta, step_directory(directory, step), files)
    source = SentCheckpoint(local, world, holder, lacking) if lacking else local
    marker = own_checkpoint.meta if own_checkpoint is not None and world.rank == holder else {}
    text = world.to_first(holder, "resume/start", json.dumps(marker))
    return NewestCheckpoint(source, holder, _written_by(json.loads(text or "{}")))


def _short(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marker without the parts that grow with the number of hosts, because every rank sends it to all."""
    return {name: value for name, value in meta.items() if name not in ("start", "environments")}


def _written_by(meta: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    start, environments = meta.get("start"), meta.get("environments")
    if not is_start(start) or not isinstance(environments, dict):
        return ()
    return ({"starts": [start], "environments": environments},)


def _step(summary: tuple[int, Any, Any] | None) -> int:
    return -1 if summary is None else summary[0]


def _newest_on_disk(directory: Path, rank: int, may_tidy: Callable[[], None]) -> Checkpoint | None:
    bad: list[int] = []

    def reject(step: int, reason: str) -> None:
        bad.append(step)
        say(f"checkpoint {step_directory(directory, step)} is not valid: {reason}", rank)

    newest = disk.newest_valid(directory, reject)
    for step in bad:
        may_tidy()
        try:
            aside = disk.set_aside(directory, step)
        except FileNotFoundError:
            continue  # another node of a shared directory was faster
        say(f"it is set aside as {aside}", rank)
    if bad:
        say(f"using the checkpoint of step {newest.step}" if newest else "starting over", rank)
    return newest


class SentCheckpoint:
    """A checkpoint that some hosts lack. `local`: the checkpoint on the disk of a host that has it. `lacking`: the
    ranks of each host without it."""

    def __init__(
        self, local: Checkpoint, world: World, holder: int, lacking: list[tuple[int, ...]]
    ) -> None:
        self.step, self.meta = local.step, local.meta
        self._local, self._world, self._holder = local, world, holder
        # gloo broadcasts as a tree: for twice as many hosts, the holder sends once more.
        self._leaders = world.new_group((holder, *(host[0] for host in lacking)), "gloo")
        # The ranks of this rank's host if it lacks the checkpoint, else ().
        self._host = next((host for host in lacking if world.rank in host), ())

    def load(self, name: str, mapped: bool = False) -> Any:
        """Return one file's content. Every rank has to load the same files in the same order.

        Raises OSError, TrainError, LostOnTheWayError, and the errors of unpickling.
        """
        size, sha256 = self._local.files[name]
        received = io.BytesIO(bytes(size if self._host else 0))
        with received.getbuffer() as whole:
            for begin in range(0, size, PIECE_BYTES):
                end = min(begin + PIECE_BYTES, size)
                piece = self._read_piece(name, begin, end) if self._sends else whole[begin:end]
                try:
                    self._pass_on(piece)
                except RuntimeError as error:
                    raise LostOnTheWayError(str(error)) from None
            if self._host and hashlib.sha256(whole).hexdigest() != sha256:
                raise TrainError(
                    f"{name} of the checkpoint of step {self.step} changed on its way to this host"
                )
        return disk.unpickle(received) if self._host else self._local.load(name, mapped)

    @property
    def _sends(self) -> bool:
        return self._world.rank == self._holder

    def _read_piece(self, name: str, begin: int, end: int) -> bytearray:
        with open(self._local.directory / name, "rb") as file:
            file.seek(begin)
            return bytearray(file.read(end - begin))

    def _pass_on(self, piece: bytearray | memoryview) -> None:
        """Send this piece, or receive it and pass it on."""
        rank, control = self._world.rank, self._world.control
        leader, *neighbours = self._host or (-1,)
        if self._sends or rank == leader:
            dist.broadcast(_tensor(piece), src=self._holder, group=self._leaders)
        if rank == leader:
            for neighbour in neighbours:
                dist.send(_tensor(piece), neighbour, group=control)
        elif self._host:
            dist.recv(_tensor(piece), leader, group=control)
        # Keep all ranks within one piece of each other, so that each wait is short.
        self._world.barrier()


def _tensor(content: bytearray | memoryview) -> torch.Tensor:
    """Return a view of these bytes, so that received data lands in them."""
    return torch.frombuffer(content, dtype=torch.uint8)
