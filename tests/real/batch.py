"""A job as a user of Slurm starts it: a spec, `ddpgen render`, `sbatch`, and what is read of it afterwards.

Owns the way from a cluster and a spec to a job in its queue. Knows nothing of what is being tested.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real import jobs
from tests.real.rig import access, processes
from tests.real.rig.slurm import Slurm

STEPS, EVERY = 100, 5
ASK_S = 2.0  # between two questions to Slurm: each is four processes
TRAIN: dict[str, Any] = {
    "workload": jobs.PACED,
    "steps": STEPS,
    "global_batch_size": 12,
    "micro_batch_size": 2,
    "optimizer": "adamw",
    "lr": 0.01,
    "log_every": "1 steps",
}
TIER: dict[str, Any] = {"time": "0:10:00", "warning": "60s", "requeues": 6}


def spec(name: str, pause: float | str = 0.0, starts: int = 1, **job: Any) -> dict[str, Any]:
    """A job; `tier` holds what belongs below targets.slurm. The first so many starts are slow ones:
    `pause` is the length of a micro-batch then.
    """
    tier = {**TIER, **job.pop("tier", {})}
    return {
        "name": name,
        "python": sys.executable,
        "checkpoint": {"every": f"{EVERY} steps"},
        "rendezvous": {"timeout": "60s", "collective_timeout": "20s"},
        "train": {**TRAIN, "args": {"pause": pause, "starts": starts}},
        "targets": {"slurm": tier},
        **job,
    }


class Batch:
    """A job in the queue."""

    def __init__(
        self,
        cluster: Slurm,
        wanted: dict[str, Any],
        *options: str,
        place: str | None = None,
        arguments: Sequence[str] = (),
        code: dict[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = wanted["name"]
        self.inside = f"{cluster.shared}/{place or self.name}"
        self.place = cluster.rig.shared / (place or self.name)
        # Its checkpoint directory, as seen from here.
        self.directory = self.place / wanted.get("checkpoint", {}).get(
            "dir", f"checkpoints/{self.name}"
        )
        # Not rendered there: seen from here it lies below /proc, where real paths end.
        with tempfile.TemporaryDirectory() as here:
            jobs.render(Path(here), wanted, code, target="slurm")
            access.copy(Path(here), self.place)
        self.id = self.submit(*options, arguments=arguments)

    def submit(self, *options: str, arguments: Sequence[str] = ()) -> str:
        """As a user does from inside the bundle; the job's id."""
        words = (*options, "slurm.sbatch", *arguments)
        return self.cluster.sbatch(*words, cwd=f"{self.inside}/bundle")

    @property
    def log(self) -> str:
        return self.cluster.log(self.id)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes it runs on, the head first."""
        listed = self.cluster.show(self.id)["NodeList"]
        return self.cluster.run(["scontrol", "show", "hostnames", listed]).stdout.split()

    def step(self) -> int:
        """The last step that has been written down."""
        steps = self._rows()
        return int(steps[-1]["step"]) if steps else 0

    def _rows(self) -> list[dict[str, Any]]:
        return jobs.rows(self.directory) if (self.directory / "metrics.jsonl").exists() else []

    def until_step(self, step: int) -> None:
        self.until(lambda: self.step() >= step)

    def until_start(self, number: int) -> None:
        """Until the start of this number (the first is 0) has taken a few steps."""

        self.until(lambda: self.launch() == f"slurm.{self.id}.{number}")
        begun = len(self._rows())
        self.until(lambda: len(self._rows()) > begun + 2)

    def launch(self) -> str:
        """Which of its starts trains, or has trained last."""
        status = self.directory / "status"
        return status.read_text().split()[1] if status.exists() else ""

    def until(self, is_so: Callable[[], bool], timeout: float = jobs.PATIENCE_S) -> None:
        deadline, again = time.monotonic() + timeout, 0.0
        while not is_so():
            if time.monotonic() > again:
                shown = self.cluster.show(self.id)
                assert time.monotonic() < deadline, f"{shown}\n{self.log}"
                assert shown["JobState"] not in ("FAILED", "CANCELLED", "TIMEOUT"), self.log
                again = time.monotonic() + ASK_S
            time.sleep(0.1)

    def ended(self) -> tuple[str, str]:
        return self.cluster.ended(self.id)

    def left(self) -> list[str]:
        """What runs of it on nodes that Slurm can reach, once that has had time to end."""
        mark = f"SLURM_JOB_ID={self.id}\0".encode()
        nodes = [
            each for each in self.cluster.nodes if each.up and processes.running(each.pid, "slurmd")
        ]
        found = [each for node in nodes for each in node.processes()]
        own = [each for each in found if mark in environment(each.pid)]
        return [f"{each.host} {each.command}" for each in processes.outlasting(own, 30)]


def assert_done_with_the_bits_of_one_machine(
    batch: Batch, alone: Path, starts: int | range
) -> None:
    """It came to its end, started so many times, and never went back by more than a checkpoint and the
    steps taken while that was written."""
    times = starts if isinstance(starts, range) else [starts]
    assert batch.ended() == ("COMPLETED", "0:0"), batch.log
    assert int(batch.cluster.show(batch.id)["Restarts"]) + 1 in times, batch.log
    jobs.assert_same_bits(jobs.final_tensors(batch.directory), jobs.final_tensors(alone))
    steps = [row["step"] for row in jobs.rows(batch.directory)]
    back = [before - after for before, after in itertools.pairwise(steps)]
    assert max(back) < 2 * EVERY, steps
    assert batch.left() == []


def environment(pid: int) -> bytes:
    """Empty when there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
