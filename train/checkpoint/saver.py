"""When checkpoints are taken, and what goes into them.

Owns the checkpoint period and the content of model.pt and optimizer.pt; resume.py reads them. Knows
nothing of the loop that calls it.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train.checkpoint import disk
from train.checkpoint.disk import BackgroundWriter
from train.checkpoint.interval import Interval
from train.config import Period
from train.console import say
from train.files import replace_file
from train.layout import BEST, step_directory
from train.lock import Fence, FencedOffError
from train.state import State

if TYPE_CHECKING:
    from train.checkpoint.remote import RemoteCheckpoints

# Less than the 30 s that torchrun leaves a worker between SIGTERM and SIGKILL.
SETTLE_S = 20.0
# Between the tries of the last upload: what is here alone may be gone with its machine at any time.
_LAST_PAUSES_S = (0.0, 2.0, 10.0, 30.0, 60.0, 90.0, 120.0)
# And where the machine is about to go, and the job to go on elsewhere.
_URGENT_PAUSES_S = (0.0, 2.0, 6.0)
# A fault that stays is told again after so long.
_AGAIN_S = 600.0
# From here on a wait for the last upload is worth a line.
_LONG_S = 15.0


@dataclass(frozen=True)
class SaveFailedError(Exception):
    """The last checkpoint of a run could not be written."""

    step: int
    why: str

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} could not be written: {self.why}"


@dataclass(frozen=True)
class NotInStoreError(Exception):
    """A checkpoint is whole on this machine, and only there. `hangs`: for a call that never returned."""

    step: int
    why: str
    hangs: bool = False

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} is only on this machine: {self.why}"


class Saver:
    """Rank 0's checkpoints: due by steps or seconds, written beside the training."""

    def __init__(
        self,
        directory: Path,
        fence: Fence,
        every: Period,
        keep: int,
        meta: dict[str, Any],
        remote: RemoteCheckpoints | None = None,
    ) -> None:
        """`remote`: where there is a store; a checkpoint counts when it is in there."""
        self._directory, self._fence, self._every, self._keep = directory, fence, every, keep
        self._meta, self._remote = meta, remote
        self._interval = Interval(every.mean_s, say) if every.mean_s is not None else None
        self._writer = BackgroundWriter(self._on_error)
        self._last_time = time.monotonic()
        self._last_step: int | None = None
        self._fault: tuple[str, float] | None = None
        self._not_in_store = self._ending = False
        self.fenced_off: FencedOffError | None = None

    def resumed(self, step: int) -> None:
        """A checkpoint of this step lies there already."""
        self._last_step = step

    def begin(self, step: int) -> None:
        """Have the store say what runs, and hold what is newer here; beside the training."""
        remote = self._remote
        if remote is not None:
            self._writer.start(
                step, lambda: None, lambda _: self._to_store(step, remote, begins=self._meta)
            )

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be taken after `step` complete steps.

        Not while one is being written: a disk that is slower than the period would stop the
        training, and the peers waiting for this rank would give up. It is due right after.
        """
        if self._writer.busy:
            return False
        if self._every.steps is not None:
            return step // self._every.steps > (self._last_step or 0) // self._every.steps
        seconds = self._every.seconds if self._interval is None else self._interval.seconds
        assert seconds is not None
        return time.monotonic() - self._last_time >= seconds

    def save(self, state: State, is_best: bool = False) -> None:
        """Take a checkpoint of the state as it is now; returns at once, or when the one before it is
        written. `is_best`: its evaluation was the best so far, so it is kept."""
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
        if state.selection.metric:
            parts["optimizer.pt"]["selection"] = state.selection.state_dict()
        best = _about_best(state) if is_best else b""
        self._writer.start(
            step,
            lambda: {name: disk.copy_tensors(part) for name, part in parts.items()},
            lambda copies: self._write(step, copies, best),
        )

    def mark_best(self, state: State) -> None:
        """The last checkpoint, which is written, turned out to be the best. Raises OSError, FencedOffError."""
        self._fence.check()
        replace_file(self._directory / BEST, _about_best(state))
        disk.prune(self._directory, self._keep)

    def settle(self) -> None:
        """Wait, within reason, for the checkpoint that is being written. Raises nothing."""
        self._writer.wait_written(SETTLE_S)

    def wait_copied(self) -> None:
        self._writer.wait_copied()

    def finish(self, state: State, urgent: bool = False) -> None:
        """Make the state as it is now durable.

        `urgent`: the machine may be gone soon, and the job goes on elsewhere; so the store has no more
        than some 20 s if it does not answer. Raises SaveFailedError, NotInStoreError or FencedOffError.
        """
        self._ending = True
        if urgent and self._remote is not None:
            self._remote.hurry(SETTLE_S)
        failed = self._finish_writing()
        is_here = failed is None or isinstance(failed, NotInStoreError)
        if not is_here or self._last_step != state.step:
            self.save(state)
            failed = self._finish_writing()
        if failed is None or isinstance(failed, NotInStoreError):
            self._make_sure_of_store(state.step, _URGENT_PAUSES_S if urgent else _LAST_PAUSES_S)
            return
        if isinstance(failed, FencedOffError):
            raise failed
        raise SaveFailedError(state.step, _why(failed))

    def abandon(self) -> None:
        """Remove what is half written: the directory is another's, and this process is about to end."""
        disk.remove_leftovers(self._directory, self._name)

    @property
    def _name(self) -> str:
        return f"{self._fence.attempt}-{self._fence.generation}"

    def _write(self, step: int, copies: dict[str, Any], best: bytes) -> None:
        self._fence.check()
        disk.write(self._directory, step, copies, self._meta, self._name, self._fence.check)
        self._fence.check()
        if best:
            replace_file(self._directory / BEST, best)
        disk.prune(self._directory, self._keep)
        if not self._not_in_store:
            self._fault = None
        if self._remote is not None:
            self._to_store(step, self._remote)
        if self._interval is not None:
            self._interval.measured(time.monotonic() - self._last_time)

    def _to_store(
        self, step: int, remote: RemoteCheckpoints, begins: dict[str, Any] | None = None
    ) -> None:
        """Raises NotInStoreError, FencedOffError."""
        try:
            if begins is not None:
                remote.begin(begins, step, self._fence.check)
            else:
                remote.push(step, self._fence.check)
        except OSError as error:
            self._not_in_store = True
            raise NotInStoreError(step, remote.explain(error), remote.hangs(error)) from None
        if self._not_in_store and remote.committed is not None:
            self._not_in_store, self._fault = False, None
            say(f"checkpoints are in the store again, newest step {remote.committed}")

    def _make_sure_of_store(self, step: int, pauses_s: Sequence[float]) -> None:
        """The last checkpoint is in the store, if that can be had. Raises as _to_store."""
        if self._remote is None:
            return
        failed: NotInStoreError | None = None
        for pause in pauses_s:
            if failed is not None and pause == pauses_s[1]:
                say(f"{failed}; trying again for {sum(pauses_s):g} s before this ends")
            time.sleep(pause)
            try:
                self._to_store(step, self._remote)
            except NotInStoreError as error:
                failed = error
                if failed.hangs and pauses_s is _URGENT_PAUSES_S:
                    break  # it had its time
            else:
                return
        assert failed is not None
        raise failed

    def _finish_writing(self) -> Exception | None:
        if self._remote is not None:
            self._writer.wait_written(_LONG_S)
            if self._writer.busy:
                say(f"waiting for the upload to {self._remote.name}")
        return self._writer.finish()

    def _was_told(self, error: Exception) -> bool:
        """Whether the same fault was told of a moment ago, for a checkpoint before this one."""
        fault, now = f"{type(error).__name__} {_without_numbers(_why(error))}", time.monotonic()
        if self._fault is not None and self._fault[0] == fault and now < self._fault[1] + _AGAIN_S:
            return True
        self._fault = fault, now
        return False

    def _on_error(self, step: int, error: Exception) -> None:
        if isinstance(error, FencedOffError):
            self.fenced_off = error
            return
        if self._ending and isinstance(error, NotInStoreError):
            return  # it is tried again, and told by whoever wants the last one
        if self._was_told(error):
            return
        if isinstance(error, NotInStoreError):
            say(
                f"{error}; training goes on with checkpoints on this machine only, the next one is "
                "tried as planned"
            )
            return
        say(
            f"the checkpoint of step {step} could not be written ({_why(error)}); training goes on "
            "from memory, the checkpoint before it is kept, the next one is tried as planned"
        )


def _about_best(state: State) -> bytes:
    """best.json, for programs."""
    selection, step = state.selection, state.step
    about = {
        "metric": selection.metric,
        "mode": selection.mode,
        "value": selection.best,
        "step": step,
        "weights": f"{step_directory(Path(), step)}/model.pt",
    }
    return json.dumps(about, indent=1).encode() + b"\n"


def _without_numbers(text: str) -> str:
    return "".join(c for c in text if not c.isdecimal())


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space left on the device"
    return str(error)
