"""The curves of a run, or of the points of a sweep, as SVG for light and dark pages. Needs matplotlib.

Text and axes take the page's colour. The series have colours that are visible on both pages.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from train.tools.report.history import History

# Okabe and Ito's palette, without the colours that are invisible on white or black.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#888888"
PINK = "#cc79a7"
_INK = "#010203"  # stands for the page's own colour
_POINTS = 600  # the most points of a curve; the eye cannot distinguish more
_POINTS_OVERLAID = 200  # the most points of a curve among others; each point makes the page larger
_MARKED = 30  # a curve with at most so many points marks each point
# Values leave the picture beyond this distance from the best curve. The unit is the curve's height or largest value.
_FAR = 10.0
COLOURED = 10  # more curves than these cannot be told apart


def available() -> bool:
    """Return whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def loss(history: History) -> str:
    """Draw loss and evaluation by step."""

    def draw(axes: Any) -> None:
        steps = _thinned(history.steps)
        axes.plot([s.number for s in steps], [s.loss for s in steps], color=BLUE, label="loss")
        names = sorted({n for row in history.evaluations for n in row if n.endswith("loss")})
        for name in names[:1]:
            known = [row for row in history.evaluations if isinstance(row.get(name), float)]
            where, values = [row["step"] for row in known], [row[name] for row in known]
            axes.plot(where, values, color=ORANGE, marker="o", label=f"evaluation: {name}")
        for start in history.starts[1:]:
            axes.axvline(start.first_step, color=GREY, linewidth=0.8, linestyle=":")
        if history.starts[1:]:
            axes.plot([], [], color=GREY, linewidth=0.8, linestyle=":", label="start")
        axes.set_xlabel("step")
        axes.legend(frameon=False)

    return _svg(draw)


def speed(history: History, units: float, unit: str) -> str:
    """Draw the throughput by time since the first start. The line has a gap while nothing ran."""

    def draw(axes: Any) -> None:
        began = history.starts[0].started
        for start in history.starts:
            mine = _thinned(
                [s for s in history.steps if s.seconds and start.started <= s.time <= start.ended]
            )
            times = [(s.time - began) / 60 for s in mine]
            rates = [units / s.seconds for s in mine if s.seconds]
            axes.plot(times, _smooth(rates), color=GREEN)
        axes.set_xlabel("minutes since the first start")
        axes.set_ylabel(f"{unit} per second")
        axes.set_ylim(bottom=0)

    return _svg(draw)


def step_time_parts(history: History) -> str:
    """Draw the parts of a step's time over the run, as the mean of all ranks."""

    def draw(axes: Any) -> None:
        reports = _thinned(history.ranks)
        steps = [report.step for report in reports]
        waiting = [statistics.fmean(report.waiting) * 1e3 for report in reports]
        batches = [statistics.fmean(report.batches) * 1e3 for report in reports]
        whole = [report.seconds * 1e3 for report in reports]
        compute = [max(0.0, w - a - b) for w, a, b in zip(whole, waiting, batches, strict=True)]
        labels = ("computing", "waiting for ranks", "waiting for batches")
        colors = (BLUE, ORANGE, RED)
        axes.stackplot(steps, compute, waiting, batches, labels=labels, colors=colors, alpha=0.85)
        axes.set_xlabel("step")
        axes.set_ylabel("ms per step")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return _svg(draw)


def ranks(history: History) -> str:
    """Draw each rank's computing and waiting, over all reports. The rank that waits least holds the others up."""

    def draw(axes: Any) -> None:
        size = len(history.ranks[-1].waiting)
        reports = [report for report in history.ranks if len(report.waiting) == size]
        waiting = [statistics.fmean(r.waiting[n] for r in reports) * 1e3 for n in range(size)]
        whole = statistics.fmean(report.seconds for report in reports) * 1e3
        names = [f"rank {n}" for n in range(size)]
        axes.barh(names, [whole - w for w in waiting], color=BLUE, label="computing")
        axes.barh(names, waiting, left=[whole - w for w in waiting], color=ORANGE, label="waiting")
        axes.invert_yaxis()
        axes.set_xlabel("ms per step")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _svg(draw, height=max(1.6, 0.35 * min(64, len(history.ranks[-1].waiting)) + 1))


def checkpoints(history: History) -> str:
    """Draw how long each checkpoint took to be durable, and how long the training waited for it."""

    def draw(axes: Any) -> None:
        made = _thinned(history.checkpoints)
        steps = [each.step for each in made]
        axes.plot(steps, [c.seconds for c in made], "o-", color=BLUE, label="until it was durable")
        axes.plot(steps, [c.stall for c in made], "o-", color=RED, label="training stood still")
        axes.set_xlabel("step")
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return _svg(draw)


class Curve(NamedTuple):
    """One line among others: its points, and its place in the order of the lines, from 0. `steps` are ascending."""

    place: int
    steps: Sequence[float]
    values: Sequence[float]


class Pen(NamedTuple):
    """The look of a line: a colour, a width, and the lengths of a dash and of the gap after it, or ()."""

    color: str
    width: float
    dash: tuple[float, ...] = ()


def pen(place: int) -> Pen:
    """Return the look of the line at this place in the order. The first ten differ, and the first is the thickest."""
    if place >= COLOURED:
        return Pen(GREY, 0.7)
    colors = (BLUE, ORANGE, GREEN, RED, PINK)
    dash = (3.0, 1.5) if place >= len(colors) else ()
    return Pen(colors[place % len(colors)], 1.3 if place else 2.6, dash)


def averaged(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a curve of few points, each the mean of equally many neighbours. A value that is not finite is a gap."""
    size = max(1, -(-len(values) // _POINTS_OVERLAID))
    blocks = range(0, len(values), size)
    return [_mean(steps[n : n + size]) for n in blocks], [
        _mean(values[n : n + size]) for n in blocks
    ]


def _mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else math.nan


def overlaid(curves: Sequence[Curve]) -> str:
    """Draw the curves over each other by step, with the first curve on top."""

    def draw(axes: Any) -> None:
        for place, steps, values in reversed(curves):
            color, width, dash = pen(place)
            is_marked = len(values) == 1 or (len(values) <= _MARKED and place < COLOURED)
            look = {"linestyle": (0, dash) if dash else "-", "marker": "." if is_marked else ""}
            axes.plot(steps, values, color=color, linewidth=width, **look)
        axes.set_xlabel("step")
        axes.set_ylim(*limits(curves))

    return _svg(draw)


def limits(curves: Sequence[Curve]) -> tuple[float | None, float | None]:
    """Return the lowest and the highest value of the picture, or None for both if matplotlib may choose.

    Values far away from the best curve are left out, because a loss that diverges would flatten all other curves.
    """
    finite = (list(filter(math.isfinite, curve.values)) for curve in curves)
    best = next(filter(None, finite), [0.0])
    far = _FAR * max(max(best) - min(best), *map(abs, best))
    low, high = min(best) - far, max(best) + far
    near = [value for curve in curves for value in curve.values if low <= value <= high]
    if not near or min(near) == max(near):
        return None, None
    margin = 0.05 * (max(near) - min(near))
    return min(near) - margin, max(near) + margin


def _thinned(values: Sequence[Any]) -> Sequence[Any]:
    every = max(1, len(values) // _POINTS)
    return values[::every]


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the median of five neighbours at each point, so that one slow step makes no dip."""
    return [statistics.median(values[max(0, n - 2) : n + 3]) for n in range(len(values))]


def _svg(draw: Callable[[Any], None], height: float = 2.6) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "ddpgen",
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
        ),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(6.4, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.grid(visible=True, color=GREY, alpha=0.25, linewidth=0.6)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")
