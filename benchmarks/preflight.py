"""The cost of a healthy preflight before a launch, on 2 to 8 hosts of the rig, against bare interpreters.

Every round first runs a bare interpreter on each host, as the floor, and then the preflight as a launch does, in two
ways. All hosts share the processors of this machine. Real hosts have processors of their own, so the cost of a real
launch lies between the figures of the two ways:

- apart: one host starts every 0.4 s. The figure is the time from the last start to the last end. By then the start
  of the other hosts is over, as on processors of their own, but the checks of links still share the processors.
- at once: all hosts start at the same moment. The figure is the time from the first start to the last end.

Needs root and Linux, as the rig does.

Exits with 0 if everything ran and the preflight found nothing, whatever the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.real.rig import Host, Rig

ROOT = Path(__file__).resolve().parent.parent
PORT = 29500
TIMEOUT_S = 60
APART_S = 0.4
# The modules are compiled, as at a bundle's second start.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": "/tmp/pycache"}


def main() -> int:
    """Measure, print the table, write the JSON."""
    options = parse_arguments()
    rows = []
    for count in options.hosts:
        names = [f"h{i}" for i in range(count)]
        with Rig([Host(name) for name in names]) as rig:
            rows.append(measure(rig, names, options.rounds))
        print_row(rows[-1])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--rounds", type=int, default=21, help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def measure(rig: Rig, names: Sequence[str], rounds: int) -> dict[str, object]:
    """Return the seconds of each round."""
    bare, apart, at_once = list[float](), list[float](), list[float]()
    for i in range(rounds + 1):
        figures = [
            together(rig, names, lambda _: [sys.executable, "-c", "pass"], 0.0),
            together(rig, names, lambda name: preflight(rig, names, name), APART_S),
            together(rig, names, lambda name: preflight(rig, names, name), 0.0),
        ]
        if i:  # the first one warms the caches
            for row, figure in zip((bare, apart, at_once), figures, strict=True):
                row.append(figure)
    return {"hosts": len(names), "bare_s": bare, "apart_s": apart, "at_once_s": at_once}


def together(
    rig: Rig, names: Sequence[str], command: Callable[[str], list[str]], apart_s: float
) -> float:
    """Run a command on all hosts. Return the seconds from the last start (from the first, if not apart) to the end."""
    running = list[subprocess.Popen[str]]()
    began = time.perf_counter()
    for name in names:
        if apart_s and running:
            time.sleep(apart_s)
            began = time.perf_counter()
        running.append(
            rig[name].popen(
                command(name), cwd=str(ROOT), env=BYTECODE, stderr=subprocess.PIPE, text=True
            )
        )
    for name, process in zip(names, running, strict=True):
        said = process.communicate(timeout=TIMEOUT_S)[1]
        if process.returncode != 0:
            raise RuntimeError(f"{name} ended with {process.returncode}: {said}")
    return time.perf_counter() - began


def preflight(rig: Rig, names: Sequence[str], name: str) -> list[str]:
    settings = {
        "job": "bench",
        "host_name": name,
        "checkpoint_dir": f"{rig[name].home}/checkpoints",
        "head": rig[names[0]].address,
        "port": PORT,
        "node_rank": names.index(name),
        "nodes": len(names),
        "min_nodes": len(names),
        "world_size": len(names),
        "addresses": {each: rig[each].address for each in names},
    }
    return [sys.executable, "-m", "tests.train.preflight.program", json.dumps(settings)]


def print_row(row: dict[str, object]) -> None:
    shown = []
    for key in ("bare_s", "apart_s", "at_once_s"):
        seconds = row[key]
        assert isinstance(seconds, list)
        low, high = min(seconds), max(seconds)
        shown.append(f"{key[:-2]} {statistics.median(seconds):.3f} s ({low:.3f}-{high:.3f})")
    print(f"{row['hosts']} hosts: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
