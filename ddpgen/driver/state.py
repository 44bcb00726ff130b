"""The facts of a checkpoint directory → the state of its job, as values. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .pace import overdue
from .wording import printable

_LINE = re.compile(r"(running|done|stopped|failed) (\S+) (\d{1,18})(?: (.*))?")


@dataclass(frozen=True)
class JobState:
    """The state of a job, from the files of its checkpoint directory. A value that they lack is None, "" or 0."""

    there: str = "no"  # yes, no, closed
    word: str = ""  # the status: running, done, stopped, failed
    attempt: str = ""
    at: int = 0  # the status's step
    reason: str = ""
    newest: int | None = None  # checkpoint
    saved: tuple[str, int] | None = None  # path and step of a user's script's last save
    step: int | None = None  # the newest complete one
    last_step: int | None = None  # the training ends with it
    loss: float | None = None
    losses: Sequence[float] = ()  # of the newest steps; may be nan or inf
    evaluation: str = ""
    steps_per_s: float | None = None
    slow: tuple[str, float] | None = None  # slowest rank; the part of a step others wait for it
    waiting: Sequence[float] = ()  # by rank: the part of a step in which it waits for others
    batches: float = 0.0  # the largest part of a step in which a rank waits for a batch
    unit: str = ""  # samples or tokens: the unit of units_per_step
    units_per_step: int = 0
    longest_step_s: float | None = None  # up to the beginning of the next one
    write_s: float | None = None  # of a checkpoint
    restarts: int = 0  # of its workers, in this attempt
    age_s: float | None = None  # time since the newest step
    apart_s: float = 0.0  # time between the last two steps
    current: bool = False  # True if the attempt in the lock took the newest step
    stop_asked: bool = False
    slurm_job: str = ""  # the job of Slurm that holds the directory
    lock: Mapping[str, Any] | None = None
    starts: str = ""  # of a job of Slurm, in words

    @property
    def stands_still(self) -> bool:
        """True if the job runs and its next step is long overdue."""
        return (
            self.word == "running" and self.age_s is not None and overdue(self.age_s, self.apart_s)
        )

    @property
    def started_by(self) -> str:
        """The tier of the run that wrote the status, or "". Never sky, whose directory is in the bucket."""
        if self.of_slurm:
            return "slurm"
        if not self.attempt:
            return ""
        # run.sh names its launch by the time. Hosts whose scripts were started by hand agree on 8 hexadecimal digits.
        by_hosts = re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]+|[0-9a-f]{8}", self.attempt)
        return "hosts" if by_hosts else "local"

    @property
    def of_slurm(self) -> str:
        """The number of the Slurm job that wrote the status, or ""."""
        found = re.fullmatch(r"slurm\.(\d+)(?:_\d+)?\.\d+", self.attempt)
        return found[1] if found else ""


def read(facts: Mapping[str, str]) -> JobState:
    """Return the state from the facts that remote.LOOK prints."""
    line = _LINE.fullmatch(facts.get("status", "").strip())
    progress = mapping(facts.get("progress", ""))
    # An attempt that has not taken a step yet finds the line of an earlier one, which tells nothing about it.
    if line and line[1] == "running" and progress.get("attempt") != line[2]:
        progress = {}
    lock = mapping(facts.get("lock", "")) or None
    newest = facts.get("newest", "")
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?: .*)?", facts.get("slurm-job", ""))
    unit = progress.get("unit")
    return JobState(
        there=facts.get("there", "no"),
        word=line[1] if line else "",
        attempt=line[2] if line else "",
        at=int(line[3]) if line else 0,
        reason=printable(line[4] or "") if line else "",
        newest=int(newest) if newest.isdigit() else None,
        saved=_saved(facts.get("saves", "").split("\t")),
        step=_whole(progress.get("step")),
        last_step=_whole(progress.get("last_step")),
        loss=_number(progress.get("loss")),
        losses=_losses(progress.get("losses")),
        evaluation=_evaluation(progress.get("evaluation")),
        steps_per_s=_number(progress.get("steps_per_s")),
        slow=_slow(progress.get("slow")),
        waiting=_numbers(progress.get("waiting")),
        batches=_number(progress.get("batches")) or 0.0,
        unit=printable(unit) if isinstance(unit, str) else "",
        units_per_step=_whole(progress.get("units_per_step")) or 0,
        longest_step_s=_number(progress.get("longest_step_s")),
        write_s=_number(progress.get("write_s")),
        restarts=max(0, (_whole((lock or {}).get("generation")) or 0) - 1),
        age_s=_age(facts.get("now", ""), _number(progress.get("time"))),
        apart_s=_number(progress.get("step_s")) or 0.0,
        current=lock is not None and progress.get("attempt") == lock.get("attempt"),
        stop_asked="stop" in facts,
        slurm_job=number[1] if number else "",
        lock=lock,
        starts=_starts(mapping(facts.get("slurm-starts", ""))),
    )


def _evaluation(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    values = {name: _number(value) for name, value in row.items() if name != "step"}
    known = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
    return printable(f"{known} at step {row.get('step')}") if known else ""


def _slow(found: Any) -> tuple[str, float] | None:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return None
    cost = _number(found.get("cost"))
    return None if cost is None else (printable(name), cost)


def _losses(listed: Any) -> tuple[float, ...]:
    known = listed if isinstance(listed, list) else []
    losses = [float(each) if each in ("nan", "inf", "-inf") else _number(each) for each in known]
    return tuple(loss for loss in losses if loss is not None)


def _numbers(listed: Any) -> tuple[float, ...]:
    known = [_number(value) for value in listed] if isinstance(listed, list) else []
    return tuple(value for value in known if value is not None) if None not in known else ()


def _age(now: str, then: float | None) -> float | None:
    return None if then is None or not now.isdigit() else max(0.0, int(now) - then)


def _saved(lines: Sequence[str]) -> tuple[str, int] | None:
    """Return path and step of the newest whole save from which a framework can go on, else of the newest whole file."""
    rows = [row for row in map(mapping, lines) if row.get("whole") is True]
    for row in [*(row for row in reversed(rows) if row.get("by")), *reversed(rows)]:
        path, step = row.get("path"), _whole(row.get("step"))
        if isinstance(path, str) and step is not None:
            return printable(path), step
    return None


def _starts(kept: Mapping[str, Any]) -> str:
    """Return in words how often a job of Slurm has come back and why; "" if it has not.

    The file may have any content, because users can write it.
    """
    try:
        crashes = sum(ended == "crash" for _, _, ended in kept["starts"])
        requeues = int(kept["starts"][-1][0]) - crashes
        most, most_crashes = int(kept["requeues"]), int(kept["restarts"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    if requeues < 0 or not requeues + crashes:
        return ""
    return (
        f"come back {requeues} of at most {most} times because of Slurm, "
        f"{crashes} of at most {most_crashes} times after a crash"
    )


def _whole(value: Any) -> int | None:
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
