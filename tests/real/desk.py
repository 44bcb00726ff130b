"""Where somebody sits with a spec for a cluster, and what they type: on its login node, or away from it over ssh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.real import batch, jobs
from tests.real.rig.slurm import Slurm

DDPGEN = [sys.executable, "-B", "-m", "ddpgen"]
AWAY = "/shared/my jobs"


class Said(NamedTuple):
    """How a command of ddpgen ended."""

    code: int
    out: str
    err: str


class Desk:
    """Where somebody sits with a spec, and what they type."""

    def __init__(self, cluster: Slurm, place: Path, login: bool):
        self.cluster, self.login = cluster, login
        self.here = place if login else cluster.rig.shared / "desk"
        self.there = cluster.rig.shared / ("my jobs" if login else "desk/build")

    def sit_down(self, name: str, secrets: Sequence[Any] = (), **tier: object) -> None:
        login = {"login": "ctl", "dir": AWAY} if self.login else {}
        tier = {**login, **tier}
        wanted = batch.spec(name, nodes=2, code=["paced.py"], tier=tier, secrets=[*secrets])
        wanted["train"]["args"] = {"pause": 0.1, "until": f"{self.cluster.shared}/hurry-{name}"}
        self.puts_down(wanted)

    def puts_down(self, wanted: dict[str, Any]) -> None:
        """Write the spec, and the workload that it names."""
        self.here.mkdir(exist_ok=True)
        (self.here / "job.yaml").write_text(yaml.safe_dump(wanted))
        (self.here / "paced.py").write_text(jobs.PACED_TOY)
        if not self.login:
            for path in (self.here, *self.here.iterdir()):
                os.chown(path, batch.access.UID, batch.access.UID)

    def types(self, command: str, *words: str, spec: Sequence[str] = ("job.yaml",)) -> Said:
        if self.login:
            begun = self.begins(command, *words, spec=spec)
            out, err = begun.communicate(timeout=60)
            return Said(begun.returncode, out, err)
        env = {"PYTHONPATH": str(jobs.ROOT)}
        where = f"{self.cluster.shared}/desk"
        done = self.cluster.run([*DDPGEN, command, *spec, *words], cwd=where, env=env)
        return Said(done.returncode, done.stdout, done.stderr)

    def begins(
        self, command: str, *words: str, spec: Sequence[str] = ("job.yaml",)
    ) -> subprocess.Popen[str]:
        ssh = f"ssh -F {self.cluster.rig.ssh_config}"
        return subprocess.Popen(
            [*DDPGEN, command, *spec, *words], cwd=self.here, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(jobs.ROOT), "DDPGEN_SSH": ssh},
        )  # fmt: skip

    def until(
        self,
        command: str,
        pattern: str,
        timeout: float = jobs.PATIENCE_S,
        spec: Sequence[str] = ("job.yaml",),
    ) -> Said:
        deadline = time.monotonic() + timeout
        while True:
            said = self.types(command, spec=spec)
            if re.search(pattern, said.out):
                return said
            assert time.monotonic() < deadline, said
            time.sleep(2)  # a look takes a process here and one of ssh there
