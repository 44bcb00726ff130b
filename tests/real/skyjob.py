"""A job as a user of SkyPilot starts it: a spec, `ddpgen launch`, `sky launch`, and what the bucket holds.

Owns the way from a rig with SkyPilot and a spec to a job on it. Knows nothing of what is being tested.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.real import batch, jobs
from tests.real.rig.sky import AGAIN_S, OVER, Sky
from tests.real.rig.slurm import CPUS

# At a second each they last longer than the long story, however busy the machine.
STEPS, EVERY = 600, batch.EVERY
DDPGEN = [sys.executable, "-B", "-m", "ddpgen"]
BUCKET = "runs"
# A launch takes 45 s on a machine that has nothing else to do, and minutes on one that has.
WITHIN_S = 400


def spec(
    name: str,
    pause: float | str = 0.0,
    mode: str = "mount",
    hidden: int = 32,
    steps: int = STEPS,
    **job: Any,
) -> dict[str, Any]:
    """A job of two machines with two processes each; `tier` holds what belongs below targets.sky.

    Until hurry() a micro-batch takes `pause` seconds; `hidden`: the width of its layer.
    """
    args = {"pause": pause, "until": f"/shared/{name}.go", "hidden": hidden}
    tier = {
        "cpus": CPUS - 1,  # nearly all of a node, which has no room for a second machine then
        "bucket": {"url": f"vastdata://{BUCKET}", "mode": mode},
        **job.pop("tier", {}),
    }
    return {
        "name": name,
        "python": sys.executable,
        "nodes": 2,
        "procs_per_node": 2,
        "checkpoint": {"every": f"{EVERY} steps"},
        "rendezvous": {"timeout": "60s", "collective_timeout": "20s"},
        "train": {**batch.TRAIN, "steps": steps, "args": args},
        "targets": {"sky": tier},
        **job,
    }


class SkyJob:
    """A job of somebody at the desk, who has a spec; launch() has SkyPilot look after it."""

    def __init__(self, sky: Sky, wanted: dict[str, Any]) -> None:
        self.sky = sky
        self.name: str = wanted["name"]
        self.bucket = sky.bucket(BUCKET)
        self.id = 0
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "paced.py").write_text(jobs.PACED_TOY)
            self.at = sky.bring(Path(place), self.name)
        self.write(wanted)

    def write(self, wanted: dict[str, Any]) -> None:
        """The spec, anew."""
        path = self.sky.desk.path(f"{self.at}/job.yaml")
        path.write_text(yaml.safe_dump({**wanted, "code": ["paced.py"]}))

    def types(self, command: str, *words: str) -> str:
        """`ddpgen command job.yaml ...`; what it answers."""
        done = self.sky.desk.run(
            [*DDPGEN, command, "job.yaml", *words],
            env={**self.sky.environment, "PYTHONPATH": str(jobs.ROOT)},
            cwd=self.at,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, f"ddpgen {command}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def launch(self) -> None:
        self.id = int(self.types("launch", "--target", "sky"))

    def hurry(self) -> None:
        """From here on as fast as it goes."""
        (self.sky.rig.shared / f"{self.name}.go").touch()

    def objects(self) -> dict[str, int]:
        """What the bucket holds of it: sizes by name."""
        prefix = f"{self.name}/"
        found = self.bucket.objects()
        return {key.removeprefix(prefix): found[key] for key in found if key.startswith(prefix)}

    def checkpoints(self) -> list[int]:
        """Steps whose checkpoint is committed: the marker is there."""
        marker = "/checkpoint.json"
        names = [key.removesuffix(marker) for key in self.objects() if key.endswith(marker)]
        return sorted(int(name.removeprefix("step-")) for name in names)

    def begun(self) -> list[int]:
        """Steps of which the bucket has files, but no marker."""
        steps = {int(key[5:14]) for key in self.objects() if key.startswith("step-")}
        return sorted(steps - set(self.checkpoints()))

    def until_checkpoint(self, step: int, within: float = jobs.PATIENCE_S) -> int:
        """Until one of this step or a later one is committed; which."""
        self.until(lambda: bool(self.checkpoints()) and self.checkpoints()[-1] >= step, within)
        return self.checkpoints()[-1]

    def told(self, reason: str) -> None:
        """As by the watcher of notices, on the machine where it runs."""
        newest = max(self._written(), key=lambda file: file.stat().st_mtime)
        (newest.parent / "stop.new").write_text(f"{reason}\n")
        (newest.parent / "stop.new").rename(newest.parent / "stop")

    def step(self) -> int:
        """The last step that its machines have taken, whatever the bucket holds."""
        steps = [int(row["step"]) for file in self._written() for row in jobs.rows(file.parent)]
        return max(steps, default=0)

    def _written(self) -> list[Path]:
        # The nodes of a cluster of SkyPilot's share a home on Slurm.
        kept = f".sky_clusters/*/.ddpgen/{self.name}/*/metrics.jsonl"
        return list(self.sky.rig.shared.glob(kept))

    def until(self, is_so: Callable[[], bool], within: float = jobs.PATIENCE_S) -> None:
        deadline, again = time.monotonic() + within, 0.0
        while not is_so():
            if time.monotonic() > again:
                over = self.sky.status(self.id) in OVER
                late = over or time.monotonic() > deadline
                assert not late, f"{self.objects()}\n{self.about()}"
                again = time.monotonic() + AGAIN_S
            time.sleep(0.2)

    def get(self, name: str) -> bytes:
        return self.bucket.get(f"{self.name}/{name}")

    def final_tensors(self) -> dict[str, torch.Tensor]:
        newest = f"step-{self.checkpoints()[-1]:09d}"
        loaded: dict[str, torch.Tensor] = torch.load(
            io.BytesIO(self.get(f"{newest}/model.pt")), weights_only=True
        )
        return loaded

    def lose(self, take_away: Callable[[], None]) -> None:
        """Take its machines away and wait until it has written a checkpoint on others; says what that cost."""
        self.until(lambda: self.step() > self.checkpoints()[-1])
        before, reached = self.checkpoints()[-1], self.step()
        lost = self.sky.slurm_job(self.id)
        began = time.monotonic()
        take_away()
        self.sky.recovered(self.id, lost, within=WITHIN_S)
        runs = time.monotonic() - began
        self.until_checkpoint(before + 1, WITHIN_S)
        whole = time.monotonic() - began
        print(
            f"{self.name}: running again after {runs:.0f} s, next committed step after {whole:.0f} s, "
            f"{reached - before} step(s) lost"
        )

    def about(self) -> str:
        if not self.id:
            return ""
        return f"{self.sky.logs(self.id)[-6000:]}\n{self.sky.controller_log(self.id)[-3000:]}"
