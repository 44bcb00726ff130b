"""What a checkpoint directory says of its job, as values. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .pace import overdue

_LINE = re.compile(r"(running|done|stopped|failed) (\S+) (\d{1,18})(?: (.*))?")


@dataclass(frozen=True)
class JobState:
    """What the files say; None, "" or 0 for what they do not."""

    there: str = "no"  # yes, no, closed
    word: str = ""  # the status: running, done, stopped, failed
    attempt: str = ""
    at: int = 0  # the status's step
    reason: str = ""
    newest: int | None = None  # checkpoint
    saved: tuple[str, int] | None = None  # by a user's script: the path, of which step
    step: int | None = None  # of the newest row of the metrics
    last_step: int | None = None  # with which the training ends
    loss: float | None = None
    losses: Sequence[float] = ()  # of the newest steps, of each its last row; may be nan or inf
    evaluation: str = ""
    steps_per_s: float | None = None
    slow: tuple[str, float] | None = None  # rank, and the part of a step that others wait for it
    waiting: Sequence[float] = ()  # by rank: the part of a step in which it waits for others
    batches: float = 0.0  # the largest part of a step in which a rank waits for a batch
    unit: str = ""  # what a step takes in: samples, tokens
    units_per_step: int = 0
    longest_step_s: float | None = None  # with what is done before the next one
    write_s: float | None = None  # of a checkpoint
    restarts: int = 0  # of its workers, in this attempt
    age_s: float | None = None  # of the newest row
    apart_s: float = 0.0  # the last two rows
    current: bool = False  # whether that row is of the attempt that holds the directory
    stop_asked: bool = False
    slurm_job: str = ""  # that holds the directory
    lock: Mapping[str, Any] | None = None
    starts: str = ""  # of a job of Slurm, in words

    @property
    def stands_still(self) -> bool:
        """Whether the next step of a job that runs is long overdue."""
        return (
            self.word == "running" and self.age_s is not None and overdue(self.age_s, self.apart_s)
        )

    @property
    def started_by(self) -> str:
        """The tier whose run the status is of, or ""; on sky the directory is in the bucket."""
        if self.of_slurm:
            return "slurm"
        if not self.attempt:
            return ""
        # run.sh names its launch by the time; hosts whose scripts were started by hand agree on 8 digits.
        by_hosts = re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]+|[0-9a-f]{8}", self.attempt)
        return "hosts" if by_hosts else "local"

    @property
    def of_slurm(self) -> str:
        """The Slurm job that the status is of, or ""."""
        found = re.fullmatch(r"slurm\.(\d+)(?:_\d+)?\.\d+", self.attempt)
        return found[1] if found else ""


def read(facts: Mapping[str, str]) -> JobState:
    """From what the text found out."""
    line = _LINE.fullmatch(facts.get("status", "").strip())
    rows = [mapping(row) for row in facts.get("row", "").split("\t")]
    # Of a start that has not taken a step yet, the one before says nothing.
    begun = {None, line[2]} if line and line[1] == "running" else None
    steps = [
        row
        for row in rows
        if row.get("kind") == "step" and (begun is None or row.get("attempt") in begun)
    ] or [{}]
    lock = mapping(facts.get("lock", "")) or None
    newest = facts.get("newest", "")
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?: .*)?", facts.get("slurm-job", ""))
    longest_step_s, write_s = _measured(rows)
    ranks, manifest = (mapping(facts.get(name, "")) for name in ("ranks", "manifest"))
    unit, last_step = manifest.get("unit"), facts.get("last-step", "")
    return JobState(
        there=facts.get("there", "no"),
        word=line[1] if line else "",
        attempt=line[2] if line else "",
        at=int(line[3]) if line else 0,
        reason=_printable(line[4] or "") if line else "",
        newest=int(newest) if newest.isdigit() else None,
        saved=_saved(mapping(facts.get("saved", ""))),
        step=_whole(steps[-1].get("step")),
        last_step=int(last_step) if re.fullmatch(r"[0-9]{1,18}", last_step) else None,
        loss=_number(steps[-1].get("loss")),
        losses=_losses(steps),
        evaluation=_evaluation(mapping(facts.get("eval", ""))),
        steps_per_s=_speed(steps),
        slow=_slow(ranks.get("slow")),
        waiting=_parts(ranks, "waiting"),
        batches=max(_parts(ranks, "batches"), default=0.0),
        unit=_printable(unit) if isinstance(unit, str) else "",
        units_per_step=_whole(manifest.get("units_per_step")) or 0,
        longest_step_s=longest_step_s,
        write_s=write_s,
        restarts=max(0, (_whole((lock or {}).get("generation")) or 0) - 1),
        age_s=_age(facts.get("now", ""), _number(steps[-1].get("time"))),
        apart_s=_apart(steps),
        current=lock is not None and steps[-1].get("attempt") == lock.get("attempt"),
        stop_asked="stop" in facts,
        slurm_job=number[1] if number else "",
        lock=lock,
        starts=_starts(mapping(facts.get("slurm-starts", ""))),
    )


def _evaluation(row: Mapping[str, Any]) -> str:
    head = ("kind", "step", "attempt", "generation", "time")
    values = {name: _number(value) for name, value in row.items() if name not in head}
    told = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
    return _printable(f"{told} at step {row.get('step')}") if told else ""


def _speed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps a second of the newest start, over the rows that are given."""
    last = rows[-1]
    if (said := _number(last.get("steps_per_s"))) is not None:
        return said
    start = (last.get("attempt"), last.get("generation"))
    first = next(row for row in rows if (row.get("attempt"), row.get("generation")) == start)
    ends = [(_whole(row.get("step")), _number(row.get("time"))) for row in (first, last)]
    (step, when), (last_step, last_when) = ends
    if step is None or when is None or last_step is None or last_when is None or last_when <= when:
        return None
    return (last_step - step) / (last_when - when)


def _slow(found: Any) -> tuple[str, float] | None:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return None
    cost = _number(found.get("cost"))
    return None if cost is None else (_printable(name), cost)


def _losses(rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """After a crash steps are done again: the last row of each counts, up to the newest step."""
    last, losses = _whole(rows[-1].get("step")), dict[int, float]()
    for row in rows:
        step, loss = _whole(row.get("step")), row.get("loss")
        known = float(loss) if loss in ("nan", "inf", "-inf") else _number(loss)
        if last is not None and step is not None and step <= last and known is not None:
            losses[step] = known
    return tuple(losses[step] for step in sorted(losses))


def _parts(row: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """Seconds by rank, each as a part of the step."""
    step_s, each = _number(row.get("seconds")), row.get(name)
    known = [_number(value) for value in each] if isinstance(each, list) else []
    if not step_s or None in known:
        return ()
    return tuple(min(1.0, value / step_s) for value in known if value is not None)


def _measured(rows: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """The longest step and the last write of a checkpoint, in seconds.

    What a run writes when it ends comes after its last checkpoint, so the time since the row before
    is that of the write.
    """
    steps, writes = list[float](), list[float]()
    for before, row in itertools.pairwise(rows):
        then, now = _number(before.get("time")), _number(row.get("time"))
        same = all(before.get(key) == row.get(key) for key in ("attempt", "generation"))
        if same and then is not None and now is not None:
            ends = row.get("kind") in ("stopped", "done")
            (writes if ends else steps).append(max(0.0, now - then))
    return max(steps, default=None), writes[-1] if writes else None


def _age(now: str, then: float | None) -> float | None:
    return None if then is None or not now.isdigit() else max(0.0, int(now) - then)


def _apart(steps: Sequence[Mapping[str, Any]]) -> float:
    before, last = (_number(row.get("time")) for row in (steps[-2:][0], steps[-1]))
    return 0.0 if before is None or last is None else last - before


def _saved(row: Mapping[str, Any]) -> tuple[str, int] | None:
    path, step = row.get("path"), row.get("step")
    if row.get("whole") is not True or not isinstance(path, str) or not isinstance(step, int):
        return None
    return _printable(path), step


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


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def mapping(text: str) -> dict[str, Any]:
    """A JSON object that somebody else may have written; {} for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
