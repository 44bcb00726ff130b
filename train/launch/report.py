"""The report page of a job that is done. A separate process writes it, so that it cannot change how the job ends."""

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
    """Write the report page of the checkpoint directory and print its path.

    Do nothing after a short run, or if metrics.jsonl or matplotlib is missing.
    """
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
