"""progress.json: the progress of a run, in one line that rank 0 replaces as the run goes on.

Owns the form of the line. `ddpgen status` reads it on every tier; metrics.jsonl has the history.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train.base.files import read_file, replace_file

NAME = "progress.json"
_PERIOD_S = 1.0  # between two lines, while steps are taken
_MOST_STEPS = 100  # the newest steps, which give the speed and the losses
# These values of an earlier start stay until this start has its own.
_KEPT = ("evaluation", "longest_step_s", "write_s")


class ProgressFile:
    """Takes the rows of metrics.jsonl, and writes the progress that follows from them.

    The line is a JSON object. A value that is not known has no key:

    - `attempt`, `last_step`, `steps_per_s`, `unit`, `units_per_step`
    - `step`: the newest complete step; `time`: when it was complete
    - `loss`, `losses`: of the newest step, and of the newest steps
    - `evaluation`: the row of the newest evaluation
    - `step_s`: seconds between the last two steps
    - `longest_step_s`: the longest of the newest steps, with the work before the next one
    - `write_s`: seconds for the last checkpoint of a start
    - `waiting`, `batches`: the waits of the ranks and the longest wait for a batch, as parts of a step
    - `slow`: the name of the rank for which the others wait, and its cost
    """

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`about`: the known ones of last_step, unit and units_per_step."""
        self._path, self._clock = directory / NAME, clock
        self._facts: dict[str, Any] = dict(about or {})
        self._steps = deque[tuple[int, float]](maxlen=_MOST_STEPS)
        self._losses = deque[Any](maxlen=_MOST_STEPS)
        self._spans = deque[float](maxlen=_MOST_STEPS)
        self._row_at: float | None = None
        self._written = -_PERIOD_S

    def take(self, row: Mapping[str, Any]) -> None:
        """Take one more row of metrics.jsonl. Raises nothing."""
        kind, facts = row["kind"], self._facts
        facts["attempt"] = row["attempt"]
        if kind == "start":
            self._begin(row["step"])
        elif kind == "step":
            self._step(row)
        elif kind == "eval":
            facts["evaluation"] = dict(row)
        elif kind == "ranks":
            step_s = row["seconds"] or 1.0
            facts["waiting"] = [round(min(1.0, each / step_s), 4) for each in row["waiting"]]
            facts["batches"] = round(min(1.0, max(row["batches"]) / step_s), 4)
            facts["slow"] = row.get("slow")
        if kind in ("step", "eval", "stopped", "done"):
            self._time(row["time"], ends=kind in ("stopped", "done"))
        now = self._clock()
        if kind in ("step", "ranks", "checkpoint") and now - self._written < _PERIOD_S:
            return
        self._written = now
        known = {name: value for name, value in facts.items() if value is not None}
        with contextlib.suppress(OSError):  # metrics.jsonl says that the disk is full
            replace_file(self._path, f"{json.dumps(known)}\n".encode(), sync=False)

    def _begin(self, step: int) -> None:
        try:
            was = json.loads(read_file(self._path))
            kept = {name: was.get(name) for name in _KEPT}
        except (OSError, ValueError, AttributeError):
            kept = {}
        evaluation = kept.get("evaluation")
        if not isinstance(evaluation, dict) or evaluation.get("step", 0) > step:
            kept["evaluation"] = None  # it is evaluated again
        self._facts |= {**kept, "step": step or None}

    def _step(self, row: Mapping[str, Any]) -> None:
        step, now, facts = row["step"], row["time"], self._facts
        if self._steps:
            facts["step_s"] = round(now - self._steps[-1][1], 3)
        self._steps.append((step, now))
        first, then = self._steps[0]
        speed = (step - first) / (now - then) if now > then else None
        facts |= {"step": step, "time": now, "steps_per_s": row.get("steps_per_s", speed)}
        facts["loss"] = row.get("loss")
        if "loss" in row:
            self._losses.append(row["loss"])
        facts["losses"] = list(self._losses)

    def _time(self, now: float, ends: bool) -> None:
        """Note the time since the row before. At the end of a run this is the time of the last checkpoint's write,
        because a run writes its last row after that checkpoint."""
        if self._row_at is not None:
            span = round(max(0.0, now - self._row_at), 3)
            if ends:
                self._facts["write_s"] = span
            else:
                self._spans.append(span)
                self._facts["longest_step_s"] = max(self._spans)
        self._row_at = now
