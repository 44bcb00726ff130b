"""The curves of a run as SVG for light and dark pages. Needs matplotlib.

Text and axes take the page's colour. The series have colours that are visible on both pages.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from train.tools.report.history import History

# Okabe and Ito's palette, without the colours that are invisible on white or black.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#888888"
_INK = "#010203"  # stands for the page's own colour
_POINTS = 600  # the most points of a curve; the eye cannot distinguish more


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
