"""The facts of a checkpoint directory → the state of its job, as values. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import bad_nodes
from .bad_nodes import Fault
from .pace import overdue
from .wording import printable

_LINE = re.compile(r"(running|done|stopped|failed) (\S+) (\d{1,18})(?: (.*))?")
MAX_RANKS = 8  # with more ranks, only the smallest and largest figure are shown


@dataclass(frozen=True)
class JobState:
    """The state of a job, from the files of its checkpoint directory. A value that they lack is None, "" or 0."""

    directory_state: str = "no"  # yes, no, closed
    status: str = ""  # running, done, stopped, failed
    attempt: str = ""
    status_step: int = 0
    reason: str = ""
    newest_checkpoint: int | None = None  # its step
    last_save: tuple[str, int] | None = None  # path and step of a user's script's last save
    step: int | None = None  # the newest complete one
    last_step: int | None = None  # the training ends with it
    loss: float | None = None
    losses: Sequence[float] = ()  # of the newest steps; may be nan or inf
    evaluation: str = ""
    steps_per_s: float | None = None
    slow: tuple[str, float] | None = None  # slowest rank; the part of a step others wait for it
    waiting: Sequence[float] = ()  # by rank: the part of a step in which it waits for others
    shares: Sequence[int] = ()  # by rank: its micro-batches of a step
    batch_wait: float = 0.0  # the largest part of a step in which a rank waits for a batch
    unit: str = ""  # samples or tokens: the unit of units_per_step
    units_per_step: int = 0
    longest_step_s: float | None = None  # up to the beginning of the next one
    checkpoint_write_s: float | None = None
    restarts: int = 0  # of its workers, in this attempt
    age_s: float | None = None  # time since the newest step
    step_interval_s: float = 0.0  # between the last two steps
    current: bool = False  # True if the attempt in the lock took the newest step
    stop_asked: bool = False
    slurm_job: str = ""  # the job of Slurm that holds the directory
    lock: Mapping[str, Any] | None = None
    slurm_starts: str = ""  # in words
    bad_nodes: Sequence[Fault] = ()  # the newest fault of each
    point: Mapping[str, Any] | None = (
        None  # the training of a point of a sweep: its id and its arguments
    )

    def has_done(self, point_id: str, arguments: Sequence[str]) -> bool:
        """True if exactly this training of a point of a sweep is done."""
        return self.status == "done" and self.point == {"id": point_id, "arguments": [*arguments]}

    def words(self, running: bool | None) -> str:
        """Return the status as text; "" without one. `running`: None if nobody knows whether the processes run."""
        why = f": {self.reason}" if self.reason else ""
        if self.status == "running":
            if running is not False:
                return "running"  # without its step, which is the first of the start
            return f"ended after this{why}" if why else "killed while it was running"
        step = f" at step {self.status_step}" if self.status_step else ""
        return f"{self.status}{step}{why}"

    @property
    def saved(self) -> str:
        """The newest checkpoint as text; the last save of a user's script without one."""
        if self.newest_checkpoint is not None:
            return f"step {self.newest_checkpoint}"
        return f"{self.last_save[0]}, of step {self.last_save[1]}" if self.last_save else "none"

    @property
    def split(self) -> str:
        """The micro-batches of each rank, or the smallest and largest number of many ranks; "" if the split is even."""
        if len(set(self.shares)) < 2:
            return ""
        if len(self.shares) > MAX_RANKS:
            return f"{min(self.shares)} to {max(self.shares)}"
        return " ".join(map(str, self.shares))

    @property
    def stalled(self) -> bool:
        """True if the job runs and its next step is long overdue."""
        return (
            self.status == "running"
            and self.age_s is not None
            and overdue(self.age_s, self.step_interval_s)
        )

    @property
    def started_by(self) -> str:
        """The tier of the run that wrote the status, or "". Never sky, whose directory is in the bucket."""
        if self.status_slurm_job:
            return "slurm"
        if not self.attempt:
            return ""
        # run.sh names its launch by the time. Hosts whose scripts were started by hand agree on 8 hexadecimal digits.
        by_hosts = re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]+|[0-9a-f]{8}", self.attempt)
        return "hosts" if by_hosts else "local"

    @property
    def status_slurm_job(self) -> str:
        """The number of the Slurm job that wrote the status, or ""."""
        match = re.fullmatch(r"slurm\.(\d+)(?:_\d+)?\.\d+", self.attempt)
        return match[1] if match else ""


def read(facts: Mapping[str, str]) -> JobState:
    """Return the state from the facts that remote.DIRECTORY_FACTS prints."""
    line = _LINE.fullmatch(facts.get("status", "").strip())
    progress = mapping(facts.get("progress", ""))
    # Until an attempt takes its first step, the line is an earlier attempt's, and says nothing about this attempt.
    if line and line[1] == "running" and progress.get("attempt") != line[2]:
        progress = {}
    lock = mapping(facts.get("lock", "")) or None
    newest = facts.get("newest", "")
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?: .*)?", facts.get("slurm-job", ""))
    unit = progress.get("unit")
    return JobState(
        directory_state=facts.get("there", "no"),
        status=line[1] if line else "",
        attempt=line[2] if line else "",
        status_step=int(line[3]) if line else 0,
        reason=printable(line[4] or "") if line else "",
        newest_checkpoint=int(newest) if newest.isdigit() else None,
        last_save=_last_save(facts.get("saves", "").split("\t")),
        step=_integer(progress.get("step")),
        last_step=_integer(progress.get("last_step")),
        loss=_number(progress.get("loss")),
        losses=_losses(progress.get("losses")),
        evaluation=_evaluation(progress.get("evaluation")),
        steps_per_s=_number(progress.get("steps_per_s")),
        slow=_slow(progress.get("slow")),
        waiting=_numbers(progress.get("waiting")),
        shares=tuple(map(int, _numbers(progress.get("shares")))),
        batch_wait=_number(progress.get("batches")) or 0.0,
        unit=printable(unit) if isinstance(unit, str) else "",
        units_per_step=_integer(progress.get("units_per_step")) or 0,
        longest_step_s=_number(progress.get("longest_step_s")),
        checkpoint_write_s=_number(progress.get("write_s")),
        restarts=max(0, (_integer((lock or {}).get("generation")) or 0) - 1),
        age_s=_age(facts.get("now", ""), _number(progress.get("time"))),
        step_interval_s=_number(progress.get("step_s")) or 0.0,
        current=lock is not None and progress.get("attempt") == lock.get("attempt"),
        stop_asked="stop" in facts,
        slurm_job=number[1] if number else "",
        lock=lock,
        slurm_starts=_slurm_starts(mapping(facts.get("slurm-starts", ""))),
        bad_nodes=tuple(bad_nodes.bad(bad_nodes.read(facts.get("bad-nodes", "").split("\t")))),
        point=mapping(facts.get("point", "")) or None,
    )


def _evaluation(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    values = {name: _number(value) for name, value in row.items() if name != "step"}
    known = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
    return printable(f"{known} at step {row.get('step')}") if known else ""


def _slow(row: Any) -> tuple[str, float] | None:
    if not isinstance(row, dict) or not isinstance(name := row.get("name"), str):
        return None
    cost = _number(row.get("cost"))
    return None if cost is None else (printable(name), cost)


def _losses(losses_json: Any) -> tuple[float, ...]:
    items = losses_json if isinstance(losses_json, list) else []
    losses = [float(item) if item in ("nan", "inf", "-inf") else _number(item) for item in items]
    return tuple(loss for loss in losses if loss is not None)


def _numbers(items: Any) -> tuple[float, ...]:
    numbers = [_number(value) for value in items] if isinstance(items, list) else []
    return tuple(value for value in numbers if value is not None) if None not in numbers else ()


def _age(now: str, step_time: float | None) -> float | None:
    return None if step_time is None or not now.isdigit() else max(0.0, int(now) - step_time)


def _last_save(lines: Sequence[str]) -> tuple[str, int] | None:
    """Return path and step of the newest whole save from which a framework can go on, else of the newest whole file."""
    rows = [row for row in map(mapping, lines) if row.get("whole") is True]
    for row in [*(row for row in reversed(rows) if row.get("by")), *reversed(rows)]:
        path, step = row.get("path"), _integer(row.get("step"))
        if isinstance(path, str) and step is not None:
            return printable(path), step
    return None


def _slurm_starts(record: Mapping[str, Any]) -> str:
    """Return in words how often a job of Slurm has come back and why; "" if it has not.

    The file may have any content, because users can write it.
    """
    try:
        crashes = sum(ended == "crash" for _, _, ended in record["starts"])
        requeues = int(record["starts"][-1][0]) - crashes
        max_requeues, max_crashes = int(record["requeues"]), int(record["restarts"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    if requeues < 0 or not requeues + crashes:
        return ""
    return (
        f"come back {requeues} of at most {max_requeues} times because of Slurm, "
        f"{crashes} of at most {max_crashes} times after a crash"
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def mapping(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; {} if it holds anything else, because users can write these files."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
