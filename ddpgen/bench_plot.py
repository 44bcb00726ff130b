"""The table of a bench as a picture: where each shape's step goes."""

from __future__ import annotations

from pathlib import Path

from ddpgen import plot
from ddpgen.bench_table import Row, Table
from ddpgen.plan.quantities import time


def write(found: Table, file: Path) -> None:
    """Draw into `file`. Raises TargetUnavailableError, FileTroubleError."""
    rows = found.rows
    figure, (axes,) = plot.charts(
        1, 7.2, 1.6 + 0.5 * len(rows), f"{found.name}: a step at each shape"
    )
    names = [f"{row.shape} ({row.processes})" for row in rows]
    parts = [_parts(row) for row in rows]
    labels = ("computing", "communication", "waiting for ranks", "waiting for batches")
    left = [0.0] * len(rows)
    for at, (label, color) in enumerate(
        zip(labels, (plot.BLUE, plot.GREEN, plot.RED, plot.AMBER), strict=True)
    ):
        widths = [each[at] * 1e3 for each in parts]
        axes.barh(names, widths, left=left, color=color, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for at, (row, end) in enumerate(zip(rows, left, strict=True)):
        words = f"{time(row.step_s)}, {row.units_per_s:,.0f} {found.unit}/s, {row.efficiency:.0%}"
        axes.annotate(words, (end, at), (4, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, max(left) * 1.6)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("shape (processes)")
    plot.legend(figure, axes)
    plot.save(figure, file)


def _parts(row: Row) -> tuple[float, ...]:
    """Computing, communication, waiting for ranks, for batches; where that is not measured, all of it as the first."""
    if row.compute_s is None:
        return row.step_s, 0.0, 0.0, 0.0
    return row.compute_s, row.communication_s or 0.0, row.waiting_s or 0.0, row.batches_s or 0.0
