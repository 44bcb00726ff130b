"""One process of a user's script: the state that the hooks share, their reports, and the end of the training."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from train.base.console import say
from train.health.phase import NOW, SCRIPT
from train.script.hooks.order import Epochs, Iteration
from train.script.hooks.progress import Progress
from train.script.hooks.starts import Starts
from train.script.hooks.stopping import StopAtStep

# The interval of the rows of metrics. A row after each step would cost speed, because a read of the loss waits for the
# GPU.
_ROW_S = 1.0
_ORDER = "the order of the samples"


class StopTraining(SystemExit):
    """Raised at a step boundary, in the script's main thread."""


class Session:
    """The state that all hooks of a process share."""

    def __init__(
        self,
        progress: Progress,
        stop: StopAtStep,
        checkpoints: Mapping[str, str],
        log: Callable[[dict[str, Any]], None] | None = None,
        bucket: str = "",
        on_first_step: Callable[[], None] = lambda: None,
        ranks: int = 1,
        starts: Starts | None = None,
    ) -> None:
        """`checkpoints`: those that rank 0 has saved, oldest first, each with its framework. If the script names no
        checkpoint, its framework goes on from the last one. `log`: writes a row of rank 0's metrics to the file; None
        on other ranks. `bucket`: a directory in which a file appears when it is closed, and cannot change after that.
        `on_first_step` is called after the first step. `ranks`: how many processes the launch has started. `starts`:
        the comparison with the other hosts, if there are any."""
        self.progress, self.stop = progress, stop
        self.stopped = False
        self._checkpoints, self._log, self._on_first_step = checkpoints, log, on_first_step
        self._ranks, self._starts = ranks, starts
        self.framework = ""
        self._trainings: Counter[str] = Counter()
        self.bucket = os.path.realpath(bucket) + os.sep if bucket else ""
        self._loss: Any = None
        self._row_at, self._row_step = 0.0, 0
        self._printed: set[str] = set()
        self._epochs = Epochs()

    def stepped(self, optimizer: Any = None) -> None:
        """Note that a step of `optimizer` is complete. Raises UnlikeStartsError, BeginsAnewError, StopTraining."""
        if self._starts is not None:
            self._starts.compare(self.progress, optimizer)
        self.progress.stepped()
        if self.progress.steps_taken == 1:
            # Measure the speed from here, because the time before the first step says nothing about it.
            self._row_at, self._row_step = time.monotonic(), 1
            self._harmless("its heartbeats", self._on_first_step)
            self._harmless(_ORDER, self._check_order)
            self._harmless("the process group", self._check_group)
        NOW.name = SCRIPT
        self._harmless("the metrics", self._write_row)
        self._loss = None
        if not self.framework and self.stop.due():
            self.end()

    def end(self) -> None:
        """Leave the script's loop. Raises StopTraining."""
        self.stopped = True
        raise StopTraining(0)

    @contextlib.contextmanager
    def training_by(self, framework: str, holds: str) -> Iterator[None]:
        """Within this context a framework trains: on a stop it saves, and its hook ends the training after that.

        A script may train several times, one fold or phase after the other. Each training goes on from checkpoints of
        its own. `holds`: the guarantees of ddpgen for this framework, printed once.
        """
        self._trainings[framework] += 1
        if self._log is not None and sum(self._trainings.values()) == 1:
            say(holds)
        self.framework = f"{framework} {self._trainings[framework]}"
        self.stop.saves_on_demand()
        try:
            yield
        finally:
            self.framework = ""

    def resume_from(self) -> str | None:
        """Return the checkpoint from which the framework must go on, or None to begin."""
        found = [path for path, by in self._checkpoints.items() if by == self.framework]
        if not found:
            return None
        say(f"resuming from {found[-1]}")
        self.progress.loaded(found[-1])
        return found[-1]

    def note_loss(self, loss: Any) -> None:
        """Take the tensor from which a backward pass starts. With gradient accumulation the script has divided each of
        these tensors by their number, so that they add up to the loss of the step."""

        def add() -> None:
            part = loss.detach()  # do not keep its graph alive
            self._loss = part if self._loss is None else self._loss + part

        if self._log is not None:
            self._harmless("the loss", add)

    def note_drawn(self, iteration: Iteration, indices: Any) -> None:
        """Note that the sampler of a DataLoader has named a batch."""
        self._harmless(_ORDER, lambda: iteration.note_drawn(indices))

    def note_given(self, iteration: Iteration) -> None:
        """Note that a DataLoader has given the script a batch."""

        def note() -> None:
            self.progress.note_batch(iteration)
            if self._epochs.repeats(iteration, self.progress.steps_taken):
                self._say_once(
                    "an epoch begins with the same batch as the one before: call the sampler's set_epoch(epoch) "
                    "before each epoch, so that it shuffles anew"
                )

        self._harmless(_ORDER, note)

    def _say_once(self, message: str) -> None:
        """Print `message` once, on rank 0."""
        if self._log is not None and message not in self._printed:
            self._printed.add(message)
            say(message)

    def _check_order(self) -> None:
        if fault := self.progress.order_fault():
            say(f"the script does not resume where its checkpoint ends: {fault}")

    def _check_group(self) -> None:
        dist = sys.modules.get("torch.distributed")
        can_meet = dist is not None and dist.is_available()
        if self._ranks > 1 and self._log is not None and can_meet and not _has_group():
            say(
                f"{self._ranks} processes train, each for itself: the script has no process group, so all "
                "of them do the same work. Have it call torch.distributed.init_process_group() and wrap the model in "
                "DistributedDataParallel, or set procs_per_node: 1 and nodes: 1"
            )

    def all_ranks(self) -> None:
        """If there are several ranks, wait until every rank is here."""
        if _has_group():
            sys.modules["torch.distributed"].barrier()

    def _harmless(self, subject: str, work: Callable[[], None]) -> None:
        """Do `work`. If the work fails, print that once, with its `subject`. The script goes on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is the script that counts
            if subject not in self._printed:
                self._printed.add(subject)
                say(
                    f"{subject} cannot be kept ({type(error).__name__}: {error}); the script goes on"
                )

    def _write_row(self) -> None:
        now = time.monotonic()
        if self._log is None or now - self._row_at < _ROW_S:
            return
        steps, seconds = self.progress.steps_taken - self._row_step, now - self._row_at
        self._row_at, self._row_step = now, self.progress.steps_taken
        row = {"kind": "step", "step": self.progress.step, "steps_per_s": round(steps / seconds, 3)}
        with contextlib.suppress(Exception):  # the loss has several numbers, or there is no loss
            if math.isfinite(loss := float(self._loss)):
                row["loss"] = loss
        self._log(row)


def _has_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
