"""The points of a sweep as one page: the best first, and their curves laid over each other.

Owns the order of the points. Keeps only the content of the page from each run, because a sweep may have a thousand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from train.base import typed
from train.run.layout import BEST
from train.run.status import Status, read_status
from train.tools.report import plots
from train.tools.report.history import History, Row, history, load, value_of
from train.tools.report.page import FILE, cell, count, document, figure, units

_HEAD = ("kind", "step", "attempt", "generation", "time")  # the keys of every row
_TRAINING = "training loss"
_BEST = "best "
_STYLE = """
.key { width: 2rem; height: .6rem; } .keys { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin-top: 1.2rem; }
.keys span { overflow-wrap: anywhere; } h1 + p { color: var(--ink); }
.points td { white-space: nowrap; } .points td:nth-child(2) { white-space: normal; min-width: 5rem; }
.points td.failed, .points td.stopped { min-width: 16rem; }
.points tr:nth-child(2) td:first-child { font-weight: 600; } a { color: inherit; }
"""
Curve = tuple[Sequence[float], Sequence[float]]  # steps and values


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run with `train.best`, as best.json has it. `mode`: min or max."""

    metric: str
    mode: str
    value: float
    step: int


@dataclass(frozen=True)
class Point:
    """One point. `report`: the address of its own page, or "". `curves`: the curves, by caption."""

    name: str
    status: Status | None = None
    steps: str = ""
    loss: float | None = None
    evaluation: Row = field(default_factory=dict)
    speed: str = ""
    best: Best | None = None
    report: str = ""
    curves: Mapping[str, Curve] = field(default_factory=dict)


class Ranking(NamedTuple):
    """The points, the best first, the measure that orders them, and the value of each point."""

    measure: str
    points: Sequence[Point]
    values: Sequence[float | None]


def read(directory: Path, sweep: Path, page_directory: Path) -> Point:
    """Read the point in `directory`, which may not be there yet.

    `page_directory`: the directory of the sweep's page, which links to the point's own page.
    """
    try:
        run = load(directory)
    except OSError as error:
        status = read_status(directory)
        if status is None and not isinstance(error, FileNotFoundError):
            status = Status("unreadable", "", 0, error.strerror or "")
        run = history((), directory, status)
    report, link = directory / FILE, ""
    if os.path.isfile(report):
        link = quote(os.path.relpath(report, page_directory), safe="/=,+")
    best = typed.read(Best, directory / BEST)
    return point(run, directory.relative_to(sweep).as_posix(), best, link)


def point(run: History, name: str, best: Best | None = None, report: str = "") -> Point:
    """Return the content of the page about this run."""
    if not run.steps:
        return Point(name, run.status, best=best, report=report)
    last = run.steps[-1]
    numbers = [step.number for step in run.steps]
    curves = {_TRAINING: plots.averaged(numbers, [step.loss for step in run.steps])}
    for metric in sorted({name for row in run.evaluations for name in row if name not in _HEAD}):
        pairs = [(row["step"], value_of(row, metric)) for row in run.evaluations]
        known = [(step, value) for step, value in pairs if value is not None]
        if known:
            curves[f"evaluation: {metric}"] = plots.averaged(*zip(*known, strict=True))
    per_step, unit = units(run)
    return Point(
        name,
        run.status,
        f"{last.number} of {run.total_steps}" if run.total_steps else str(last.number),
        last.loss,
        run.evaluations[-1] if run.evaluations else {},
        f"{count(per_step / run.step_s)} {unit}/s" if run.step_s else "",
        best,
        report,
        curves,
    )


def ranked(points: Sequence[Point]) -> Ranking:
    """Return the points, the best first. At the end come diverged points, then points without a value or a step."""
    measure, sign, values = _measure_of(points)

    def key(n: int) -> tuple[bool, bool, float]:
        value = values[n]
        diverged = value is None or not math.isfinite(value)
        return not points[n].steps, value is None, math.inf if diverged else sign * (value or 0.0)

    places = sorted(range(len(points)), key=key)
    return Ranking(measure, [points[n] for n in places], [values[n] for n in places])


def _measure_of(points: Sequence[Point]) -> tuple[str, int, Sequence[float | None]]:
    """Return the measure that orders the points, 1 if less is better or -1 if more is, and the value of each point.

    The measure is the metric of `train.best` if all points with a best evaluation have the same metric. Without that it
    is the newest evaluation loss, and without evaluations the newest training loss.
    """
    bests = [point.best for point in points]
    if len(metrics := {(best.metric, best.mode) for best in bests if best}) == 1:
        ((metric, mode),) = metrics
        values = [best.value if best else None for best in bests]
        return f"{_BEST}{metric}", -1 if mode == "max" else 1, values
    losses = [value_of(point.evaluation, "loss") for point in points]
    if any(loss is not None for loss in losses):
        return "newest evaluation loss", 1, losses
    return "newest training loss", 1, [point.loss for point in points]


def page(points: Sequence[Point], name: str) -> str:
    """Return the whole page. `name`: the job's name."""
    ranking = ranked(points)
    parts = [*_head(ranking, name), *_curves(ranking.points), *_table(ranking)]
    return document(name, parts, _STYLE)


def _head(ranking: Ranking, name: str) -> Iterator[str]:
    measure, points, values = ranking
    yield f"<h1>{escape(name)}</h1>"
    if values[0] is not None and math.isfinite(values[0]):
        value = f"{escape(measure)} {_number(values[0])}"
        yield f"<p>best: <b>{escape(points[0].name)}</b>, {value}</p>"
    words: dict[str, int] = {}
    for point in points:
        words[_word(point)] = words.get(_word(point), 0) + 1
    counts = ", ".join(f"{number} {word}" for word, number in words.items())
    yield f"<p>{len(points)} points: {counts}; in the order of the {escape(measure)}</p>"


def _word(point: Point) -> str:
    if point.status is None:
        return "unknown" if point.steps else "waiting"
    return point.status.word


def _curves(points: Sequence[Point]) -> Iterator[str]:
    drawn = [point for point in points if point.curves]
    if not drawn:
        return
    if not plots.available():
        yield "<p>No curves: matplotlib is not installed here (pip install matplotlib).</p>"
        return
    keys = [f"{_key(n)} {escape(point.name)}" for n, point in enumerate(drawn[: plots.COLOURED])]
    if others := len(drawn) - len(keys):
        keys.append(f"{_key(plots.COLOURED)} {others} other{'s' if others > 1 else ''}")
    yield '<div class="keys">' + "".join(f"<span>{key}</span>" for key in keys) + "</div>"
    yield '<div class="plots">'
    for caption in dict.fromkeys(caption for point in drawn for caption in point.curves):
        curves = [
            plots.Curve(n, *point.curves[caption])
            for n, point in enumerate(drawn)
            if caption in point.curves
        ]
        yield figure(caption[0].upper() + caption[1:], plots.overlaid(curves))
    yield "</div>"


def _key(place: int) -> str:
    """Return a piece of the line of the point at this place."""
    color, width, dash = plots.pen(place)
    dashes = f' stroke-dasharray="{" ".join(str(4 * length) for length in dash)}"' if dash else ""
    look = f'stroke="{color}" stroke-width="{2 * width}"{dashes}'
    return f'<svg class="key" viewBox="0 0 32 10"><line x1="0" y1="5" x2="32" y2="5" {look}/></svg>'


def _table(ranking: Ranking) -> Iterator[str]:
    measure, points, _ = ranking
    by_best = measure.startswith(_BEST)
    names = ["point", "state", "step", "loss", *([measure] if by_best else []), "evaluation"]
    yield '<h2>Points</h2><div class="scroll"><table class="points"><tr>'
    yield "".join(f"<th>{escape(name)}</th>" for name in (*names, "speed", "page")) + "</tr>"
    for n, point in enumerate(points):
        best = [_best(point)] if by_best else []
        loss = "" if point.loss is None else _number(point.loss)
        words = (point.steps, loss, *best, _evaluation(point), point.speed)
        key = f"{_key(n)} " if point.curves and plots.available() else ""
        cells = map(cell, [_state(point), *((text, "") for text in words)])
        link = f'<a href="{escape(point.report)}">report</a>' if point.report else ""
        yield f"<tr><td>{key}{escape(point.name)}</td>{''.join(cells)}<td>{link}</td></tr>"
    yield "</table></div>"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.4g}"


def _state(point: Point) -> tuple[str, str]:
    word = _word(point)
    # While a point runs, the reason is a crash from which it has recovered.
    reason = point.status.reason if point.status and word != "running" else ""
    return f"{word}: {reason}" if reason else word, word


def _best(point: Point) -> str:
    return f"{_number(point.best.value)} at step {point.best.step}" if point.best else ""


def _evaluation(point: Point) -> str:
    row = point.evaluation
    values = {name: value_of(row, name) for name in row if name not in _HEAD}
    known = [f"{name} {_number(value)}" for name, value in values.items() if value is not None]
    return f"{', '.join(known)} at step {row['step']}" if known else ""
