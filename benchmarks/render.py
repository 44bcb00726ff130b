"""Cold start of `ddpgen render` against torchx and submitit, and how it grows with the hosts.

Each of them turns the description of a job into a file that a scheduler runs, in a fresh process each time, as a
user types it. The benchmark installs torchx from the user's package index into an environment of its own under
build/bench/. The runs are interleaved (A B C, A B C, …), so that other work on the machine disturbs all of them alike.
Our floor is the import of click, PyYAML and Jinja2. If this Python has submitit (pip install submitit), it takes part
and turns one job into an sbatch script, in memory.

Then one job is rendered for more and more hosts: twice the hosts, twice the time.

Exits with 0 if everything ran, whatever the figures. The reader judges them, or a test that reads the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TORCHX = "torchx==0.7.0"
SUBMITIT = """
from submitit.slurm.slurm import _make_sbatch_string
print(_make_sbatch_string("python train.py", "logs", nodes=2, ntasks_per_node=4, time=60))
"""
TRAIN = """\
name: bench
train: {{workload: gpt, steps: 300, global_batch_size: {batch}, micro_batch_size: 1}}
targets:
"""
TIERS = (
    TRAIN.format(batch=32)
    + """\
  local: {procs_per_node: 2}
  hosts: {hosts: [desk, laptop]}
  slurm: {nodes: 2, time: 1h}
  sky: {nodes: 2, infra: aws, cpus: 8+, bucket: s3://bench-checkpoints}
"""
)
FLOOR, ALL, THEIRS = "import click yaml jinja2", "ddpgen render, all tiers", "submitit, one job"
TIMEOUT_S = 120

# Times one command and prints "wall rss rc". It runs under `python -S -E` and imports next to
# nothing, because Linux counts the memory of the process that forked, from fork to exec, into the
# child's peak: measured from this program, every command would look at least as large as this program.
# posix_spawn (vfork) has the same trait, but the memory of a parent of 8 MB does not matter.
STOPWATCH = """
import os, sys, time
quiet = os.open(os.devnull, os.O_RDWR)
began = time.perf_counter()
actions = [(os.POSIX_SPAWN_DUP2, quiet, 0), (os.POSIX_SPAWN_DUP2, quiet, 1)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - began, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kibibytes


@dataclass(frozen=True)
class Contestant:
    """A command that is run again and again, each time after `prepare`."""

    name: str
    command: Sequence[str]
    cwd: Path
    prepare: Callable[[], None] = lambda: None
    wall_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    def run_once(self) -> None:
        """Measure one run; raises RuntimeError with what the command printed if it fails."""
        self.prepare()
        stopwatch = [sys.executable, "-S", "-E", "-c", STOPWATCH]
        done = subprocess.run(
            [*stopwatch, *self.command],
            cwd=self.cwd,
            env=user_environment()
            | {"TMPDIR": str(self.cwd.parent)},  # a dry run of torchx fills it
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or not done.stdout.endswith(" 0\n"):
            raise RuntimeError(f"{self.name}: {' '.join(self.command)}\n{done.stdout}{done.stderr}")
        wall, rss, _ = done.stdout.split()
        self.wall_s.append(float(wall))
        self.rss_bytes.append(int(rss) * RSS_UNIT)


def user_environment() -> dict[str, str]:
    """Return the environment without variables that make Python start faster or slower than for a user."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def main() -> int:
    """Set up, measure, print the table, write the JSON."""
    options = parse_arguments()
    torchx = torchx_environment(options.torchx) / "torchx"
    with tempfile.TemporaryDirectory(prefix="ddpgen-bench-") as scratch:
        contestants = entries(options.spec.resolve(), torchx, Path(scratch))
        try:
            interleave(contestants, options.runs)
            scaling = [many_hosts(count, Path(scratch)) for count in options.hosts]
        except (RuntimeError, subprocess.TimeoutExpired) as failure:
            print(f"a contestant did not run: {failure}", file=sys.stderr)
            return 1
    figures = report(contestants) | {"scaling": scaling}
    print(table(figures))
    print(scaling_table(figures["scaling"]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, default=ROOT / "examples/gpt.yaml")
    parser.add_argument("--runs", type=int, default=21, help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--hosts",
        type=int,
        nargs="+",
        default=[250, 500, 1000],
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--torchx", type=Path, help=f"an environment that holds {TORCHX} (default: make one)"
    )
    return parser.parse_args()


def torchx_environment(given: Path | None) -> Path:
    """Return the folder with torchx' console script. Install torchx first if necessary."""
    if given:
        return given / "bin"
    prefix = ROOT / "build/bench" / TORCHX.replace("==", "-")
    if not (prefix / "complete").exists():
        print(f"installing {TORCHX} into {prefix.relative_to(ROOT)}", file=sys.stderr)
        venv.create(prefix, with_pip=True, clear=True)
        pip = [str(prefix / "bin/python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, TORCHX], check=True, timeout=900)
        (prefix / "complete").touch()
    return prefix / "bin"


def entries(spec: Path, torchx: Path, scratch: Path) -> list[Contestant]:
    """Return the commands to compare. Each runs in a folder of its own, like a user's project."""
    ours = console_script()
    folder = {name: scratch / name for name in ("bare", "fresh", "again", "all", "torchx")}
    for path in folder.values():
        path.mkdir()
    tiers = scratch / "tiers.yaml"
    tiers.write_text(TIERS)
    (folder["torchx"] / "s.py").write_text("print('hello')\n")
    render = [ours, "render", str(spec), "--target", "local"]
    dry_run = [str(torchx), "run", "--dryrun", "--scheduler"]
    job = ["dist.ddp", "--script", "s.py", "-j"]
    fresh = folder["fresh"] / "build"
    everywhere = folder["all"] / "build"
    python = [sys.executable, "-c"]
    submitit = Contestant(THEIRS, [*python, SUBMITIT], folder["bare"])
    return [
        Contestant("python -c pass", [*python, "pass"], folder["bare"]),
        Contestant(FLOOR, [*python, "import click, yaml, jinja2"], folder["bare"]),
        Contestant(
            ALL,
            [ours, "render", str(tiers), "--target", "all"],
            folder["all"],
            prepare=lambda: shutil.rmtree(everywhere, ignore_errors=True),
        ),
        *([submitit] if find_spec("submitit") else []),
        Contestant(
            "ddpgen render, first",
            render,
            folder["fresh"],
            prepare=lambda: shutil.rmtree(fresh, ignore_errors=True),
        ),
        Contestant("ddpgen render, again", render, folder["again"]),
        Contestant("torchx --dryrun local", [*dry_run, "local_cwd", *job, "1x2"], folder["torchx"]),
        Contestant("torchx --dryrun slurm", [*dry_run, "slurm", *job, "2x4"], folder["torchx"]),
    ]


def many_hosts(count: int, scratch: Path) -> dict[str, float]:
    """Return the fastest of three renders of one job for `count` hosts, and the smallest peak memory."""
    folder = scratch / f"hosts-{count}"
    folder.mkdir()
    listed = "".join(f"    - {{name: n{i}, ssh: me@node{i}, nic: eth0}}\n" for i in range(count))
    # With GPUs, because then `backend: auto` depends on every host.
    (folder / "job.yaml").write_text(
        TRAIN.format(batch=8 * count)
        + "  hosts:\n    gpus_per_node: 8\n    procs_per_node: 8\n    hosts:\n"
        + "".join(f"  {line}\n" for line in listed.splitlines())
    )
    render = Contestant(
        f"{count} hosts",
        [console_script(), "render", "job.yaml", "--target", "hosts"],
        folder,
        prepare=lambda: shutil.rmtree(folder / "build", ignore_errors=True),
    )
    for _ in range(3):
        render.run_once()
    shutil.rmtree(folder)
    return {"hosts": count, "wall_s": min(render.wall_s), "rss_mib": min(render.rss_bytes) / 2**20}


def console_script() -> str:
    """Return the installed `ddpgen`. A user types this, not `python -m`, so its start-up code counts."""
    beside = Path(sys.executable).with_name("ddpgen")
    found = str(beside) if beside.exists() else shutil.which("ddpgen")
    if not found:
        sys.exit("no ddpgen beside this Python: run this by `make bench`, or install the checkout")
    return found


def interleave(contestants: Sequence[Contestant], runs: int) -> None:
    """Run one uncounted round, which fills caches and writes bytecode, and then the counted rounds."""
    for contestant in contestants:
        contestant.run_once()
        contestant.wall_s.clear()
        contestant.rss_bytes.clear()
    for number in range(runs):
        for contestant in contestants:
            contestant.run_once()
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{runs}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)


def report(contestants: Sequence[Contestant]) -> dict[str, Any]:
    """Return medians, quartiles, and the ratios of our figures to theirs. Below 1, ours are smaller."""
    by_name = {contestant.name: figures_of(contestant) for contestant in contestants}
    ratios = {}
    for ours in ("ddpgen render, first", "ddpgen render, again"):
        for theirs in ("torchx --dryrun local", "torchx --dryrun slurm"):
            ratios[f"{ours} / {theirs}"] = {
                key: by_name[ours][key]["median"] / by_name[theirs][key]["median"]
                for key in ("wall_s", "rss_mib")
            }
    for theirs in (FLOOR, THEIRS):
        if theirs in by_name:
            ratios[f"{ALL} / {theirs}"] = {
                key: by_name[ALL][key]["median"] / by_name[theirs][key]["median"]
                for key in ("wall_s", "rss_mib")
            }
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "baseline": TORCHX,
        "runs": len(contestants[0].wall_s),
        "figures": by_name,
        "ratios": ratios,
    }


def figures_of(contestant: Contestant) -> dict[str, dict[str, float]]:
    return {
        "wall_s": spread(contestant.wall_s),
        "rss_mib": spread([rss / 2**20 for rss in contestant.rss_bytes]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "q1": low, "q3": high, "min": min(values), "max": max(values)}


def table(figures: dict[str, Any]) -> str:
    """Return a table for people: milliseconds and mebibytes, quartiles in brackets."""
    setting = f"{figures['machine']}, Python {figures['python']}"
    lines = [
        f"{figures['runs']} interleaved runs of each, median [quartiles]; {setting}",
        f"{'':26}{'wall, ms':>22}{'peak memory, MiB':>24}",
    ]
    for name, of in figures["figures"].items():
        wall, rss = of["wall_s"], of["rss_mib"]
        ms = f"{1e3 * wall['median']:.1f} [{1e3 * wall['q1']:.1f}–{1e3 * wall['q3']:.1f}]"
        mib = f"{rss['median']:.1f} [{rss['q1']:.1f}–{rss['q3']:.1f}]"
        lines.append(f"{name:26}{ms:>22}{mib:>24}")
    lines.append("")
    for name, ratio in figures["ratios"].items():
        lines.append(f"{name:52}{ratio['wall_s']:.2f}× time, {ratio['rss_mib']:.2f}× memory")
    return "\n".join(lines)


def scaling_table(scaling: Sequence[dict[str, float]]) -> str:
    """Return a table with a row for each number of hosts, and the time for one host."""
    lines = [
        "",
        f"{'hosts':>8}{'wall, s':>12}{'peak memory, MiB':>20}{'time for each host, ms':>26}",
    ]
    for row in scaling:
        each = 1e3 * row["wall_s"] / row["hosts"]
        lines.append(f"{row['hosts']:8}{row['wall_s']:12.2f}{row['rss_mib']:20.1f}{each:26.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
