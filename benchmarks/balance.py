"""Two processes, and one of them computes at half speed: their step with the even split, and with share: auto.

    python benchmarks/balance.py [--blocks 3] [--processes 2]

Three jobs take turns, a launch each. In the first job both processes compute at full speed. In the second job rank 0
computes at half speed with the even split, in the third job with share: auto. A micro-batch is a pause of --seconds,
and of twice as long on the slow rank, so that other work on this machine changes the figures little. In the third job,
rank 0 is at full speed again after step 40.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS, SETTLED, LIFTED = 70, 25, 40
WORKLOAD = """
import dataclasses, time
from train.workloads import toy

def build(context, *, seconds, until):
    made, step = toy.build(context, hidden=8), [0]

    def loss(model, batch):
        time.sleep(seconds * (2 if context.rank == 0 and step[0] < until else 1))
        return made.loss(model, batch)

    def log(row):
        step[0] = row["step"]

    return dataclasses.replace(made, loss=loss, log=log)
"""
JOBS = {"full speed": (0, ()), "even split": (STEPS, ()), "share: auto": (LIFTED, ("--balance",))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a micro-batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE, too")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in JOBS}
    for _ in range(options.blocks):
        for name in JOBS:
            found[name].append(measure(name, options.processes, options.seconds))
    base = [each["step_s"] for each in found["full speed"]]
    for name, blocks in found.items():
        times = [each["step_s"] for each in blocks]
        ratios = [a / b for a, b in zip(times, base, strict=True)]
        print(
            f"{name:12} {statistics.median(times) * 1e3:7.1f} ms a step, {statistics.median(ratios):.2f} × full speed "
            f"({min(ratios):.2f} … {max(ratios):.2f})"
        )
    for block in found["share: auto"]:
        print(f"  changes: {', '.join(f'step {n}: {counts}' for n, counts in block['changes'])}")
    weights = {each["weights"] for blocks in found.values() for each in blocks}
    print("all weights have the same bits" if len(weights) == 1 else "THE WEIGHTS DIFFER")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(name: str, processes: int, seconds: float) -> dict[str, Any]:
    """Run one job. Return the median seconds of the steps while the slow rank is slow, the changes and the weights."""
    until, more = JOBS[name]
    with tempfile.TemporaryDirectory() as directory:
        workload = Path(directory, "paced.py")
        workload.write_text(WORKLOAD)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
            f"--nproc-per-node={processes}", "-m", "train", "run", f"--workload={workload}:build", f"--steps={STEPS}",
            f"--global-batch-size={6 * processes}", "--micro-batch-size=1", "--optimizer=sgd", f"--arg=seconds={seconds}",
            f"--arg=until={until}", f"--checkpoint-dir={directory}/run", *more,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        lines = Path(directory, "run/metrics.jsonl").read_text().splitlines()
        manifest = json.loads(Path(directory, "run/manifest.json").read_text())
    rows = [json.loads(line) for line in lines]
    ends = [
        row["time"] for row in rows if row["kind"] == "step" and SETTLED <= row["step"] <= LIFTED
    ]
    return {
        "step_s": statistics.median(b - a for a, b in itertools.pairwise(ends)),
        "changes": [(row["step"], row["shares"]) for row in rows if row["kind"] == "shares"],
        "weights": manifest["starts"][-1]["weights"],
    }


if __name__ == "__main__":
    main()
