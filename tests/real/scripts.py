"""The examples that are scripts in a framework's idiom: where they lie, how long they take, what they leave."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import torch

from tests.real import jobs

FRAMEWORKS = jobs.ROOT / ".venv-frameworks" / "bin"

# Example → an argument that makes it long enough, and the weights it leaves.
SCRIPTS = {
    "huggingface": ("--epochs=4", "out/final/model.safetensors"),
    "lightning": ("--epochs=7", "final.pt"),
    "accelerate": ("--epochs=12", "final.pt"),
    "fabric": ("--epochs=12", "final.pt"),
    "nanogpt": ("--max_iters=1500", "out/ckpt.pt"),
    "resnet": ("--epochs=6", "checkpoint.pth.tar"),
}


# Long enough to stop them, and for ten kills.
LONG = {
    "huggingface": "--epochs=12",
    "lightning": "--epochs=40",
    "accelerate": "--epochs=40",
    "fabric": "--epochs=40",
    "nanogpt": "--max_iters=12000",
    "resnet": "--epochs=80",
}


class Script:
    """An example's bundle, started again and again."""

    def __init__(self, name: str, place: Path, procs: int = 2, more: str = "") -> None:
        """`more`: more of the spec."""
        self.argument, self.result = SCRIPTS.get(name, ("", ""))
        self.bundle = place / name
        spec = jobs.ROOT / "examples" / f"{name}.yaml"
        if procs != 2:
            spec, text = place / spec.name, spec.read_text()
            shutil.copytree(jobs.ROOT / "examples" / "code" / name, place / "code" / name)
            spec.write_text(more + text.replace("procs_per_node: 2", f"procs_per_node: {procs}"))
        done = jobs.ddpgen("render", spec, "--target", "local", "-o", self.bundle)
        assert done.returncode == 0, done.stderr
        self.move(place / "checkpoints" / name)

    def move(self, directory: Path) -> None:
        """Its checkpoint directory is this."""
        self.directory, self.work = directory, directory / "work"

    def start(self, **variables: str) -> jobs.Job:
        # Only make nightly makes that environment. A script without a framework takes the Python of the tests.
        path = f"{FRAMEWORKS}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"PATH": path, **variables}
        return jobs.Job(self.bundle, *filter(None, [self.argument]), env=env)

    def run(self) -> jobs.Job:
        """From where it stands to its end."""
        job = self.start()
        assert job.end() == 0, job.output
        return job

    def rows(self) -> list[dict[str, float]]:
        return jobs.rows(self.directory) if (self.directory / "metrics.jsonl").exists() else []

    def saves(self) -> str:
        """The record of rank 0's."""
        record = self.directory / "script" / "saves-0.jsonl"
        return record.read_text() if record.exists() else ""

    def wait_for_rows(self, job: jobs.Job, count: int) -> None:
        """`count` rows more than there are: it takes steps."""
        before = len(self.rows())
        while len(self.rows()) < before + count:
            assert job.process.poll() is None, (job.end(), job.output)
            time.sleep(0.05)

    def weights(self) -> dict[str, torch.Tensor]:
        if self.result.endswith(".safetensors"):
            data = bytearray((self.work / self.result).read_bytes())
            return {"file": torch.frombuffer(data, dtype=torch.uint8)}
        loaded = torch.load(self.work / self.result, weights_only=True)
        return loaded.get("model", loaded.get("state_dict", loaded))


def drafts(script: Script) -> set[Path]:
    """What is being saved, or was when it was killed."""
    return set(script.work.rglob(".saves-*"))


def workers(job: jobs.Job) -> list[int]:
    """The processes of the ranks. Beside torchrun there is what keeps the output."""
    return [each for child in jobs.children(job.process.pid) for each in jobs.children(child)]
