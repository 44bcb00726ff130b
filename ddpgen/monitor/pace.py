"""How long a step and a checkpoint take, out of a run's own metrics. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Pace(NamedTuple):
    """In seconds: the longest step, with what stands between it and the next; the last write."""

    step_s: float
    write_s: float


def measured(lines: Iterable[str]) -> Pace | None:
    """The pace of the newest rows of metrics.jsonl; None where they do not tell both.

    What a run writes when it ends comes after its last checkpoint, so the time since the row before
    is that of the write.
    """
    steps: list[float] = []
    writes: list[float] = []
    before: dict[str, Any] | None = None
    for row in _rows(lines):
        if before is not None and _same_start(before, row):
            took = row["time"] - before["time"]
            if row["kind"] in ("stopped", "done"):
                writes.append(took)
            elif row["kind"] in ("step", "eval"):
                steps.append(took)
        before = row
    if not steps or not writes:
        return None
    return Pace(max(0.0, *steps), max(0.0, writes[-1]))


def _same_start(one: dict[str, Any], other: dict[str, Any]) -> bool:
    keys = ("attempt", "generation")
    return one["kind"] != "start" and all(one.get(key) == other.get(key) for key in keys)


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the beginning was cut off, or a crash cut off the end
        if isinstance(row, dict) and isinstance(row.get("time"), (int, float)) and row.get("kind"):
            yield row
