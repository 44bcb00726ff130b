"""What a checkpoint directory says of its job, as values and in words. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"(running|done|stopped|failed) (\S+) (\d{1,18})(?: (.*))?")


@dataclass(frozen=True)
class JobState:
    """`attempt`: whose word it is. `step`: the newest on record, of the training itself. `newest`: of its
    checkpoints; `saved`: what a user's script has saved last, and at which step."""

    there: str = "no"  # yes, no, closed
    word: str = ""
    attempt: str = ""
    at: int = 0
    reason: str = ""
    newest: int | None = None
    saved: tuple[str, int] | None = None
    step: int | None = None
    loss: float | None = None
    age_s: float | None = None
    stop_asked: bool = False
    slurm_job: str = ""
    lock: Mapping[str, Any] | None = None
    starts: str = ""

    @property
    def of_slurm(self) -> str:
        """The Slurm job whose word this is, or ""."""
        found = re.fullmatch(r"slurm\.(\d+)(?:_\d+)?\.\d+", self.attempt)
        return found[1] if found else ""


def read(facts: Mapping[str, str]) -> JobState:
    """From what the text found out."""
    line = _LINE.fullmatch(facts.get("status", "").strip())
    row = _mapping(facts.get("row", "")) or {}
    newest = facts.get("newest", "")
    slurm_job = facts.get("slurm-job", "").partition(" ")[0].strip()  # and which of its starts
    return JobState(
        there=facts.get("there", "no"),
        word=line[1] if line else "",
        attempt=line[2] if line else "",
        at=int(line[3]) if line else 0,
        reason=(line[4] or "") if line else "",
        newest=int(newest) if newest.isdigit() else None,
        saved=_saved(_mapping(facts.get("saved", "")) or {}),
        step=row["step"] if isinstance(row.get("step"), int) else None,
        loss=_number(row.get("loss")),
        age_s=_age(facts.get("now", ""), _number(row.get("time"))),
        stop_asked="stop" in facts,
        slurm_job=slurm_job if re.fullmatch("[0-9]+(_[0-9]+)?", slurm_job, re.ASCII) else "",
        lock=_mapping(facts.get("lock", "")),
        starts=_starts(_mapping(facts.get("slurm-starts", "")) or {}),
    )


def words(found: JobState, runs: bool | None) -> list[str]:
    """Lines for people. `runs`: whether its processes are there; None where that is not known."""
    if found.there == "no":
        return ["the checkpoint directory is not there yet"]
    if found.there == "closed":
        return ["the checkpoint directory may not be read by this user"]
    lines = [_job(found, runs)]
    if found.word == "running" and found.step is not None and runs is not False:
        lines.append(_progress(found))
    lines.append(f"newest checkpoint: {_newest(found)}")
    if found.starts and found.of_slurm:
        lines.append(found.starts)
    if found.stop_asked and runs is not False:
        lines.append("a stop has been asked for: after the current step")
    return lines


def _job(found: JobState, runs: bool | None) -> str:
    if not found.word:
        return "no job has begun there"
    if found.word == "running":
        return "running" if runs is not False else "it was running when it was killed"
    at = f" at step {found.at}" if found.at else ""
    return f"{found.word}{at}" + (f": {found.reason}" if found.reason else "")


def _newest(found: JobState) -> str:
    if found.saved is not None and found.newest is None:
        path, step = found.saved
        return f"{path}, of step {step}"
    return "none" if found.newest is None else f"step {found.newest}"


def _progress(found: JobState) -> str:
    loss = "" if found.loss is None else f", loss {found.loss:.4f}"
    age = "" if found.age_s is None else f", {ago(found.age_s)}"
    return f"step {found.step}{loss}{age}"


def ago(seconds: float) -> str:
    """A time that has passed, for people."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s ago"
    return f"{whole // 60} min ago" if whole < 7200 else f"{whole // 3600} h ago"


def _age(now: str, then: float | None) -> float | None:
    return None if then is None or not now.isdigit() else int(now) - then


def _saved(row: Mapping[str, Any]) -> tuple[str, int] | None:
    path, step = row.get("path"), row.get("step")
    if row.get("whole") is not True or not isinstance(path, str) or not isinstance(step, int):
        return None
    return "".join(c if c.isprintable() else "?" for c in path), step


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _starts(kept: Mapping[str, Any]) -> str:
    """How often a job of Slurm has come back, and why; "" for one that has not. Anybody may have written it."""
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
