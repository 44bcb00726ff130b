"""The table of `ddpgen bench`: the times of each shape's steps, the comparison of the losses, and their display. Pure.

Owns which rows of metrics.jsonl count.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpgen.driver.state import mapping
from ddpgen.driver.wording import table
from ddpgen.measure import cost
from ddpgen.measure.predict import DTYPE_BYTES, PredictOptions, predict, shape_of
from ddpgen.measure.quantities import time
from ddpgen.spec.job import JobSpec

WARM_UP = 5  # the first steps of each run do not count
BLOCK = 5  # a sample is the mean of so many steps: the job's log_every
_MAX_EFFICIENCY = 1.1  # caches gain a few percent; more means that the first shape was disturbed


@dataclass(frozen=True)
class Sample:
    """Seconds of a step, the mean of BLOCK steps.

    `communication_s`: the time in the exchange with other ranks, on the rank that waits least. `waiting_s`: the
    further time of the other ranks there, as the mean of all ranks. A part that is not measured is None, as on GPUs.
    """

    step_s: float
    communication_s: float | None = None
    waiting_s: float | None = None
    batches_s: float | None = None

    @property
    def compute_s(self) -> float | None:
        if self.communication_s is None or self.waiting_s is None or self.batches_s is None:
            return None
        return max(0.0, self.step_s - self.communication_s - self.waiting_s - self.batches_s)


@dataclass(frozen=True)
class BenchRun:
    """One run. `losses`: by step, as text of JSON, which keeps every bit. `done`: True if it came to its end."""

    samples: Sequence[Sample]
    losses: Mapping[int, str]
    manifest: Mapping[str, Any]
    processes: int
    done: bool

    def differs(self, other: BenchRun) -> int | None:
        """Return the first step whose loss differs from the loss in `other`; None without one."""
        steps = sorted({*self.losses, *other.losses})
        return next((n for n in steps if self.losses.get(n) != other.losses.get(n)), None)


@dataclass(frozen=True)
class Row:
    """A shape, with medians over the samples of all its runs.

    `efficiency`: the speed of each process as a part of the first shape's. `predicted_s`: the time of a step by
    ddpgen/measure/predict.py.
    """

    shape: str
    tier: str
    processes: int
    runs: int
    step_s: float
    least_step_s: float
    most_step_s: float
    units_per_s: float
    compute_s: float | None
    communication_s: float | None
    waiting_s: float | None
    batches_s: float | None
    efficiency: float
    predicted_s: float | None
    facts: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Table:
    """The result of a bench. `agree`: False if losses differ that must be the same."""

    name: str
    losses: str
    agree: bool
    unit: str
    steps: int
    warm_up_steps: int
    machine: Mapping[str, Any]
    rows: Sequence[Row]


def read(metrics: str, manifest: str) -> BenchRun:
    """Return the run in the text of its files. The newest start counts, which is the only one in a fresh directory."""
    rows = [row for row in map(mapping, metrics.splitlines()) if type(row.get("step")) is int]
    starts = [index for index, row in enumerate(rows) if row.get("kind") == "start"]
    rows = rows[starts[-1] :] if starts else []
    steps = {row["step"]: row for row in rows if row.get("kind") == "step"}
    samples = list(_rank_samples(rows)) or list(_step_samples(steps))
    losses = {number: json.dumps(row.get("loss")) for number, row in steps.items()}
    size = rows[0].get("world_size") if rows else 0
    done = bool(rows) and rows[-1].get("kind") == "done"
    return BenchRun(samples, losses, mapping(manifest), size if isinstance(size, int) else 0, done)


def _rank_samples(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    for row in rows:
        if row.get("kind") == "ranks" and row["step"] > WARM_UP:
            waiting, batches = (statistics.fmean(row[name]) for name in ("waiting", "batches"))
            shortest = min(row["waiting"])
            yield Sample(row["seconds"], shortest, waiting - shortest, batches)


def _step_samples(steps: Mapping[int, Mapping[str, Any]]) -> Iterator[Sample]:
    for end in sorted(steps):
        if end > WARM_UP and (end - WARM_UP) % BLOCK == 0 and end - BLOCK in steps:
            yield Sample((steps[end]["time"] - steps[end - BLOCK]["time"]) / BLOCK)


def make(
    jobs: Mapping[str, tuple[str, JobSpec]], runs: Mapping[str, Sequence[BenchRun]], machine: Mapping[str, Any],
    name: str, link: cost.Link | None, efficiency: float,
) -> Table:  # fmt: skip
    """Return the table of these runs, at least one of each shape. `jobs`: the tier and the job of each shape."""
    rows: list[Row] = []
    single_step_s = next(
        (
            _median(shape_runs, "step_s")
            for shape_runs in runs.values()
            if shape_runs[0].processes == 1
        ),
        None,
    )
    for shape, shape_runs in runs.items():
        tier, job = jobs[shape]
        manifest, size = shape_runs[0].manifest, shape_runs[0].processes
        times = [sample.step_s for run in shape_runs for sample in run.samples]
        step_s = statistics.median(times)
        base = rows[0].step_s * rows[0].processes if rows else step_s * size
        predicted = None
        if link is not None and single_step_s is not None and manifest.get("gradient_bytes"):
            sent = manifest["gradient_bytes"]
            predicted = _predicted_s(tier, job, single_step_s, sent, link, efficiency)
        rows.append(
            Row(
                shape, tier, size, len(shape_runs), step_s, min(times), max(times),
                manifest.get("units_per_step", 0) / step_s, _median(shape_runs, "compute_s"),
                _median(shape_runs, "communication_s"), _median(shape_runs, "waiting_s"), _median(shape_runs, "batches_s"), base / (step_s * size),
                predicted, manifest.get("facts", {}),
            )
        )  # fmt: skip
    first = next(iter(runs.values()))[0]
    losses, agree = compare(runs)
    unit, steps = first.manifest.get("unit", "samples"), max(first.losses)
    return Table(name, losses, agree, unit, steps, WARM_UP, machine, rows)


def _median(runs: Sequence[BenchRun], name: str) -> float | None:
    values = [getattr(sample, name) for run in runs for sample in run.samples]
    return statistics.median(values) if values and None not in values else None


def _predicted_s(
    tier: str, job: JobSpec, single_step_s: float, gradient_bytes: float, link: cost.Link,
    efficiency: float,
) -> float | None:  # fmt: skip
    """Return the seconds of a step on several hosts, from the step of a single process; None for one host."""
    shape = shape_of(job)
    if shape.hosts == 1:
        return None
    parameters = int(gradient_bytes) // DTYPE_BYTES["fp32"]
    compute_s = single_step_s * shape.max_micro_batches / job.micro_batches
    options = PredictOptions(parameters, None, link, efficiency, {"": compute_s})
    links = predict({tier: job}, tier, options, None).links
    return next(row.step.step_s for row in links if row.link == link and row.step)


def compare(runs: Mapping[str, Sequence[BenchRun]]) -> tuple[str, bool]:
    """Return a line about the losses of all runs, and False if losses differ that must be the same."""
    all_runs = [(shape, run) for shape, shape_runs in runs.items() for run in shape_runs]
    (first_shape, first), *others = all_runs
    if not others:
        return "one run: there are no other losses to compare its own with", True
    for shape, run in others:
        step = run.differs(first)
        if step is None:
            continue
        losses = f"{first_shape} {first.losses.get(step)}, {shape} {run.losses.get(step)}"
        reason = ", ".join(_reasons(first.manifest, run.manifest))
        explanation = (
            f"what was computed on differs: {reason}" if reason else "they have to be the same"
        )
        return f"the losses differ from step {step} on: {losses}; {explanation}", bool(reason)
    return f"all shapes gave the same losses, bit for bit, in {len(first.losses)} steps", True


def _reasons(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for which the bits of two runs may differ."""
    if not left.get("exact_on_any_world_size", True) and left.get("world_size") != right.get(
        "world_size"
    ):
        yield "the number of processes, and the runs promise no equal bits for that"
    for part in ("facts", "settings"):
        left_values, right_values = left.get(part, {}), right.get(part, {})
        for name in sorted({*left_values, *right_values} - {"bits"}):
            if left_values.get(name) != right_values.get(name):
                yield f"{name} {left_values.get(name)}, {right_values.get(name)}"


def as_json(bench: Table) -> str:
    """Return the table as JSON. The names of times end with their unit."""
    return json.dumps(asdict(bench), indent=1, ensure_ascii=False)


def as_text(bench: Table) -> str:
    """Return the table for a terminal."""
    lines = table([[f"  {first}", *rest] for first, *rest in _cells(bench)], str.rjust)
    return "\n".join((*_head(bench), "", *lines))


def as_markdown(bench: Table) -> str:
    """Return the table as Markdown."""
    head, *rows = ("| " + " | ".join(cells) + " |" for cells in _cells(bench))
    rule = "|---" * len(_cells(bench)[0]) + "|"
    return "\n".join((*(f"{line}\n" for line in _head(bench)), head, rule, *rows, ""))


def _head(bench: Table) -> Iterator[str]:
    yield bench.losses
    runs = max(row.runs for row in bench.rows)
    counted = f"{bench.steps - bench.warm_up_steps} steps of {runs} run{'s' if runs > 1 else ''} of each shape"
    facts = bench.rows[0].facts
    environment = [
        *(f"{value} {name}" for name, value in bench.machine.items() if name == "processors"),
        *(f"{facts[name]}" for name in ("machine", "cpu_capability") if name in facts),
        *(f"{name} {source[name]}" for name, source in (("torch", facts), ("ddpgen", bench.machine)) if name in source),
    ]  # fmt: skip
    yield f"{bench.name}: {counted}, after {bench.warm_up_steps} to warm up; {', '.join(environment)}"
    if any(row.efficiency > _MAX_EFFICIENCY for row in bench.rows):
        yield (
            f"an efficiency above {_MAX_EFFICIENCY:.0%}: other programs probably slowed {bench.rows[0].shape} down; repeat it on a "
            "quiet machine"
        )


def _cells(bench: Table) -> list[list[str]]:
    """Return the cells of the table, the heading first, without columns that have no value."""
    rows = bench.rows
    head = ["shape", "processes", "step", "least to most", f"{bench.unit}/s"]
    cells = [
        [
            row.shape, str(row.processes), time(row.step_s),
            f"{time(row.least_step_s)} to {time(row.most_step_s)}", f"{row.units_per_s:,.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    parts = (
        ("computing", "compute_s"),
        ("communication", "communication_s"),
        ("waiting for ranks", "waiting_s"),
        ("for batches", "batches_s"),
    )
    for title, name in parts:
        values = [getattr(row, name) for row in rows]
        _add(head, cells, title, ["-" if value is None else time(value) for value in values])
    _add(head, cells, "efficiency", [f"{row.efficiency:.0%}" for row in rows])
    _add(head, cells, "predicted", [_predicted(row) for row in rows])
    return [head, *cells]


def _add(head: list[str], cells: list[list[str]], title: str, values: Sequence[str]) -> None:
    if set(values) != {"-"}:
        head.append(title)
        for row, value in zip(cells, values, strict=True):
            row.append(value)


def _predicted(row: Row) -> str:
    if row.predicted_s is None:
        return "-"
    return f"{time(row.predicted_s)} ({row.step_s / row.predicted_s - 1:+.0%})"
