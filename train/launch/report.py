"""The report of a job that is done: a process of its own writes it, so that nothing of it changes how the job ends."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from pathlib import Path

from train.base.console import say

# A shorter run is not worth the seconds that drawing takes.
_WORTH_S = 60.0
_DRAW_S = 60.0


def say_report(directory: Path, lasted_s: float) -> None:
    """Write the report of the checkpoint directory and print its path, if the run was long enough and the curves can
    be drawn here."""
    if lasted_s < _WORTH_S or importlib.util.find_spec("matplotlib") is None:
        return
    if not (directory / "metrics.jsonl").exists():
        return
    file = directory / "report.html"
    argv = [sys.executable, "-m", "train", "report", "--output", str(file), "--", str(directory)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, capture_output=True, timeout=_DRAW_S, check=False)
        if done.returncode == 0:
            say(f"what happened, as a page: {file}")
