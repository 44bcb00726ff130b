"""A prediction as a picture: the step on each link, and over node counts.

Owns all use of matplotlib, which is an extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.plan.quantities import time
from ddpgen.predict import Prediction, counted

_COMPUTE, _EXPOSED = "#4878a8", "#d1603d"


def write(found: Prediction, file: Path) -> None:
    """Draw into `file`, as its suffix says. Raises TargetUnavailableError, FileTroubleError."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise TargetUnavailableError(
            "--plot needs matplotlib, which is not installed: pip install 'ddpgen[plot]', or pip install matplotlib"
        ) from None
    charts = [draw for draw, rows in ((_links, found.links), (_nodes, found.nodes[1:])) if rows]
    if not charts:
        raise TargetUnavailableError(
            "--plot: a single process sends nothing, so there is nothing to draw"
        )
    figure = Figure(figsize=(5.6 * len(charts), 4.4), layout="constrained", facecolor="white")
    figure.suptitle(f"{found.name} on {found.tier}", fontweight="bold")
    grid = figure.subplots(1, len(charts), squeeze=False)[0]
    for axes, draw in zip(grid, charts, strict=True):
        draw(axes, found)
        axes.spines[["top", "right"]].set_visible(False)
    if found.compute.micro_batch_s:
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    # Text that stays text, and the same bytes each time.
    same = {"svg.fonttype": "none", "svg.hashsalt": "ddpgen"}
    about = {"Date": None} if file.suffix == ".svg" else {}
    try:
        with rc_context(same):
            figure.savefig(file, dpi=150, metadata=about)
    except OSError as error:
        raise FileTroubleError(
            f"{file}: {error.strerror}; name another file after --plot"
        ) from None


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
