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
# These values of an earlier start stay until this start has its own. So do the losses, if no step is taken again.
_ROW_FIELDS = ("longest_step_s", "write_s")
# The numbers in a row that are not metrics.
_OF_ROW = ("step", "generation", "time")


class ProgressFile:
    """Takes the rows of metrics.jsonl, and writes the progress that follows from them.

    The line is a JSON object. A value that is not known has no key:

    - `attempt`, `last_step`, `steps_per_s`, `unit`, `units_per_step`
    - `step`: the newest complete step; `time`: when it was complete
    - `loss`, `losses`: the loss of the newest step, and the losses of the newest steps
    - `evaluation`: the step and the numbers of the newest evaluation
    - `step_s`: seconds between the last two steps
    - `longest_step_s`: the longest time between two rows, among the newest steps and evaluations
    - `write_s`: seconds for the last checkpoint of a start
    - `waiting`: each rank's wait for the others, as a part of a step
    - `batches`: the longest wait of a rank for a batch, as a part of a step
    - `shares`: the number of micro-batches of each rank
    - `slow`: the name of the rank for which the others wait, and its cost
    """

    def __init__(
        self,
        directory: Path,
        run: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run`: last_step, unit and units_per_step, as far as they are known."""
        self._path, self._clock = directory / NAME, clock
        self._facts: dict[str, Any] = dict(run or {})
        self._steps = deque[tuple[int, float]](maxlen=_MOST_STEPS)
        self._losses = deque[Any](maxlen=_MOST_STEPS)
        self._spans = deque[float](maxlen=_MOST_STEPS)
        self._row_at: float | None = None
        self._written_at = -_PERIOD_S

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take one more row of metrics.jsonl. Raises nothing."""
        kind, facts = row["kind"], self._facts
        facts["attempt"] = row["attempt"]
        if kind == "start":
            self._begin(row["step"])
        elif kind == "step":
            self._step(row)
        elif kind == "eval":
            numbers = {n: v for n, v in row.items() if type(v) in (int, float) and n not in _OF_ROW}
            facts["evaluation"] = {"step": row["step"], **numbers}
        elif kind == "ranks":
            step_s = row["seconds"] or 1.0
            facts["waiting"] = [round(min(1.0, each / step_s), 4) for each in row["waiting"]]
            facts["batches"] = round(min(1.0, max(row["batches"]) / step_s), 4)
            facts["slow"] = row.get("slow")
        if kind in ("ranks", "shares"):
            facts["shares"] = row.get("shares")
        if kind in ("step", "eval", "stopped", "done"):
            self._time(row["time"], ends=kind in ("stopped", "done"))
        now = self._clock()
        if kind in ("step", "ranks", "shares", "checkpoint") and now - self._written_at < _PERIOD_S:
            return
        self._written_at = now
        over_steps = {
            "losses": list(self._losses),
            "steps_per_s": facts.get("steps_per_s") or self._speed(),
            "longest_step_s": max(self._spans, default=facts.get("longest_step_s")),
        }
        known = {n: v for n, v in (facts | over_steps).items() if v not in (None, [])}
        with contextlib.suppress(OSError):  # MetricsLog has warned of a full disk already
            replace_file(self._path, f"{json.dumps(known)}\n".encode(), sync=False)

    def _begin(self, step: int) -> None:
        self._facts["step"] = step or None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            earlier = json.loads(read_file(self._path))
            self._facts |= {name: earlier.get(name) for name in _ROW_FIELDS}
            # The losses of later steps will be computed again.
            if earlier.get("step") == step:
                self._facts["loss"] = earlier.get("loss")
                self._losses.extend(earlier.get("losses", ()))
            if earlier["evaluation"]["step"] <= step:  # a later evaluation will be repeated
                self._facts["evaluation"] = earlier["evaluation"]

    def _step(self, row: Mapping[str, Any]) -> None:
        step, now, facts = row["step"], row["time"], self._facts
        if self._steps:
            facts["step_s"] = round(now - self._steps[-1][1], 3)
        self._steps.append((step, now))
        facts |= {"step": step, "time": now}
        facts |= {name: row.get(name) for name in ("loss", "steps_per_s")}
        if "loss" in row:
            self._losses.append(row["loss"])

    def _speed(self) -> float | None:
        """Return the steps per second over the newest steps; None if that is not known."""
        if not self._steps:
            return None
        (first, then), (last, now) = self._steps[0], self._steps[-1]
        return (last - first) / (now - then) if now > then else None

    def _time(self, now: float, ends: bool) -> None:
        """Note the time since the row before. At the end of a run this is the time of the last checkpoint's write,
        because a run writes its last row after that checkpoint."""
        if self._row_at is not None:
            span = round(max(0.0, now - self._row_at), 3)
            if ends:
                self._facts["write_s"] = span
            else:
                self._spans.append(span)
        self._row_at = now
