"""Goodput against the interval between checkpoints: a training that loses its machine again and again.

A scale model, in seconds instead of hours. Each interval gets the same losses, drawn in advance with the mean M. At
each loss the process is killed and the machine's checkpoint directory deleted, and the next start goes on from the
store. Goodput is the number of steps done at the end, times the seconds of an undisturbed step, over the time that went
by. The table also has the goodput by the arithmetic of docs/numbers.md for the measured C and R. The lower figure holds
if uploads stop the training, the upper figure if uploads cost nothing.

Exits with 0 if everything ran, whatever the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train.checkpoint.checkpointer import best_interval

ROOT = Path(__file__).resolve().parent.parent

# Some 120 MB of weights and moments, so that a checkpoint takes a while.
MODEL = ("features=1000", "hidden=10000")
END = 1_000_000
LEAST_S = 2.0


def main() -> int:
    """Measure, print the table, write the JSON."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        step_s, cost_s, start_s = calibrated(place)
        best = best_interval(cost_s, options.mean)
        print(
            f"a step {step_s * 1000:.0f} ms, a checkpoint {cost_s:.2f} s (C), a start {start_s:.1f} s (R), "
            f"a loss every {options.mean:g} s (M): sqrt(2 C M) is {best:.1f} s",
            flush=True,
        )
        intervals = sorted({*options.intervals, round(best, 1)})
        measured: dict[float, list[float]] = {each: [] for each in intervals}
        for turn in range(options.rounds):
            step_s = undisturbed(place)
            losses = drawn(options.seed + turn, options.mean, options.seconds)
            for (
                interval
            ) in intervals:  # interleaved, so that other work on the machine disturbs all intervals
                shutil.rmtree(place, ignore_errors=True)
                done, elapsed = lived(place, interval, losses, options.seconds)
                measured[interval].append(done * step_s / elapsed)
    rows = [
        row(interval, figures, options.mean, cost_s, start_s, step_s)
        for interval, figures in measured.items()
    ]
    for each in rows:
        print(
            f"{each['interval_s']:6.1f} s  goodput {each['goodput']:4.0%} "
            f"({min(each['all']):.0%}-{max(each['all']):.0%})  "
            f"arithmetic {each['least']:4.0%} to {each['most']:4.0%}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--intervals", type=float, nargs="+", default=[1.0, 15.0, 40.0], help="seconds"
    )
    parser.add_argument("--mean", type=float, default=40.0, help="seconds between losses, M")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each life")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the losses")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def drawn(seed: int, mean_s: float, until_s: float) -> list[float]:
    """Return the times since the first start at which the machine is lost."""
    chance = random.Random(seed)
    losses: list[float] = []
    at = chance.expovariate(1 / mean_s)
    while at < until_s:
        losses.append(at)
        at += max(LEAST_S, chance.expovariate(1 / mean_s))
    return losses


def start(place: Path, interval_s: float) -> subprocess.Popen[bytes]:
    place.mkdir(parents=True, exist_ok=True)
    words = ["--workload=toy", f"--steps={END}", "--global-batch-size=8", "--micro-batch-size=8"]
    words += [f"--checkpoint-dir={place}/machine", f"--checkpoint-store={place}/store"]
    words += [f"--checkpoint-every={interval_s}s", *(f"--arg={each}" for each in MODEL)]
    command = [sys.executable, "-m", "train", "run", *words]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"DDPGEN_JOB": "goodput"}, **quiet)


def lived(place: Path, interval_s: float, losses: list[float], seconds: float) -> tuple[int, float]:
    """Train for `seconds` with these losses. Return the steps that are done, and the seconds that have gone by."""
    began = time.monotonic()
    for until in [*losses, seconds]:
        process = start(place, interval_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, began + until - time.monotonic()))
            raise RuntimeError(f"the training ended by itself with code {process.returncode}")
        elapsed = time.monotonic() - began
        done = max((row["step"] for row in rows_of(place)), default=0)
        process.kill()
        process.wait()
        shutil.rmtree(place / "machine")
    return done, elapsed


def rows_of(place: Path) -> list[dict[str, Any]]:
    """Return the rows of the steps that the run has recorded so far."""
    with contextlib.suppress(FileNotFoundError):
        lines = (place / "machine/metrics.jsonl").read_text().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row["kind"] == "step"]
    return []


def calibrated(place: Path) -> tuple[float, float, float]:
    """Return the seconds of a step, of a checkpoint until it is in the store, and of a start."""

    step_s = undisturbed(place)
    with running(place, 1.0) as began:
        markers: list[Path] = []
        while len(markers) < 3:
            time.sleep(0.02)
            markers = sorted(place.glob("store/step-*/checkpoint.json"))
        done = {each["step"]: each["time"] for each in rows_of(place)}
        costs = [each.stat().st_mtime - done[int(each.parent.name[5:])] for each in markers]
    shutil.rmtree(place / "machine")
    with running(place, 3600.0) as began:
        start_s = rows_since(place, began, 1)[0]["time"] - began
    shutil.rmtree(place)
    return step_s, statistics.median(costs), start_s


def undisturbed(place: Path) -> float:
    """Return the seconds of a step without a loss and without a checkpoint."""
    with running(place, 3600.0) as began:
        times = [each["time"] for each in rows_since(place, began, 110)][10:]
    shutil.rmtree(place)
    return statistics.median(float(after - before) for before, after in itertools.pairwise(times))


def rows_since(place: Path, began: float, count: int) -> list[dict[str, Any]]:
    while len(rows := [each for each in rows_of(place) if each["time"] >= began]) < count:
        time.sleep(0.02)
    return rows


@contextlib.contextmanager
def running(place: Path, interval_s: float) -> Iterator[float]:
    began = time.time()
    process = start(place, interval_s)
    yield began
    process.kill()
    process.wait()


def row(
    interval: float, figures: list[float], mean: float, cost: float, begin: float, step: float
) -> dict[str, Any]:
    kept = max(0.0, (mean - interval / 2 - cost - begin) / mean)
    return {
        "interval_s": interval,
        "goodput": statistics.median(figures),
        "all": figures,
        "least": kept * interval / (interval + cost),
        "most": kept,
        "step_s": step,
        "cost_s": cost,
        "start_s": begin,
        "mean_s": mean if math.isfinite(mean) else None,
    }


if __name__ == "__main__":
    sys.exit(main())
