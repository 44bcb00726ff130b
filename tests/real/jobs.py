"""Jobs as a user starts them: a spec, `ddpgen render`, `bash local.sh`, and what they leave behind.

Owns rendering a spec into a bundle, a running job whose output can be waited for line by line, and
the reading of checkpoints and metrics. Knows nothing of what is being tested.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import py_compile
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from click.testing import CliRunner

from ddpgen.cli import cli
from tests.train.own_script import Fork

ROOT = Path(__file__).resolve().parents[2]
# A start takes a few seconds, on a loaded machine with four processes on two cores many more.
PATIENCE_S = 120.0

GPT: dict[str, Any] = {
    "workload": "gpt",
    "steps": 30,
    "global_batch_size": 8,
    "micro_batch_size": 1,
    "optimizer": "adamw",
    "lr": 1e-3,
    "schedule": "cosine",
    "grad_clip": 1.0,
    "seed": 5,
    "log_every": "1 steps",
    "args": {
        "depth": 2,
        "width": 32,
        "heads": 2,
        "seq_len": 16,
        "dropout": 0.2,
        "max_bytes": 20_000,
    },
}

# The same training with a pause in every loss, of so many seconds as $SLOW says: room for a test to
# do something in the middle of a run whose weights it compares.
SLOW_GPT: dict[str, Any] = {**GPT, "workload": "slow.py:build"}
SLOW = {
    "slow.py": """
import dataclasses
import os
import time

from train.workloads import gpt


def build(context, **args):
    workload = gpt.build(context, **args)

    def loss(model, batch):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return workload.loss(model, batch)

    return dataclasses.replace(workload, loss=loss)
"""
}

# The toy at a pace that costs no processor. A micro-batch takes `pause` seconds, `pace` seconds once the file `until` is
# there, and none once Slurm has started it `starts` times. A spec with this workload brings it along.
PACED = "paced.py:build"
PACED_TOY = """
import dataclasses
import os
import time

from train.workloads import toy


def build(context, *, pause=0.0, pace=0.0, until="", starts=1_000, hidden=32):
    made = toy.build(context, hidden=hidden)
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) >= starts:
        pause = pace = 0

    def loss(model, batch):
        time.sleep(pace if os.path.exists(until) else pause)
        return made.loss(model, batch)

    return dataclasses.replace(made, loss=loss)
"""


def ddpgen(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ddpgen to its end."""
    command = [sys.executable, "-m", "ddpgen", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def begin(place: Path, job: dict[str, Any], *words: str, **env: str) -> subprocess.Popen[str]:
    """Begin a command of ddpgen on this spec, in a terminal's process group of its own.

    f.json gets its figures, and stderr all else.
    """
    (place / "job.yaml").write_text(yaml.safe_dump(job))
    command, *options = words
    with (place / "f.json").open("w") as figures:
        return subprocess.Popen(
            [sys.executable, "-m", "ddpgen", command, "job.yaml", "--json", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), **env}, cwd=place, process_group=0,
            stdin=subprocess.DEVNULL, stdout=figures, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def spec(train: dict[str, Any], **job: Any) -> dict[str, Any]:
    """A job spec: `train` with these job fields around it."""
    return {"name": "job", "python": sys.executable, **job, "train": train}


def render(
    place: Path, job: dict[str, Any], code: dict[str, str] | None = None, target: str = "local"
) -> Path:
    """Write the spec (and the user's files) into `place`, render it; returns the bundle."""
    place.mkdir(parents=True, exist_ok=True)
    if code is None and job.get("train", {}).get("workload") == PACED:
        code = {"paced.py": PACED_TOY}
    for name, text in (code or {}).items():
        (place / name).write_text(text)
    if code:
        job = {**job, "code": sorted(code)}
    (place / "job.yaml").write_text(yaml.safe_dump(job, allow_unicode=True))
    bundle = place / "bundle"
    words = ["render", str(place / "job.yaml"), "--target", target, "-o", str(bundle)]
    # In this process: hundreds of times half a second.
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for place, package in COMPILED.items():
        if (bundle / place).is_dir():
            shutil.copytree(
                compiled(package), bundle / place, dirs_exist_ok=True, copy_function=_link
            )
    return bundle


def _link(source: str, target: str) -> None:
    """Python replaces its files here, it never writes into them."""
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


# The packages of a bundle, and where they come from.
COMPILED = {"train": ROOT / "train", "hosts/driver": ROOT / "ddpgen" / "driver"}


@functools.cache
def compiled(package: Path) -> Path:
    """The __pycache__ of a package, as a first start leaves it in a bundle.

    By content, not by time: a file that a test edits is compiled anew.
    """
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for source in package.rglob("*.py"):
        name = source.relative_to(package)
        cache = importlib.util.cache_from_source(str(place / name))
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        py_compile.compile(str(source), cache, invalidation_mode=mode)
    return place


# How a process is started whose lines are read.
PIPED: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
    "errors": "replace",
}


class Lines:
    """What a process prints, standard error among it: kept, with the times, and can be waited for."""

    process: subprocess.Popen[Any]

    def _listen(self) -> None:
        self.began = time.monotonic()
        self.lines: list[str] = []
        self.times: list[float] = []
        self.ended_at: float | None = None
        self._passed = 0
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self.times.append(time.monotonic())
                    self._news.notify_all()
        with self._news:
            self.ended_at = time.monotonic()
            self._news.notify_all()

    def next(self, within: float) -> str | None:
        """The next line, None at the end. Raises TimeoutError when none comes."""
        with self._news:
            more = lambda: self._passed < len(self.lines) or self.ended_at is not None  # noqa: E731
            if not self._news.wait_for(more, within):
                raise TimeoutError
            if self._passed == len(self.lines):
                return None
            self._passed += 1
            return self.lines[self._passed - 1]

    @property
    def output(self) -> str:
        return "\n".join(self.lines)


class Job(Lines):
    """A started script."""

    script = "local.sh"

    def __init__(self, bundle: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        command = ["bash", str(bundle / self.script), *arguments]
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})}, **PIPED)
        self._listen()

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        for line in self._more():
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"ended without a line like {pattern!r}:\n{self.output}")

    def until_step(self, step: int) -> None:
        """Read on until a progress line says that `step` steps or more are complete."""
        for line in self._more():
            found = re.match(r"(?:\S+ +\| )?step +(\d+)/", line)  # a driver names the host first
            if found and int(found[1]) >= step:
                return
        raise AssertionError(f"ended before step {step}:\n{self.output}")

    def until_committed(self, directory: Path, after: str = "") -> str:
        """Wait for a checkpoint newer than the one called `after`; its name."""
        while not (found := checkpoints(directory)) or found[-1].name <= after:
            assert self.process.poll() is None, self.output
            time.sleep(0.01)
        return found[-1].name

    def end(self) -> int:
        """Read everything to come and return the exit code."""
        for _ in self._more():
            pass
        return self.process.wait(PATIENCE_S)

    def _more(self) -> Iterator[str]:
        while True:
            # For each line anew: how long all of it may take is pytest's affair.
            try:
                line = self.next(PATIENCE_S)
            except TimeoutError:
                self.process.send_signal(signal.SIGKILL)
                raise TimeoutError(f"no line in {PATIENCE_S} s:\n{self.output}") from None
            if line is None:
                return
            yield line

    def agent(self) -> int:
        """Process id of torchrun's agent."""
        return children(self.process.pid)[0]

    def workers(self) -> list[int]:
        """Process ids of the workers, in order of start: local rank 0 first."""
        return children(self.agent())


def run(bundle: Path, *arguments: str, env: dict[str, str] | None = None) -> Job:
    """Start a job and read it to its end."""
    job = Job(bundle, *arguments, env=env)
    job.end()
    return job


def alone(place: Path, job: dict[str, Any]) -> Path:
    """The checkpoint directory of the same job on this machine by itself, undisturbed."""
    here = {**job, "nodes": 1, "targets": {"local": {"procs_per_node": 1}}}
    here["train"] = {**job["train"], "args": {**job["train"]["args"], "pause": 0.0}}
    return trained(render(place, here))


def trained(bundle: Path, *arguments: str) -> Path:
    """The checkpoint directory of a bundle for `local` that one process has trained, undisturbed.

    The process is a fork of this one: torchrun and a new interpreter would each import torch. The number of
    processes changes no bits.
    """
    script = (bundle / "local.sh").read_text().replace("\\\n", " ")
    words = shlex.split(script[script.index("\nexec ") :])
    option = "--checkpoint-dir="
    (place,) = (word for word in words[: words.index("run")] if word.startswith(option))
    directory = Path(os.path.abspath(bundle / place.removeprefix(option)))
    program = [each.format(checkpoint_dir=directory) for each in words[words.index("run") : -2]]
    torch.set_num_threads(1)  # a fork has no threads of OpenMP, and would wait for them
    fork = Fork([*program, *arguments], bundle, {})
    said, _ = fork.communicate(PATIENCE_S)
    assert fork.returncode == 0, said
    return directory


def children(pid: int) -> list[int]:
    """Children of a process, oldest first."""
    # In order of birth as it is; the numbers are not, they begin again when they are used up.
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(
        p.parent for p in directory.glob("step-*/checkpoint.json") if p.parent.suffix == ""
    )


def final_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """The model of the newest checkpoint."""
    loaded: dict[str, torch.Tensor] = torch.load(
        checkpoints(directory)[-1] / "model.pt", weights_only=True
    )
    return loaded


def assert_same_bits(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        other = got[name]
        assert other.dtype == tensor.dtype, name
        # Compared as bytes: equal() would take -0.0 for 0.0 and no NaN for another.
        assert torch.equal(as_bytes(other), as_bytes(tensor)), name


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def rows(directory: Path, kind: str = "step") -> list[dict[str, Any]]:
    """All rows of metrics.jsonl of one kind, in the order written. Torn lines are passed over."""
    found = []
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["kind"] == kind:
            found.append(row)
    return found


def committed(directory: Path) -> list[dict[str, Any]]:
    """The steps that led to the newest checkpoint: for each the row that was written last."""
    last = {row["step"]: row for row in rows(directory)}
    newest = int(checkpoints(directory)[-1].name.removeprefix("step-"))
    return [last[step] for step in sorted(last) if step <= newest]
