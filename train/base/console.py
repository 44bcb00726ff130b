"""The messages of a run for people: its lines on standard error, and the progress line.

Owns the terminal's cursor, which both share. Knows nothing of the source of the numbers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TextIO

from train.base.scheduler import VARIABLE

# The variable with the names of the job's secrets, separated by commas.
SECRETS = "DDPGEN_SECRETS"
_SHORTEST_SECRET = 6  # characters; a shorter one also occurs within other words


def say(message: str, rank: int | None = None) -> None:
    """Print a message on standard error. `rank`: printed before the message, if it matters which rank prints it."""
    _end_live_line()
    rank_of = "" if rank is None else f" rank {rank}"
    # An exception's text may contain colours or cursor movements: escape them.
    text = "\n".join(plain(line, len(line)) for line in message.split("\n"))
    _print(sys.stderr, f"ddpgen{_time_and_host()}{rank_of}: {text}\n")


def plain(text: str, max_characters: int = 2000) -> str:
    """Return foreign text made safe for a terminal: unprintable characters become `\\x1b` or `\\u202e`, and text longer
    than `max_characters` characters is cut. $NAME replaces the value of the secret NAME."""
    for name in os.environ.get(SECRETS, "").split(","):
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"${name}")
    if len(text) > max_characters:
        text = text[:max_characters] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def say_restart(suffix: str = "") -> None:
    """If torchrun has restarted the training, print that. `suffix`: the end of the line."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if count != "0":
        max_restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "?")
        say(f"restart {count} of {max_restarts}: a worker had failed{suffix}")


def _time_and_host() -> str:
    """Return time and host under Slurm, where the lines of many hosts and starts go into one file; else ""."""
    if not os.environ.get(VARIABLE, "").startswith("slurm "):
        return ""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return f" {time.strftime('%Y-%m-%d %H:%M:%S')} {host}"


# The progress line in which the terminal's cursor stands; there is one cursor for the process.
_live_line: Progress | None = None


def _end_live_line() -> None:
    if _live_line is not None:
        _live_line.end_line()


def _print(out: TextIO | None, text: str) -> None:
    """Write if possible: a closed terminal or a full log disk does not end a run."""
    if out is None:
        return  # started with standard output closed
    with contextlib.suppress(OSError, ValueError):
        out.write(text)
        out.flush()


class Progress:
    """The progress line, updated every `interval_steps`: redrawn in place on a terminal, a new line elsewhere."""

    def __init__(
        self,
        first_step: int,
        last_step: int,
        unit: str,
        units_per_step: int,
        interval_steps: int,
        out: TextIO | None = None,
    ) -> None:
        self._first, self._last = first_step, last_step
        self._unit, self._units_per_step = unit, units_per_step
        self._interval_steps = interval_steps
        self._out: TextIO | None = out or sys.stdout
        self._live = self._out is not None and self._out.isatty()
        self._started_at = self._window_started_at = time.monotonic()
        self._window_step = first_step

    def update(self, step: int, loss: float, lr: float) -> None:
        """Show that `step` steps are complete, if it is time for an update."""
        global _live_line
        due = step % self._interval_steps == 0 or step == self._last
        if not due:
            return
        now = time.monotonic()
        rate = (step - self._window_step) / max(now - self._window_started_at, 1e-9)
        self._window_started_at, self._window_step = now, step
        width = len(str(self._last))
        text = (
            f"step {step:>{width}}/{self._last}  loss {loss:.4f}  lr {lr:.2e}  "
            f"{rate * self._units_per_step:,.0f} {self._unit}/s  {self._remaining_time(step, now)}"
        )
        if self._live:
            _print(self._out, f"\r\x1b[2K{text}")
            _live_line = self
            if step == self._last:
                self.end_line()
        else:
            _print(self._out, text + "\n")

    def end_line(self) -> None:
        """End the live line, so that the next message starts on a line of its own."""
        global _live_line
        if _live_line is self:
            _live_line = None
            _print(self._out, "\n")

    def _remaining_time(self, step: int, now: float) -> str:
        done = step - self._first
        if step >= self._last or done == 0:
            return f"{clock(now - self._started_at)} in all"
        return f"{clock((self._last - step) * (now - self._started_at) / done)} left"


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds for people: 1:02:03 or 2:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
