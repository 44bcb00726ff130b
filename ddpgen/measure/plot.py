"""Pictures of a prediction and of a bench. Owns all use of matplotlib, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.measure.bench_table import Row, Table
from ddpgen.measure.predict import Prediction, counted
from ddpgen.measure.quantities import time

_BLUE, _RED, _AMBER, _GREEN = "#4878a8", "#d1603d", "#e0a458", "#5a9367"


def need() -> None:
    """Raise TargetUnavailableError if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise TargetUnavailableError(
            "--plot needs matplotlib, which is not installed: pip install 'ddpgen[plot]', or pip install matplotlib"
        ) from None


def prediction(values: Prediction, file: Path) -> None:
    """Draw the step on each link, and over node counts, into `file`. Its suffix is the format.

    Raises TargetUnavailableError, FileTroubleError.
    """
    charts = [draw for draw, rows in ((_links, values.links), (_nodes, values.nodes[1:])) if rows]
    if not charts:
        raise TargetUnavailableError(
            "--plot: a single process sends nothing, so there is nothing to draw"
        )
    figure, grid = _charts(len(charts), 5.6, 4.4, f"{values.name} on {values.tier}")
    for axes, draw in zip(grid, charts, strict=True):
        draw(axes, values)
    if values.compute.micro_batch_s:
        _legend(figure, grid[0])
    _save(figure, file)


def _links(axes: Any, prediction: Prediction) -> None:
    names = [row.link.name for row in prediction.links]
    if prediction.compute.micro_batch_s:
        steps = [row.step for row in prediction.links if row.step is not None]
        compute, exposed = [s.compute_s for s in steps], [s.exposed_s for s in steps]
        axes.barh(names, compute, color=_BLUE, label="computing")
        axes.barh(names, exposed, left=compute, color=_RED, label="communication not hidden")
        ends = [s.step_s for s in steps]
        axes.set_xlim(0, max(ends) * 1.18)
        axes.set_title(f"a step on each link, {counted(prediction.shape)}")
    else:
        ends = [row.communication_s for row in prediction.links]
        axes.barh(names, ends, color=_RED)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(min(ends) / 2, max(ends) * 5)
        axes.set_title(f"communication of a step, {counted(prediction.shape)}")
    for index, end in enumerate(ends):
        axes.annotate(time(end), (end, index), (4, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xlabel("seconds")


def _nodes(axes: Any, prediction: Prediction) -> None:
    names = [str(row.nodes) for row in prediction.nodes]
    steps = [row.step for row in prediction.nodes if row.step is not None]
    if steps:
        compute, exposed = [s.compute_s for s in steps], [s.exposed_s for s in steps]
        axes.bar(names, compute, color=_BLUE, label="computing")
        axes.bar(names, exposed, bottom=compute, color=_RED, label="communication not hidden")
        ends = [s.step_s for s in steps]
        labels = [
            f"{time(end)}\n{row.efficiency or 0:.0%}"
            for end, row in zip(ends, prediction.nodes, strict=True)
        ]
        axes.set_title(f"a step at {prediction.link.name}, and its efficiency")
    else:
        ends = [row.communication_s for row in prediction.nodes]
        axes.bar(names, ends, color=_RED)
        labels = [time(end) for end in ends]
        axes.set_title(f"communication of a step at {prediction.link.name}")
    axes.set_ylim(0, max(ends) * 1.2)
    for index, (end, words) in enumerate(zip(ends, labels, strict=True)):
        axes.annotate(
            words, (index, end), (0, 3), textcoords="offset points", ha="center", va="bottom"
        )
    axes.set_xlabel("nodes")
    axes.set_ylabel("seconds")


def bench(table: Table, file: Path) -> None:
    """Draw the parts of each shape's step into `file`. Raise TargetUnavailableError, FileTroubleError."""
    rows = table.rows
    figure, (axes,) = _charts(1, 7.2, 1.6 + 0.5 * len(rows), f"{table.name}: a step at each shape")
    names = [f"{row.shape} ({row.processes})" for row in rows]
    parts = [_parts(row) for row in rows]
    labels = ("computing", "communication", "waiting for ranks", "waiting for batches")
    left = [0.0] * len(rows)
    for index, (label, color) in enumerate(zip(labels, (_BLUE, _GREEN, _RED, _AMBER), strict=True)):
        widths = [parts_of_row[index] * 1e3 for parts_of_row in parts]
        axes.barh(names, widths, left=left, color=color, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for index, (row, end) in enumerate(zip(rows, left, strict=True)):
        words = f"{time(row.step_s)}, {row.units_per_s:,.0f} {table.unit}/s, {row.efficiency:.0%}"
        axes.annotate(words, (end, index), (4, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, max(left) * 1.6)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("shape (processes)")
    _legend(figure, axes)
    _save(figure, file)


def _parts(row: Row) -> tuple[float, ...]:
    """Return a step's seconds of computing, communication, waiting for ranks, and waiting for batches.

    If the parts are not measured, computing has all of the step.
    """
    if row.compute_s is None:
        return row.step_s, 0.0, 0.0, 0.0
    return row.compute_s, row.communication_s or 0.0, row.waiting_s or 0.0, row.batches_s or 0.0


def _charts(count: int, width: float, height: float, title: str) -> tuple[Any, Any]:
    """Return a figure and so many axes in a row. Raise TargetUnavailableError."""
    need()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained", facecolor="white")
    figure.suptitle(title, fontweight="bold")
    grid = figure.subplots(1, count, squeeze=False)[0]
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid


def _legend(figure: Any, axes: Any) -> None:
    """Put the legend of one chart below all charts."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def _save(figure: Any, file: Path) -> None:
    """Write the figure into `file`, whose suffix is the format. Raise FileTroubleError."""
    from matplotlib import rc_context

    # Text stays text in an SVG, and the same figure gives the same bytes.
    same = {"svg.fonttype": "none", "svg.hashsalt": "ddpgen"}
    about = {"Date": None} if file.suffix == ".svg" else {}
    try:
        with rc_context(same):
            figure.savefig(file, dpi=150, metadata=about)
    except OSError as error:
        raise FileTroubleError(
            f"{file}: {error.strerror}; name another file after --plot"
        ) from None
