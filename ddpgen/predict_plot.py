"""A prediction as a picture: the step on each link, and over node counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpgen import plot
from ddpgen.errors import TargetUnavailableError
from ddpgen.plan.quantities import time
from ddpgen.predict import Prediction, counted

_COMPUTE, _EXPOSED = plot.BLUE, plot.RED


def write(found: Prediction, file: Path) -> None:
    """Draw into `file`, as its suffix says. Raises TargetUnavailableError, FileTroubleError."""
    charts = [draw for draw, rows in ((_links, found.links), (_nodes, found.nodes[1:])) if rows]
    if not charts:
        raise TargetUnavailableError(
            "--plot: a single process sends nothing, so there is nothing to draw"
        )
    figure, grid = plot.charts(len(charts), 5.6, 4.4, f"{found.name} on {found.tier}")
    for axes, draw in zip(grid, charts, strict=True):
        draw(axes, found)
    if found.compute.micro_batch_s:
        plot.legend(figure, grid[0])
    plot.save(figure, file)


def _links(axes: Any, found: Prediction) -> None:
    """A bar for each link."""
    names = [row.link.name for row in found.links]
    if found.compute.micro_batch_s:
        steps = [row.step for row in found.links if row.step is not None]
        compute, exposed = [s.compute_s for s in steps], [s.exposed_s for s in steps]
        axes.barh(names, compute, color=_COMPUTE, label="computing")
        axes.barh(names, exposed, left=compute, color=_EXPOSED, label="communication not hidden")
        ends = [s.step_s for s in steps]
        axes.set_xlim(0, max(ends) * 1.18)
        axes.set_title(f"a step on each link, {counted(found.shape)}")
    else:
        ends = [row.communication_s for row in found.links]
        axes.barh(names, ends, color=_EXPOSED)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(min(ends) / 2, max(ends) * 5)
        axes.set_title(f"communication of a step, {counted(found.shape)}")
    for at, end in enumerate(ends):
        axes.annotate(time(end), (end, at), (4, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xlabel("seconds")


def _nodes(axes: Any, found: Prediction) -> None:
    """A bar for each number of nodes."""
    names = [str(row.nodes) for row in found.nodes]
    steps = [row.step for row in found.nodes if row.step is not None]
    if steps:
        compute, exposed = [s.compute_s for s in steps], [s.exposed_s for s in steps]
        axes.bar(names, compute, color=_COMPUTE, label="computing")
        axes.bar(names, exposed, bottom=compute, color=_EXPOSED, label="communication not hidden")
        ends = [s.step_s for s in steps]
        told = [
            f"{time(end)}\n{row.efficiency or 0:.0%}"
            for end, row in zip(ends, found.nodes, strict=True)
        ]
        axes.set_title(f"a step at {found.link.name}, and its efficiency")
    else:
        ends = [row.communication_s for row in found.nodes]
        axes.bar(names, ends, color=_EXPOSED)
        told = [time(end) for end in ends]
        axes.set_title(f"communication of a step at {found.link.name}")
    axes.set_ylim(0, max(ends) * 1.2)
    for at, (end, words) in enumerate(zip(ends, told, strict=True)):
        axes.annotate(
            words, (at, end), (0, 3), textcoords="offset points", ha="center", va="bottom"
        )
    axes.set_xlabel("nodes")
    axes.set_ylabel("seconds")
