"""`ddpgen status --watch`: ask for the status again and again, and show it, until the job has ended.

Owns the times of the questions, and the reaction to a missing answer. On a terminal `screen` shows the status;
elsewhere this module prints a line for each change.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.report import JobStatus

_log = logging.getLogger(__name__)
_SHOWN_ROWS = ("step", "loss", "speed", "time left")  # the values in a line

AskStatus = Callable[[], JobStatus]
# A status, or why it is missing; the time of the question.
Answer = tuple[JobStatus | None, str, float]


def watch(ask: AskStatus, title: str, every_s: int) -> None:
    """Show the status until the job has ended. Raise KeyboardInterrupt; TargetUnavailableError if even the first
    question gets no answer."""
    gc.enable()  # main() disables it for commands that end at once
    _exit_in_order()
    answers = _answers(ask, every_s)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _on_screen(answers, title, every_s)
    else:
        _in_lines(answers)


def _answers(ask: AskStatus, every_s: float) -> Iterator[Answer]:
    """Yield a status at each interval. The last one is of a job that has ended."""
    answered = False
    while True:
        began = time.time()
        try:
            status = ask()
        except TargetUnavailableError as error:
            if not answered:
                raise
            yield None, str(error), began
        else:
            answered = True
            yield status, "", began
            if status.ended:
                return
        # A slow answer means a busy server, so the pause after the answer is at least half an interval.
        time.sleep(max(every_s / 2, every_s - (time.time() - began)))


def _in_lines(answers: Iterator[Answer]) -> None:
    before, silent = dict[str, object](), False
    for status, trouble, asked_at in answers:
        if status is None:
            if not silent:
                _log.warning(f"{_time_of_day(asked_at)} no answer, going on: {trouble}")
            silent = True
            continue
        silent = False
        now = {key: value for key, value, _ in _changes(status)}
        for key, value, line in _changes(status):
            if key not in before or before[key] != value:
                print(_time_of_day(asked_at), line, flush=True)
        before = now


def _changes(status: JobStatus) -> Iterator[tuple[str, object, str]]:
    """Yield a key, a value and a line for each part of the status. A new value prints the line."""
    if status.jobs:
        yield "", status.jobs, status.jobs
    for report in status.reports:
        rows, state = report.rows(), report.headline()
        values = [f"{name} {rows[name]}" for name in _SHOWN_ROWS if name in rows]
        line = f"{report.location}: {', '.join([state, *values])}"
        yield report.location, (state, rows.get("step")), line


def _on_screen(answers: Iterator[Answer], title: str, every_s: int) -> None:
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]  # Python took UTF-8
    from ddpgen.monitor import screen

    status, trouble, asked_at = next(answers)
    shown = status

    def view() -> screen.View:
        assert shown is not None  # or next() would have raised
        return screen.View(
            title, shown, _time_of_day(asked_at), every_s, trouble, time.time() - asked_at
        )

    with screen.live(view) as live:
        for status, new_trouble, new_asked_at in answers:
            trouble = new_trouble
            if status is not None:
                shown, asked_at = status, new_asked_at
            live.refresh()


def _exit_in_order() -> None:
    """Exit in order on SIGTERM, so that `timeout` does not leave the terminal without a cursor."""

    def exit_with_signal(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, exit_with_signal)


def _time_of_day(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))
