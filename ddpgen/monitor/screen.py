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
_WIDEST_BAR, _MOST_LOSSES = 40, 60
_OLD_S = 10.0  # the age of an older step gets a line
_LABEL_WIDTH = 21  # columns: the longest name, and two gaps
_OF_SEVERAL = ("step", "loss", "time left")  # the rows of each directory if there are several


class View(NamedTuple):
    """The content of the screen.

    `title`: the job and its tier. `taken`: the time of day of the status. `trouble`: why there has been no newer
    status for `silent_s`.
    """

    title: str
    status: JobStatus
    taken: str
    every_s: int
    trouble: str = ""
    silent_s: float = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = _Drawing(options.max_width, options.ascii_only)
        yield Rule(Text(self.title, "bold"), align="left", style="dim")
        reports = self.status.reports
        for part in self.status.said:
            if isinstance(part, Report):
                yield from draw.report(part, several=len(reports) > 1)
            else:
                yield Text(part)
        if self.trouble:
            since = f"no answer for {clock(self.silent_s)}; this is of {self.taken}: {self.trouble}"
            yield Text(since, "bold red")
        else:
            goes_on = f", every {self.every_s} s; Ctrl-C ends the watching only"
            yield Text(f"{self.taken}{'' if self.status.over else goes_on}", "dim")


class _Drawing(NamedTuple):
    """The width of the terminal in columns, and whether it shows only ASCII."""

    width: int
    ascii_only: bool

    def report(self, report: Report, several: bool) -> RenderResult:
        """Draw one checkpoint directory; if it is one of `several`, only its main rows."""
        killed = report.over and report.found.word == "running"
        style = _KILLED if killed else _STYLES.get(report.found.word, "bold")
        yield Text.assemble((report.state(), style), "  ", (report.place, "dim"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, said in report.rows().items():
            if not several or name in _OF_SEVERAL:
                grid.add_row(name, self._row(name, said, report))
            if name == "step" and (age := report.facts().get("step_age_s", 0.0)) >= _OLD_S:
                grid.add_row("last step", Text(ago(age)))
        yield grid
        for remark in report.remarks():
            yield Text(remark)
        if report.still_s is not None:
            since = clock(report.still_s)
            yield Text(f"no step for {since}; ddpgen doctor says why", "bold yellow")

    def _row(self, name: str, said: str, report: Report) -> RenderableType:
        found = report.found
        if name == "step" and found.last_step:
            return self._bar(said, report.facts()["step"], found.last_step)
        if name == "loss":
            room = self.width - len(said) - _LABEL_WIDTH
            style = "" if report.found.loss is not None else "bold red"
            return Text.assemble((said, style), "  ", (self.sparkline(found.losses, room), "cyan"))
        return Text(said, "yellow" if name in ("slow rank", "restarts") else "")

    def _bar(self, said: str, step: int, last: int) -> RenderableType:
        said = f"{said}  {min(1, step / last):.0%}"
        width = min(_WIDEST_BAR, self.width - len(said) - _LABEL_WIDTH)
        if width < 10:
            return Text(said)
        bar = ProgressBar(
            last, step, width, style="dim", complete_style="cyan", finished_style="green"
        )
        row = Table.grid(padding=(0, 2))
        row.add_row(bar, Text(said))
        return row

    def sparkline(self, losses: Sequence[float], room: int) -> str:
        """Return a line of characters for the newest losses, whose heights show their sizes; x for nan or inf."""
        shown = losses[-max(1, min(room, _MOST_LOSSES)) :]
        levels = _ASCII_LEVELS if self.ascii_only else _LEVELS
        finite = [loss for loss in shown if math.isfinite(loss)]
        least, most = min(finite, default=0.0), max(finite, default=0.0)
        step = (most - least) / (len(levels) - 1) or 1.0
        return "".join(
            levels[round((loss - least) / step)] if math.isfinite(loss) else "x" for loss in shown
        )


def live(view: Callable[[], View]) -> AbstractContextManager[Live]:
    """Return a screen that draws view() once a second and at each refresh(). The last drawing stays at the end."""
    return Live(get_renderable=view, refresh_per_second=1)
