"""The benchmarks run: each with the least work that it can be given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "words",
    [
        ["step.py", "--only=0.8M", "--blocks=1", "--seconds=0.1"],
        ["checkin.py", "--runs=1", "4"],
        ["balance.py", "--blocks=1", "--seconds=0.002"],
        ["checkpoint.py", "--blocks=1", "--hidden=500"],
        ["recovery.py", "--rounds=1"],
    ],
    ids=lambda words: words[0],
)
def test_it_measures(words: list[str], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    name, *options = words
    command = [sys.executable, f"benchmarks/{name}", *options, f"--json={figures}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=280)
    assert json.loads(figures.read_text())
