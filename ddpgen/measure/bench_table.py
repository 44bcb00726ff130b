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
from ddpgen.measure.predict import DTYPE_BYTES, shape_of
from ddpgen.measure.quantities import time
from ddpgen.spec.job import JobSpec

WARM_UP = 5  # the first steps of each run do not count
BLOCK = 5  # a sample is the mean of so many steps: the job's log_every
_TOO_GOOD = 1.1  # caches gain a few percent; more means that the first shape was disturbed


@dataclass(frozen=True)
class Sample:
    """Seconds of a step, the mean of BLOCK steps.

    `communication_s`: the time in the exchange with other ranks, on the rank that waits least. `waiting_s`: the time
    there beyond that, the mean of all ranks. A part that is not measured is None, as on GPUs.
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
class Ran:
    """One run. `losses`: by step, as text of JSON, which keeps every bit. `done`: True if it came to its end."""

    samples: Sequence[Sample]
    losses: Mapping[int, str]
    manifest: Mapping[str, Any]
    processes: int
    done: bool

    def differs(self, other: Ran) -> int | None:
        """Return the first step whose loss differs from the loss in `other`; None without one."""
        steps = sorted({*self.losses, *other.losses})
        return next((n for n in steps if self.losses.get(n) != other.losses.get(n)), None)


@dataclass(frozen=True)
class Row:
    """A shape, with medians over the samples of all its runs.

    `efficiency`: the speed of each process as a part of the first shape's. `predicted_s`: the time of a step by
    ddpgen/measure/cost.py.
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


def read(metrics: str, manifest: str) -> Ran:
    """Return the run in the text of its files. The newest start counts, which is the only one in a fresh directory."""
    rows = [row for row in map(mapping, metrics.splitlines()) if type(row.get("step")) is int]
    starts = [at for at, row in enumerate(rows) if row.get("kind") == "start"]
    rows = rows[starts[-1] :] if starts else []
    steps = {row["step"]: row for row in rows if row.get("kind") == "step"}
    samples = list(_of_ranks(rows)) or list(_of_steps(steps))
    losses = {number: json.dumps(row.get("loss")) for number, row in steps.items()}
    size = rows[0].get("world_size") if rows else 0
    done = bool(rows) and rows[-1].get("kind") == "done"
    return Ran(samples, losses, mapping(manifest), size if isinstance(size, int) else 0, done)


def _of_ranks(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    for row in rows:
        if row.get("kind") == "ranks" and row["step"] > WARM_UP:
            waiting, batches = (statistics.fmean(row[name]) for name in ("waiting", "batches"))
            least = min(row["waiting"])
            yield Sample(row["seconds"], least, waiting - least, batches)


def _of_steps(steps: Mapping[int, Mapping[str, Any]]) -> Iterator[Sample]:
    for end in sorted(steps):
        if end > WARM_UP and (end - WARM_UP) % BLOCK == 0 and end - BLOCK in steps:
            yield Sample((steps[end]["time"] - steps[end - BLOCK]["time"]) / BLOCK)


def make(
    jobs: Mapping[str, tuple[str, JobSpec]], runs: Mapping[str, Sequence[Ran]], machine: Mapping[str, Any],
    name: str, link: cost.Link | None, efficiency: float,
) -> Table:  # fmt: skip
    """Return the table of these runs, at least one of each shape. `jobs`: the tier and the job of each shape."""
    rows: list[Row] = []
    alone = next(
        (_median(each, "step_s") for each in runs.values() if each[0].processes == 1), None
    )
    for shape, each in runs.items():
        tier, job = jobs[shape]
        about, size = each[0].manifest, each[0].processes
        times = [sample.step_s for ran in each for sample in ran.samples]
        step_s = statistics.median(times)
        base = rows[0].step_s * rows[0].processes if rows else step_s * size
        predicted = None
        if link is not None and alone is not None and about.get("gradient_bytes"):
            predicted = predict(job, alone, about["gradient_bytes"], link, efficiency)
        rows.append(
            Row(
                shape, tier, size, len(each), step_s, min(times), max(times),
                about.get("units_per_step", 0) / step_s, _median(each, "compute_s"),
                _median(each, "communication_s"), _median(each, "waiting_s"), _median(each, "batches_s"), base / (step_s * size),
                predicted, about.get("facts", {}),
            )
        )  # fmt: skip
    first = next(iter(runs.values()))[0]
    losses, agree = compare(runs)
    unit, steps = first.manifest.get("unit", "samples"), max(first.losses)
    return Table(name, losses, agree, unit, steps, WARM_UP, machine, rows)


def _median(runs: Sequence[Ran], name: str) -> float | None:
    values = [getattr(sample, name) for ran in runs for sample in ran.samples]
    return statistics.median(values) if values and None not in values else None


def predict(
    job: JobSpec, alone_s: float, gradient_bytes: float, link: cost.Link, efficiency: float
) -> float | None:
    """Return the seconds of a step on several hosts, from the step of a single process; None for one host."""
    shape, train = shape_of(job), job.train
    if shape.hosts == 1:
        return None
    sent = gradient_bytes * DTYPE_BYTES.get(train.comm_hook, 4) / 4
    count = cost.tree_bytes if train.reduction == "tree" else cost.ring_bytes
    overlap = cost.Overlap(shape.most, cost.last_bucket(gradient_bytes, train.bucket_cap_mb))
    compute_s = alone_s * shape.most / job.micro_batches
    return overlap.step(compute_s, link.seconds(count(shape, sent), efficiency)).step_s


def compare(runs: Mapping[str, Sequence[Ran]]) -> tuple[str, bool]:
    """Return a line about the losses of all runs, and False if losses differ that must be the same."""
    every = [(shape, ran) for shape, each in runs.items() for ran in each]
    (of_first, first), *others = every
    if not others:
        return "one run: there are no other losses to compare its own with", True
    for shape, ran in others:
        step = ran.differs(first)
        if step is None:
            continue
        told = f"{of_first} {first.losses.get(step)}, {shape} {ran.losses.get(step)}"
        reason = ", ".join(_reasons(first.manifest, ran.manifest))
        why = f"what was computed on differs: {reason}" if reason else "they have to be the same"
        return f"the losses differ from step {step} on: {told}; {why}", bool(reason)
    return f"all shapes gave the same losses, bit for bit, in {len(first.losses)} steps", True


def _reasons(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for which the bits of two runs may differ."""
    if not one.get("exact_on_any_world_size", True) and one.get("world_size") != other.get(
        "world_size"
    ):
        yield "the number of processes, and the runs promise no equal bits for that"
    for part in ("facts", "settings"):
        was, now = one.get(part, {}), other.get(part, {})
        for name in sorted({*was, *now} - {"bits"}):
            if was.get(name) != now.get(name):
                yield f"{name} {was.get(name)}, {now.get(name)}"


def as_json(found: Table) -> str:
    """Return the table as JSON. The names of times end with their unit."""
    return json.dumps(asdict(found), indent=1, ensure_ascii=False)


def as_text(found: Table) -> str:
    """Return the table for a terminal."""
    lines = table([[f"  {first}", *rest] for first, *rest in _cells(found)], str.rjust)
    return "\n".join((*_head(found), "", *lines))


def as_markdown(found: Table) -> str:
    """Return the table as Markdown."""
    head, *rows = ("| " + " | ".join(cells) + " |" for cells in _cells(found))
    rule = "|---" * len(_cells(found)[0]) + "|"
    return "\n".join((*(f"{line}\n" for line in _head(found)), head, rule, *rows, ""))


def _head(found: Table) -> Iterator[str]:
    yield found.losses
    runs = max(row.runs for row in found.rows)
    counted = f"{found.steps - found.warm_up_steps} steps of {runs} run{'s' if runs > 1 else ''} of each shape"
    facts = found.rows[0].facts
    told = [
        *(f"{value} {name}" for name, value in found.machine.items() if name == "processors"),
        *(f"{facts[name]}" for name in ("machine", "cpu_capability") if name in facts),
        *(f"{name} {each[name]}" for name, each in (("torch", facts), ("ddpgen", found.machine)) if name in each),
    ]  # fmt: skip
    yield f"{found.name}: {counted}, after {found.warm_up_steps} to warm up; {', '.join(told)}"
    if any(row.efficiency > _TOO_GOOD for row in found.rows):
        yield (
            f"an efficiency above {_TOO_GOOD:.0%}: other programs probably slowed {found.rows[0].shape} down; repeat it on a "
            "quiet machine"
        )


def _cells(found: Table) -> list[list[str]]:
    """Return the cells of the table, the heading first, without columns that have no value."""
    rows = found.rows
    head = ["shape", "processes", "step", "least to most", f"{found.unit}/s"]
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
        _add(head, cells, title, ["-" if each is None else time(each) for each in values])
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
