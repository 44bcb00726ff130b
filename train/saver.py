"""When checkpoints are taken, what goes into them, and how a run finds its way back.

Owns the checkpoint period, the content of model.pt and optimizer.pt, and the agreement of all nodes
on the newest valid checkpoint. Knows nothing of the loop that calls it.
"""

from __future__ import annotations

import errno
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train import checkpoint
from train.checkpoint import BackgroundWriter, Checkpoint
from train.config import Period
from train.dist import World
from train.errors import TrainError
from train.layout import step_directory
from train.lock import Fence, FencedOffError
from train.loop import State
from train.metrics import say

# Less than the 30 s that torchrun leaves a worker between SIGTERM and SIGKILL.
SETTLE_S = 20.0


@dataclass(frozen=True)
class SaveFailedError(Exception):
    """The last checkpoint of a run could not be written."""

    step: int
    why: str

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} could not be written: {self.why}"


class Saver:
    """Rank 0's checkpoints: due by steps or seconds, written beside the training."""

    def __init__(
        self, directory: Path, fence: Fence, every: Period, keep: int, meta: dict[str, Any]
    ) -> None:
        self._directory, self._fence, self._every, self._keep = directory, fence, every, keep
        self._meta = meta
        self._writer = BackgroundWriter(self._on_error)
        self._last_time = time.monotonic()
        self._last_step: int | None = None
        self.fenced_off: FencedOffError | None = None

    def resumed(self, step: int) -> None:
        """A checkpoint of this step lies there already."""
        self._last_step = step

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be taken after `step` complete steps.

        Not while one is being written: a disk that is slower than the period would stop the
        training, and the peers waiting for this rank would give up. It is due right after.
        """
        if self._writer.busy:
            return False
        if self._every.steps is not None:
            return step // self._every.steps > (self._last_step or 0) // self._every.steps
        assert self._every.seconds is not None
        return time.monotonic() - self._last_time >= self._every.seconds

    def save(self, state: State) -> None:
        """Take a checkpoint of the state as it is now; returns at once."""
        self._last_time = time.monotonic()
        step = state.step
        self._last_step = step
        # The forward pass writes to buffers while the copy is under way; they are small.
        model = state.model.state_dict()
        copies: dict[int, torch.Tensor] = {}
        for name, buffer in state.model.named_buffers(remove_duplicate=False):
            if name in model:
                model[name] = copies.setdefault(id(buffer), buffer.detach().clone())
        parts = {
            "model.pt": model,
            "optimizer.pt": {
                "optimizer": state.optimizer.state_dict(),
                "scaler": state.scaler.state_dict(),
            },
        }
        self._writer.start(
            step,
            lambda: {name: checkpoint.copy_tensors(part) for name, part in parts.items()},
            lambda copies: self._write(step, copies),
        )

    def settle(self) -> None:
        """Wait, within reason, for the checkpoint that is being written. Raises nothing."""
        self._writer.wait_written(SETTLE_S)

    def wait_copied(self) -> None:
        self._writer.wait_copied()

    def finish(self, state: State) -> None:
        """Make the state as it is now durable. Raises SaveFailedError or FencedOffError."""
        failed = self._writer.finish()
        if failed is not None or self._last_step != state.step:
            self.save(state)
            failed = self._writer.finish()
        if isinstance(failed, FencedOffError):
            raise failed
        if failed is not None:
            raise SaveFailedError(state.step, _why(failed))

    def _write(self, step: int, copies: dict[str, Any]) -> None:
        writer = f"{self._fence.attempt}-{self._fence.generation}"
        self._fence.check()
        checkpoint.write(self._directory, step, copies, self._meta, writer, self._fence.check)
        self._fence.check()
        checkpoint.prune(self._directory, self._keep)

    def _on_error(self, step: int, error: Exception) -> None:
        if isinstance(error, FencedOffError):
            self.fenced_off = error
            return
        say(
            f"the checkpoint of step {step} could not be written ({_why(error)}); training goes on "
            "from memory, the checkpoint before it is kept, the next one is tried as planned"
        )


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space left on the device"
    return str(error)


def restore(state: State, found: Checkpoint) -> None:
    """Put a checkpoint's content into the state. Raises TrainError when it does not fit."""
    try:
        state.model.load_state_dict(found.load("model.pt"))
        parts = found.load("optimizer.pt")
        state.optimizer.load_state_dict(parts["optimizer"])
        state.scaler.load_state_dict(parts["scaler"])
    except (
        AttributeError, KeyError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        raise TrainError(
            f"the checkpoint of step {found.step} does not fit this model or optimizer: {error}; "
            "use the code it was written with, or another checkpoint.dir to start anew"
        ) from None
    state.step = found.step


def find(directory: Path, world: World, may_tidy: Callable[[], None]) -> Checkpoint | None:
    """The newest valid checkpoint anywhere in the world, on every rank.

    One process of each node looks at its own disk; the newest step wins and its holder broadcasts
    it, so this works with and without a shared file system. Bad checkpoints are reported and set
    aside. `may_tidy` raises when this attempt no longer holds the directory.
    """
    mine: Checkpoint | None = None
    if world.place.local_rank == 0:
        mine = _look(directory, world.rank, may_tidy)
    steps = world.gather(mine.step if mine else -1)
    newest = max(steps)
    if newest < 0:
        return None
    holder = steps.index(newest)
    return _broadcast(mine if world.rank == holder else None, holder, world)


def _look(directory: Path, rank: int, may_tidy: Callable[[], None]) -> Checkpoint | None:
    bad: list[int] = []

    def reject(step: int, why: str) -> None:
        bad.append(step)
        say(f"checkpoint {step_directory(directory, step)} is not valid: {why}", rank)

    found = checkpoint.newest_valid(directory, reject)
    for step in bad:
        may_tidy()
        try:
            aside = checkpoint.set_aside(directory, step)
        except FileNotFoundError:
            continue  # another node of a shared directory was faster
        say(f"it is set aside as {aside}", rank)
    if bad:
        say(f"using the checkpoint of step {found.step}" if found else "starting anew", rank)
    return found


def _broadcast(mine: Checkpoint | None, holder: int, world: World) -> Checkpoint:
    if world.size == 1:
        assert mine is not None
        return mine
    sizes = {name: len(content) for name, content in mine.files.items()} if mine else {}
    head: list[Any] = [(mine.step, mine.meta, sizes) if mine else None]
    dist.broadcast_object_list(head, src=holder, group=world.control)
    step, meta, sizes = head[0]
    files = {}
    for name, size in sizes.items():
        content = bytearray(mine.files[name] if mine else size)
        # The tensor is a view of the bytes: what is received lands in them.
        dist.broadcast(
            torch.frombuffer(content, dtype=torch.uint8), src=holder, group=world.control
        )
        files[name] = bytes(content)
    return Checkpoint(step, meta, files)
