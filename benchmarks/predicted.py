"""The time that `ddpgen predict` gives for a step over a slow link, against the measured time.

The hosts are those of the rig, one process each, on links of a known rate. The job is a gpt of 25 million parameters,
with 102 MB of gradients a step. As a user would, the script takes the compute time of a step from a run with as many
processes on links without a limit. It takes the efficiency from `ddpgen probe` on the slow link: the bus bandwidth of
the job's reduction at the largest size, over the rate.

Needs root and Linux, as the rig does, some GB of room in TMPDIR (/dev/shm), and a machine with nothing else to do.
Exits with 0 if everything ran, whatever the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

WARM_UP = 2
GPT = {"depth": 8, "width": 512, "heads": 8, "seq_len": 16, "dropout": 0.0, "max_bytes": 20_000}


def main() -> None:
    options = parse_arguments()
    rows = []
    for hosts in options.hosts:
        names = [f"h{i}" for i in range(hosts)]
        with Rig([Host(name) for name in names]) as rig, tempfile.TemporaryDirectory() as place:
            free = run(rig, Path(place) / "free", options.steps)
            compute_s = statistics.median(row["seconds"] - min(row["waiting"]) for row in free)
            for rate in options.rates:
                for host in rig:
                    host.rate(rate)
                here = Path(place) / f"at-{rate:g}"
                measured = [row["seconds"] for row in run(rig, here, options.steps)]
                rows.append(compare(rig, here, rate, compute_s, statistics.median(measured)))
                print_row(rows[-1])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 1000], help="Mbit/s")
    parser.add_argument("--steps", type=int, default=8, help="of each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def run(rig: Rig, place: Path, steps: int) -> list[dict[str, Any]]:
    """Train on these hosts. Return the rows of all ranks' times, without the first steps."""
    names = [host.name for host in rig]
    train = {
        "workload": "gpt", "args": GPT, "steps": steps, "log_every": "1 steps", "lr": 0.01,
        "global_batch_size": len(names), "micro_batch_size": 1,
    }  # fmt: skip
    spec = fleet.spec(
        names, train, name=place.name, checkpoint={"every": "1000 steps"},
        rendezvous={"timeout": "60s", "collective_timeout": "300s"},
    )  # fmt: skip
    driver = fleet.Driver(rig, jobs.render(place, spec, target="hosts"))
    if driver.end():
        sys.exit(driver.output)
    head = rig[names[0]]
    metrics = head.path(f"{head.home}/ddpgen/checkpoints/{place.name}/metrics.jsonl")
    return [row for row in jobs.rows(metrics.parent, "ranks") if row["step"] > WARM_UP]


def compare(
    rig: Rig, place: Path, rate: float, compute_s: float, measured_s: float
) -> dict[str, Any]:
    """Probe the link and predict the step of the job in `place`."""
    found = json.loads(ddpgen(rig, place, "probe", "job.yaml", "--target", "hosts", "--json"))
    # Two ranks with one micro-batch each take DDP's own all-reduce.
    kind = "tree" if found["processes"] > 2 else "all-reduce"
    bus = [c["bus_bandwidth"] for c in found["collectives"] if c["kind"] == kind][-1]
    efficiency = min(1.0, round(bus * 8 / (rate * 1e6), 3))
    said = ddpgen(
        rig, place, "predict", "job.yaml", "--target", "hosts", "--json", "--link", f"{rate:g} Mbit/s",
        "--efficiency", str(efficiency), "--step-time", f"{compute_s * 1e3:.3f}ms",
    )  # fmt: skip
    predicted = json.loads(said)
    step_s = next(e["step"] for e in predicted["links"] if e["link"] == predicted["link"])["step_s"]
    return {
        "hosts": found["processes"], "rate_mbit_s": rate, "efficiency": efficiency,
        "compute_s": compute_s, "predicted_s": step_s, "measured_s": measured_s,
        "ratio": measured_s / step_s,
    }  # fmt: skip


def ddpgen(rig: Rig, place: Path, *words: str) -> str:
    env = {**os.environ, **fleet.way_in(rig), "PYTHONPATH": str(jobs.ROOT)}
    command = [sys.executable, "-m", "ddpgen", *words]
    done = subprocess.run(
        command, env=env, cwd=place, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['hosts']} hosts, {row['rate_mbit_s']:5g} Mbit/s: compute {row['compute_s']:.3f} s, efficiency "
        f"{row['efficiency']:.2f}, predicted {row['predicted_s']:6.2f} s, measured {row['measured_s']:6.2f} s, "
        f"ratio {row['ratio']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
