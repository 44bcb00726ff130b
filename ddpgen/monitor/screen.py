"""A job's status as one screen: a bar for the steps, a line for the losses, and the other values of `status`.

Owns all use of rich, which is an extra. The drawing depends only on a View. Reads no clock, and asks no job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from ddpgen.driver.wording import ago, clock
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.report import JobStatus, Report

try:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text
except ImportError:
    raise TargetUnavailableError(
        "--watch draws with rich, which is not installed: pip install 'ddpgen[watch]', or pip install rich; "
        "in a pipe (| cat) it prints lines, without rich"
    ) from None

# Colours of the terminal's own palette, which suit a light one as well as a dark one.
_KILLED = "bold red"
_STYLES = {
    "running": "bold cyan",
    "done": "bold green",
    "stopped": "bold yellow",
    "failed": _KILLED,
}
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_MAX_BAR, _MAX_LOSSES = 40, 60
_OLD_S = 10.0  # the age of an older step gets a line
_LABEL_WIDTH = 21  # columns: the longest name, and two gaps
_SUMMARY_ROWS = ("step", "loss", "time left")  # the rows of each directory if there are several


class View(NamedTuple):
    """The content of the screen.

    `title`: the job and its tier. `time_of_day`: the time of the status. `trouble`: the reason why no newer status has
    come for `silent_s`.
    """

    title: str
    status: JobStatus
    time_of_day: str
    every_s: int
    trouble: str = ""
    silent_s: float = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = _Drawing(options.max_width, options.ascii_only)
        yield Rule(Text(self.title, "bold"), align="left", style="dim")
        reports = self.status.reports
        for part in self.status.parts:
            if isinstance(part, Report):
                yield from draw.report(part, summary_only=len(reports) > 1)
            else:
                yield Text(part)
        if self.trouble:
            since = f"no answer for {clock(self.silent_s)}; this is of {self.time_of_day}: {self.trouble}"
            yield Text(since, "bold red")
        else:
            goes_on = f", every {self.every_s} s; Ctrl-C ends the watching only"
            yield Text(f"{self.time_of_day}{'' if self.status.ended else goes_on}", "dim")


class _Drawing(NamedTuple):
    """The width of the terminal in columns, and whether it shows only ASCII."""

    width: int
    ascii_only: bool

    def report(self, report: Report, summary_only: bool) -> RenderResult:
        """Draw one checkpoint directory; with `summary_only`, only its main rows."""
        killed = report.ended and report.state.status == "running"
        style = _KILLED if killed else _STYLES.get(report.state.status, "bold")
        yield Text.assemble((report.headline(), style), "  ", (report.location, "dim"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in report.rows().items():
            if not summary_only or name in _SUMMARY_ROWS:
                grid.add_row(name, self._row(name, text, report))
            if name == "step" and (age := report.facts().get("step_age_s", 0.0)) >= _OLD_S:
                grid.add_row("last step", Text(ago(age)))
        yield grid
        for remark in report.remarks():
            yield Text(remark)
        if report.stalled_s is not None:
            since = clock(report.stalled_s)
            yield Text(f"no step for {since}; ddpgen doctor says why", "bold yellow")

    def _row(self, name: str, text: str, report: Report) -> RenderableType:
        state = report.state
        if name == "step" and state.last_step:
            return self._bar(text, report.facts()["step"], state.last_step)
        if name == "loss":
            width = self.width - len(text) - _LABEL_WIDTH
            style = "" if report.state.loss is not None else "bold red"
            return Text.assemble((text, style), "  ", (self.sparkline(state.losses, width), "cyan"))
        return Text(text, "yellow" if name in ("slow rank", "restarts") else "")

    def _bar(self, text: str, step: int, last_step: int) -> RenderableType:
        text = f"{text}  {min(1, step / last_step):.0%}"
        width = min(_MAX_BAR, self.width - len(text) - _LABEL_WIDTH)
        if width < 10:
            return Text(text)
        bar = ProgressBar(
            last_step, step, width, style="dim", complete_style="cyan", finished_style="green"
        )
        row = Table.grid(padding=(0, 2))
        row.add_row(bar, Text(text))
        return row

    def sparkline(self, losses: Sequence[float], width: int) -> str:
        """Return a line of characters for the newest losses, whose heights show their sizes; x for nan or inf."""
        shown = losses[-max(1, min(width, _MAX_LOSSES)) :]
        levels = _ASCII_LEVELS if self.ascii_only else _LEVELS
        finite = [loss for loss in shown if math.isfinite(loss)]
        lowest, highest = min(finite, default=0.0), max(finite, default=0.0)
        step = (highest - lowest) / (len(levels) - 1) or 1.0
        return "".join(
            levels[round((loss - lowest) / step)] if math.isfinite(loss) else "x" for loss in shown
        )


def live(view: Callable[[], View]) -> AbstractContextManager[Live]:
    """Return a screen that draws view() once a second and at each refresh(). The last drawing stays at the end."""
    return Live(get_renderable=view, refresh_per_second=1)
