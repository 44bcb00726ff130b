"""When checkpoints are taken, and their content.

Owns the checkpoint period, the content of model.pt and optimizer.pt (resume.py reads them), and the
thread that copies and writes during the training. Knows nothing of the loop that calls it.
"""

from __future__ import annotations

import errno
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train.base.console import say
from train.base.files import replace_file
from train.checkpoint import disk
from train.checkpoint.copies import Copies
from train.checkpoint.state import State
from train.run.config import Period
from train.run.layout import BEST, step_directory
from train.run.lock import Fence, FencedOffError

if TYPE_CHECKING:
    from train.checkpoint.digests import Chain, Point
    from train.checkpoint.remote import RemoteCheckpoints
    from train.run.manifest import RunManifest

# settle() waits at most this long: less than the 30 s that torchrun leaves a worker between SIGTERM and SIGKILL.
SETTLE_S = 20.0
# The pauses before further tries of the last upload. A checkpoint outside of the store is lost with this machine.
_LAST_PAUSES_S = (2.0, 10.0, 30.0, 60.0, 90.0, 120.0)
# The pauses if the machine is about to be taken away, and the job goes on elsewhere.
_URGENT_PAUSES_S = (2.0, 6.0)
# A wait for the last upload that takes longer than this prints a line.
_LONG_S = 15.0
# The interval of `auto` until a checkpoint is measured, and the factor of its change that prints a line.
FIRST_S = 60.0
_WORTH_SAYING = 1.5


@dataclass(frozen=True)
class SaveFailedError(Exception):
    """The last checkpoint of a run could not be written."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} could not be written: {self.reason}"


@dataclass(frozen=True)
class NotInStoreError(Exception):
    """A checkpoint is whole on this machine, and only there."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} is only on this machine: {self.reason}"


class Checkpointer:
    """Takes rank 0's checkpoints, one at a time: copies the state first, and writes it while the training goes on.

    The state does not change between two optimizer steps, so a thread copies it during the next forward and backward
    pass. Call `wait_copied` before the state changes. If a write fails, the run goes on with the checkpoint before.
    """

    def __init__(
        self,
        directory: Path,
        fence: Fence,
        period: Period,
        keep: int,
        manifest: RunManifest,
        remote: RemoteCheckpoints | None = None,
        chain: Chain | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`remote`: the store, if there is one. Then a checkpoint counts only when it is in the store. `chain`: the
        chain, whose state each checkpoint holds. A checkpoint's copy of the weights gives the chain a digest. `device`: of
        the state; None is the CPU."""
        self._copies = Copies(device or torch.device("cpu"))
        self._directory, self._fence, self._period, self._keep = directory, fence, period, keep
        self._manifest, self._remote, self._chain = manifest, remote, chain
        self._interval_s = period.seconds or min(FIRST_S, period.mean_s or FIRST_S)
        self._printed_interval_s = 0.0
        self._last_time = time.monotonic()
        self._last_step: int | None = None
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._failed: Exception | None = None
        self._not_in_store = self._ending = False
        self.fenced_off: FencedOffError | None = None
        self.completed: deque[tuple[int, float, float]] = deque()
        """The completed checkpoints that the caller has not taken from here yet. Each has its step, the seconds until
        it was durable, and the seconds for which the training waited."""
        self._stall_s = 0.0

    def resumed(self, step: int) -> None:
        """Note that a checkpoint of this step is on disk already."""
        self._last_step = step

    def begin(self, step: int) -> None:
        """In the background, write the manifest and the status to the store, and the checkpoint of `step` if the store
        lacks it."""
        if (remote := self._remote) is not None:
            self._start(
                step,
                lambda: None,
                lambda _: self._to_store(
                    step, lambda: remote.begin(self._manifest.snapshot(), step, self._fence.check)
                ),
            )

    def due(self, step: int) -> bool:
        """Return whether to take a checkpoint after `step` complete steps.

        `Period.at` always counts. With any other period, no checkpoint is due until the one before it is written. If
        the disk is slower than the period, the training would wait, and the peers that wait for this rank would give
        up.
        """
        if self._period.at:
            return step in self._period.at
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._period.steps is not None:
            return step // self._period.steps > (self._last_step or 0) // self._period.steps
        return time.monotonic() - self._last_time >= self._interval_s

    def save(self, state: State, is_best: bool = False) -> None:
        """Take a checkpoint of the present state. Returns at once, or when the checkpoint before it is written.

        `is_best`: the evaluation of this step was the best so far, so the checkpoint is kept.
        """
        self._last_time = time.monotonic()
        self._stall_s = 0.0
        step = state.step
        self._last_step = step
        # Copy the small buffers now, because the forward pass writes to them while the thread copies the rest.
        model = state.model.state_dict()
        copies: dict[int, torch.Tensor] = {}
        for name, buffer in state.model.named_buffers(remove_duplicate=False):
            if name in model:
                model[name] = copies.setdefault(id(buffer), buffer.detach().clone())
        optimizers = [optimizer.state_dict() for optimizer in state.optimizers]
        parts = {
            "model.pt": model,
            "optimizer.pt": {
                "optimizer": optimizers[0] if len(optimizers) == 1 else optimizers,
                "scaler": state.scaler.state_dict(),
            },
        }
        if state.selection.metric:
            parts["optimizer.pt"]["selection"] = state.selection.state_dict()
        self._copies.follow()
        best = _about_best(state) if is_best else b""
        point = self._chain.here if self._chain is not None else None
        self._start(
            step,
            lambda: self._copies.take(parts),
            lambda copies: self._write(step, copies, best, point),
            point,
        )

    def mark_best(self, state: State) -> None:
        """Record that the last checkpoint, which is written, is the best. Raises OSError, FencedOffError."""
        self._fence.check()
        replace_file(self._directory / BEST, _about_best(state))
        disk.prune(self._directory, self._keep)

    def wait_copied(self) -> None:
        """Wait until the state is copied and may change again."""
        if not self._copied.is_set():
            began = time.monotonic()
            self._copied.wait()
            self._stall_s += time.monotonic() - began

    def settle(self, seconds: float = SETTLE_S) -> None:
        """Wait, for at most `seconds`, for the checkpoint that is being written. Raises nothing."""
        if self._thread is not None:
            self._thread.join(seconds)

    def finish(self, state: State, urgent: bool = False) -> None:
        """Make the present state durable: on disk, and in the store if there is one.

        `urgent`: the machine may be taken away soon, and the job goes on elsewhere. Raises SaveFailedError,
        NotInStoreError or FencedOffError.
        """
        self._ending = True
        failed = self._wait_written()
        is_here = failed is None or isinstance(failed, NotInStoreError)
        if not is_here or self._last_step != state.step:
            self.save(state)
            failed = self._wait_written()
        if isinstance(failed, NotInStoreError):
            self._upload_again(failed, _URGENT_PAUSES_S if urgent else _LAST_PAUSES_S)
        elif isinstance(failed, FencedOffError):
            raise failed
        elif failed is not None:
            raise SaveFailedError(state.step, _describe(failed))

    def abandon(self) -> None:
        """Remove a half-written checkpoint, because another start has the directory and this process will end."""
        disk.remove_leftovers(self._directory, self._name)

    @property
    def _name(self) -> str:
        return f"{self._fence.attempt}-{self._fence.generation}"

    # --- the thread that copies and writes --------------------------------------------------------

    def _start(
        self,
        step: int,
        copy: Callable[[], Any],
        write: Callable[[Any], None],
        point: Point | None = None,
    ) -> None:
        """Run `write(copy())` in the background, after a wait for the checkpoint under way. `point`: gets the error if
        there is one."""
        self._wait_written()
        self._copied.clear()
        self._failed = None

        def work() -> None:
            try:
                try:
                    snapshot = copy()
                finally:
                    self._copied.set()
                write(snapshot)
            except Exception as error:  # noqa: BLE001 - handed on, not swallowed
                self._failed = error
                if point is not None:
                    point.fail(error)
                self._on_error(step, error)

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _wait_written(self) -> Exception | None:
        """Wait for the checkpoint under way. Returns the error of the last one, or None."""
        if self._thread is not None:
            if self._remote is not None and self._ending:
                self._thread.join(_LONG_S)
                if self._thread.is_alive():
                    say(f"waiting for the upload to {self._remote.name}")
            self._thread.join()
            self._thread = None
        return self._failed

    def _write(self, step: int, copies: dict[str, Any], best: bytes, point: Point | None) -> None:
        if point is not None:
            point.hash(copies["model.pt"])
        self._fence.check()
        marker = self._manifest.marker()
        if point is not None:
            marker["chain"] = point.saved
        disk.write(self._directory, step, copies, marker, self._name, self._fence.check)
        self._fence.check()
        if best:
            replace_file(self._directory / BEST, best)
        disk.prune(self._directory, self._keep)
        if self._remote is not None:
            self._upload(step)
        cost_s = time.monotonic() - self._last_time
        self.completed.append((step, cost_s, self._stall_s))
        if self._period.mean_s is not None:
            self._measured(cost_s, self._period.mean_s)

    def _measured(self, cost_s: float, mean_s: float) -> None:
        """Set the interval of `auto`. `cost_s`: the seconds from the copy of a checkpoint until it was committed."""
        self._interval_s = best_interval(cost_s, mean_s)
        low, high = sorted((self._interval_s, self._printed_interval_s))
        if high > _WORTH_SAYING * low:
            self._printed_interval_s = self._interval_s
            say(
                f"a checkpoint takes {cost_s:.1f} s and an interruption is expected every "
                f"{mean_s:.0f} s: the next ones are {self._interval_s:.0f} s apart"
            )

    def _on_error(self, step: int, error: Exception) -> None:
        if isinstance(error, FencedOffError):
            self.fenced_off = error
        elif isinstance(error, NotInStoreError):
            if not self._ending:  # at the end, finish() tries it again and reports it
                say(
                    f"{error}; training goes on with checkpoints on this machine only, the next one "
                    "is tried as planned"
                )
        else:
            say(
                f"the checkpoint of step {step} could not be written ({_describe(error)}); training goes "
                "on from memory, the checkpoint before it is kept, the next one is tried as planned"
            )

    # --- the store --------------------------------------------------------------------------------

    def _upload(self, step: int) -> None:
        """Upload this checkpoint. Raises NotInStoreError, FencedOffError."""
        assert self._remote is not None
        remote = self._remote
        self._to_store(step, lambda: remote.push(step, self._fence.check))
        remote.describe(self._manifest.snapshot())

    def _to_store(self, step: int, action: Callable[[], None]) -> None:
        assert self._remote is not None
        try:
            action()
        except OSError as error:
            self._not_in_store = True
            raise NotInStoreError(step, self._remote.explain(error)) from None
        if self._not_in_store and self._remote.committed is not None:
            self._not_in_store = False
            say(f"checkpoints are in the store again, newest step {self._remote.committed}")

    def _upload_again(self, failed: NotInStoreError, pauses_s: tuple[float, ...]) -> None:
        """Try the last upload again after each of `pauses_s`. Raises as _upload does if all tries fail."""
        say(f"{failed}; trying again for {sum(pauses_s):g} s before this ends")
        for pause in pauses_s:
            time.sleep(pause)
            try:
                return self._upload(failed.step)
            except NotInStoreError as error:
                failed = error
        raise failed


def best_interval(cost_s: float, mean_s: float) -> float:
    """Return the best interval in seconds between checkpoints: each costs `cost_s` (C), and an interruption comes
    every `mean_s` (M) on average.

    The formula is sqrt(2 C M): J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
    17(9), 1974. J. T. Daly's higher order estimate (FGCS 22(3), 2006) differs by less than C, and M is known less
    precisely than that. The interval is at most M, but never less than 2 C, so that checkpoints take at most half of
    the time. The formula does not hold outside of these bounds.
    """
    return max(2 * cost_s, min(mean_s, math.sqrt(2 * cost_s * mean_s)))


def _about_best(state: State) -> bytes:
    """Return the content of best.json, for programs."""
    selection, step = state.selection, state.step
    about = {
        "metric": selection.metric,
        "mode": selection.mode,
        "value": selection.best,
        "step": step,
        "weights": f"{step_directory(Path(), step)}/model.pt",
    }
    return json.dumps(about, indent=1).encode() + b"\n"


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space left on the device"
    return str(error)
