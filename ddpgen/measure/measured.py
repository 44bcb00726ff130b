"""The measurements of a job's newest run: its parameters, the time of a step, and its processes.

Owns reading manifest.json and metrics.jsonl of checkpoint directories on this machine. A file that cannot be read
counts as missing.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpgen.driver.state import JobState, mapping
from ddpgen.monitor.places import short
from ddpgen.monitor.record import checkpoints
from ddpgen.spec.job import JobSpec

_log = logging.getLogger(__name__)
_TAIL = 4 << 20  # bytes of metrics: some 20,000 steps
# The settings that decide the time of a step.
_SETTINGS = (
    "workload", "args", "global_batch_size", "micro_batch_size", "precision", "threads", "determinism",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run. `step_s`: the median time of its `steps` steps; both are 0 if it is unknown. `tier`: "" if unknown.

    `shard`: True if its newest start spread the optimizer's state over the processes.
    """

    directory: str
    parameters: int | None = None
    gradient_bytes: int | None = None
    settings: Mapping[str, Any] | None = None
    on_gpus: bool = False
    step_s: float = 0.0
    steps: int = 0
    processes: int = 0
    tier: str = ""
    shard: bool = False

    def differs(self, job: JobSpec) -> str:
        """Return the first setting that gives its steps another time than the steps of `job`; "" without one."""
        if self.settings is None:
            return ""
        for name in _SETTINGS:
            value = getattr(job.train, name)
            run_value = self.settings.get(name, "default" if name == "determinism" else None)
            if run_value != (dict(value) if isinstance(value, Mapping) else value):
                return f"train.{name} {json.dumps(run_value)}"
        if self.on_gpus != job.on_gpus:
            return "GPUs" if self.on_gpus else "no GPUs"
        return ""

    def same_model(self, job: JobSpec) -> bool:
        """True if the run had the workload and the arguments of `job`."""
        args = job.train.args
        settings = {
            "workload": job.train.workload,
            "args": dict(args) if isinstance(args, Mapping) else args,
        }
        return self.settings is not None and all(
            self.settings.get(name) == value for name, value in settings.items()
        )


def newest(jobs: Iterable[JobSpec], bundle: Path) -> Run | None:
    """Return the newest run that these jobs, one for each tier, have left on this machine; None without one.

    Runs of scripts do not count, because only some of their steps are on record.
    """
    runs = {
        checkpoints(job, bundle.absolute().parent) / "metrics.jsonl"
        for job in jobs
        if job.train.program_field == "workload"
    }
    written = {path: time for path in runs if (time := _modified(path)) is not None}
    if not written:
        _log.debug(
            f"no run has left measurements: none of {', '.join(map(str, runs)) or 'the jobs'}"
        )
        return None
    directory = max(written, key=lambda path: written[path]).parent
    _log.debug(f"read the measurements of the newest run, {short(str(directory))}")
    return read(directory)


def read(directory: Path) -> Run:
    """Return the run in a checkpoint directory."""
    manifest = mapping(_text(directory / "manifest.json"))
    lines = _text(directory / "metrics.jsonl").splitlines()
    # Rows of these kinds come between two steps and take no time.
    rows = [
        row
        for row in map(mapping, lines)
        if row.get("kind") not in ("ranks", "shares", "checkpoint")
    ]
    step_times, attempt = _newest_start(rows)
    starts = [row for row in (manifest, *rows) if "world_size" in row and _start(row) == attempt]
    settings, facts = manifest.get("settings"), manifest.get("facts")
    return Run(
        short(str(directory)),
        _positive(manifest.get("parameters")),
        _positive(manifest.get("gradient_bytes")),
        settings if isinstance(settings, dict) else None,
        isinstance(facts, dict) and facts.get("device") != "cpu",
        statistics.median(step_times) if step_times else 0.0,
        len(step_times),
        (_positive(starts[-1]["world_size"]) or 0) if starts else 0,
        JobState(attempt=str(attempt[0])).started_by,
        _sharded(manifest.get("starts")),
    )


def _sharded(starts: Any) -> bool:
    newest = starts[-1] if isinstance(starts, list) and starts else None
    return isinstance(newest, dict) and newest.get("shard") == "optimizer"


def _newest_start(rows: Iterable[dict[str, Any]]) -> tuple[list[float], tuple[Any, Any]]:
    """Return the seconds of each step of the newest start with two steps, and that start's attempt and generation."""
    step_times: dict[tuple[Any, Any], list[float]] = {}
    last_row: dict[str, Any] = {}
    for row in rows:
        if row.get("kind") == last_row.get("kind") == "step" and _start(row) == _start(last_row):
            try:
                steps, seconds = row["step"] - last_row["step"], row["time"] - last_row["time"]
                step_times.setdefault(_start(row), []).append(max(0.0, seconds) / steps)
            except (KeyError, TypeError, ZeroDivisionError):
                pass
        last_row = row
    start = next(reversed(step_times), ("", 0))
    return step_times.get(start, []), start


def _start(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return str(row.get("attempt", "")), _positive(row.get("generation")) or 0


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
