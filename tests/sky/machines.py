"""A task of SkyPilot's on machines of ours: its files where SkyPilot puts them, and the very bash it runs.

Two hosts of the rig stand for the machines, a directory that both mount for the bucket. Owns the way from
a spec to running bashes, and what is read of the bucket. What SkyPilot does around them (finding
machines, mounting, recovering) is not here: tests/real/test_sky_jobs.py. Knows nothing of what is being
tested.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real import jobs
from tests.real.rig import Machine, Rig, access, processes
from tests.sky.skypilot import SkyPilot

BUCKET = "/checkpoints"
WORKDIR = "sky_workdir"
STEPS, EVERY = 40, 5


def spec(name: str, **job: Any) -> dict[str, Any]:
    """A job of two machines; `tier` holds what belongs below targets.sky."""
    tier = {"bucket": "s3://my-checkpoints", **job.pop("tier", {})}
    train = {
        "workload": jobs.PACED,
        "steps": STEPS,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "optimizer": "adamw",
        "lr": 0.01,
        "log_every": "1 steps",
        **job.pop("train", {}),
    }
    return {
        "name": name,
        "nodes": 2,
        "procs_per_node": 1,
        "python": sys.executable,
        "checkpoint": {"every": f"{EVERY} steps"},
        "rendezvous": {"timeout": "60s", "collective_timeout": "20s"},
        "train": train,
        "targets": {"sky": tier, "local": {"nodes": 1, "procs_per_node": 1}},
        **job,
    }


class Run(jobs.Job):
    """What SkyPilot runs on one machine. Its lines are kept, and can be waited for."""

    def __init__(self, machine: Machine, script: str) -> None:
        path = "/tmp/sky_app"
        machine.path(path).write_text(script)
        self.machine = machine
        self.process = machine.popen(
            ["/bin/bash", "-i", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._listen()


class Task:
    """A task as `sky jobs launch` makes it: one id for all its starts, each on machines with its files."""

    def __init__(
        self,
        skypilot: SkyPilot,
        rig: Rig,
        place: Path,
        wanted: dict[str, Any],
        code: dict[str, str] | None = None,
    ) -> None:
        self.name: str = wanted["name"]
        self.bundle = jobs.render(place, wanted, code, target="sky")
        self.read = skypilot.load(self.bundle / "sky.yaml")
        self.id = f"sky-managed-2026-11-21-21-51-28-123456_{self.name}_7-0"
        self._skypilot, self._rig = skypilot, rig
        self._starts = 0

    @property
    def machines(self) -> list[Machine]:
        """As SkyPilot numbers them."""
        return [self._rig["m0"], self._rig["m1"]]

    @property
    def bucket(self) -> Path:
        """The job's part of the bucket, seen from here."""
        return self._rig.shared / self.name

    def start(self, run: str = "", **variables: str) -> list[Run]:
        """Bring the files to the machines and run the task there, head first.

        `run` in place of the task's own; `variables` are added to SkyPilot's, None takes one away.
        """
        self._starts += 1
        for machine in self.machines:
            where = machine.path(WORKDIR)
            shutil.rmtree(where, ignore_errors=True)
            access.copy(self.bundle, where)
        return [
            Run(machine, self.script(rank, run or self.read["run"], **variables))
            for rank, machine in enumerate(self.machines)
        ]

    def script(self, rank: int, run: str, **variables: str | None) -> str:
        """The file for the bash of the machine of this number."""
        addresses = [machine.address for machine in self.machines]
        said = {
            **self.read["envs"],
            "SKYPILOT_NODE_IPS": "\n".join(addresses),
            "SKYPILOT_NUM_NODES": str(len(addresses)),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            "SKYPILOT_TASK_ID": self.id,
            "SKYPILOT_INTERNAL_JOB_ID": str(self._starts),
            **variables,
        }
        return self._skypilot.script(run, {k: v for k, v in said.items() if v is not None}, "vm")

    def directory(self, machine: Machine) -> Path:
        """Where the job lives on a machine, seen from here."""
        (found,) = machine.path(f".ddpgen/{self.name}").iterdir()
        return found

    def step(self) -> int:
        """The newest step that counts, by its marker in the bucket."""
        found = jobs.checkpoints(self.bucket)
        return int(found[-1].name.partition("-")[2]) if found else 0

    def another(self) -> None:
        """From here on it is what the next `sky jobs launch` makes of it."""
        self.id = self.id.replace("_7-0", "_8-0")

    def until(self, is_so: Callable[[], bool], runs: Sequence[Run]) -> None:
        """Wait for it, while all of the runs go on."""
        deadline = time.monotonic() + jobs.PATIENCE_S
        while not is_so():
            ended = [run for run in runs if run.process.poll() is not None]
            assert not ended, "\n".join(run.output for run in runs)
            assert time.monotonic() < deadline, "\n".join(run.output for run in runs)
            time.sleep(0.1)

    def cancel(self) -> None:
        """As `sky cancel` does: TERM to the shell and to everything below it, to each by its number."""
        for machine in self.machines:
            processes.send((each.pid for each in machine.processes()), signal.SIGTERM)


def ends(runs: Sequence[Run]) -> list[int]:
    """The exit codes, once all have ended."""
    return [run.end() for run in runs]


def said(runs: Sequence[Run]) -> str:
    return "\n".join(run.output for run in runs)
