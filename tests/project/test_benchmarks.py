"""The benchmarks run: each with the least work that it can be given. A job that is lost ends no benchmark."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recovery
from benchmarks.recovery import BARE, Job, Recovery
from tests.project.tree import ROOT


@pytest.mark.nightly
@pytest.mark.timeout(300)
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


# --- the benchmark of recoveries ------------------------------------------------------------------


def test_a_job_that_never_came_back_has_lost_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    recoveries = [Recovery(), Recovery(2.0, 4, {"launch": 0.5, "rendezvous": 1.0}), Recovery()]
    row = recovery.summary("a worker", BARE, recoveries, True)
    assert row["stages"] == {"launch": 0.5, "rendezvous": 1.0}
    recovery.print_row(row, [])
    shown = capsys.readouterr().out
    assert "1 of 3 came back" in shown
    assert "4 steps lost (4 … 4)" in shown


class Lost(Job):
    """Takes a step each time that somebody looks, until its first fault. The first job of all meets none."""

    name, faults = BARE, ("a worker",)

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._lost = False

    def rows(self) -> list[recovery.Row]:
        if not self._lost:
            self._rows.append({"step": len(self._rows) + 1, "time": time.time(), "start": 1})
        return [*self._rows]

    def is_over(self) -> bool:
        return self._lost

    def strike(self, fault: str) -> None:
        self._lost = True

    def mend(self, fault: str) -> None:
        recovery.until(self, 0, self.newest_start(), 1.0)

    def finish(self) -> str:
        if self._lost:
            raise subprocess.TimeoutExpired("the job", 120)
        return "weights"


def test_a_job_that_is_lost_does_not_end_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def jobs(*_: Any) -> list[Job]:
        return [Lost() for _ in range(3)]

    tier: Any = recovery.Tier(jobs, lambda: "", 0.0, 1.0)  # type: ignore[arg-type]
    monkeypatch.setitem(recovery.TIERS, "local", tier)
    (row,) = recovery.measure(argparse.Namespace(tier="local"))
    assert (row["seconds"], row["lost"], row["same_bits"]) == ([None, None], [None, None], False)


def test_no_job_on_this_machine_outlives_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(self: Any) -> None:
        self._process = subprocess.Popen(["sh", "-c", "sleep 100; true"])

    for kind in (recovery.LocalOurs, recovery.LocalBare):
        monkeypatch.setattr(kind, "launch", launch)
    options = argparse.Namespace(pause=0.0, rounds=0)
    with contextlib.ExitStack() as stack:
        both = list(recovery.local(options, stack, tmp_path))
        assert [job.is_over() for job in both] == [False, False]
    assert [job.is_over() for job in both] == [True, True]
