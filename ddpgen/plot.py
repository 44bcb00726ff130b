"""Pictures: a figure, and its file. Owns all use of matplotlib, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpgen.errors import FileTroubleError, TargetUnavailableError

BLUE, RED, AMBER, GREEN = "#4878a8", "#d1603d", "#e0a458", "#5a9367"


def need() -> None:
    """Raises TargetUnavailableError where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise TargetUnavailableError(
            "--plot needs matplotlib, which is not installed: pip install 'ddpgen[plot]', or pip install matplotlib"
        ) from None


def charts(count: int, width: float, height: float, title: str) -> tuple[Any, Any]:
    """A figure and so many axes beside each other. Raises TargetUnavailableError."""
    need()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained", facecolor="white")
    figure.suptitle(title, fontweight="bold")
    grid = figure.subplots(1, count, squeeze=False)[0]
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid


def legend(figure: Any, axes: Any) -> None:
    """Below all charts, of what one of them shows."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def save(figure: Any, file: Path) -> None:
    """Into `file`, as its suffix says. Raises FileTroubleError."""
    from matplotlib import rc_context

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
