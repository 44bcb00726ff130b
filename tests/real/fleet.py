"""A job on several hosts as a user starts it: a spec, `ddpgen render`, `bash hosts/run.sh`.

Owns the way from a rig and a spec to a running driver, and what is read of the hosts afterwards.
Knows nothing of what is being tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.real import jobs
from tests.real.rig import Rig

TOY: dict[str, Any] = {
    "workload": jobs.PACED,
    "steps": 100,
    "global_batch_size": 48,
    "micro_batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.1,
    "log_every": "5 steps",
    # Slow enough for something to happen to it in the middle, quick enough to wait for its end.
    "args": {"pause": 0.02},
}


_alone: dict[str, dict[str, torch.Tensor]] = {}  # weights by what was trained


class Driver(jobs.Job):
    """A running hosts/run.sh. Its lines are the hosts', each with the host's name before it."""

    script = "hosts/run.sh"

    def __init__(self, rig: Rig, bundle: Path, *arguments: str) -> None:
        super().__init__(bundle, *arguments, env=way_in(rig))


class Launched(jobs.Job):
    """The same, started by `ddpgen launch`, which renders the spec into `bundle` first."""

    def __init__(self, rig: Rig, spec: Path, bundle: Path, *arguments: str) -> None:
        options = ["--target", "hosts", "-o", str(bundle), "--", *arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddpgen", "launch", str(spec), *options],
            env={**os.environ, **way_in(rig), "PYTHONPATH": str(jobs.ROOT)}, cwd=spec.parent,
            **jobs.PIPED,
        )  # fmt: skip
        self._listen()


def way_in(rig: Rig) -> dict[str, str]:
    """What makes the driver's ssh find the rig's hosts."""
    return {"DDPGEN_SSH": f"ssh -F {rig.ssh_config}"}


def example(name: str, place: Path, procs: int = 0, **train: Any) -> tuple[Path, Path]:
    """The example's bundles for `hosts` and for `local`, with the Python that runs the tests.

    `procs`: on each host, where not as in the example; `train`: what of its section to change.
    """
    spec = yaml.safe_load((jobs.ROOT / "examples" / f"{name}.yaml").read_text())
    spec["python"] = sys.executable
    if procs:
        spec["procs_per_node"] = procs
    spec["train"].update(train)
    return both(place, spec)


def both(place: Path, spec: dict[str, Any]) -> tuple[Path, Path]:
    """The bundles of one spec for `hosts` and for `local`."""
    return (
        jobs.render(place / "hosts", spec, target="hosts"),
        jobs.render(place / "local", spec),
    )


def spec(hosts: Sequence[Any], train: dict[str, Any] | None = None, **job: Any) -> dict[str, Any]:
    """A job of the toy on these hosts; `tier` holds what belongs below targets.hosts."""
    tier = job.pop("tier", {})
    return {
        **jobs.spec({**TOY, **(train or {})}, checkpoint={"every": "10 steps"}),
        "rendezvous": {"timeout": "60s", "collective_timeout": "20s"},
        "targets": {"hosts": {"hosts": list(hosts), **tier}},
        **job,
    }


def local_tensors(bundle: Path) -> dict[str, torch.Tensor]:
    """The weights of the same job on this machine alone; of one training once for all stories."""
    train = yaml.safe_load((bundle.parent / "job.yaml").read_text())["train"]
    key = json.dumps(train, sort_keys=True)
    if key not in _alone:
        paced = ["--arg=pause=0"] if (bundle / "code/paced.py").exists() else []
        _alone[key] = jobs.final_tensors(jobs.trained(bundle, *paced))
    return _alone[key]


def ask(rig: Rig, bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What run.sh says to these arguments, from a terminal of its own."""
    return subprocess.run(
        ["bash", str(bundle / "hosts/run.sh"), *arguments],
        env={**os.environ, **way_in(rig)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def fetched(rig: Rig, bundle: Path) -> Path:
    """The checkpoint directory at home after `run.sh --fetch`."""
    done = ask(rig, bundle, "--fetch")
    assert done.returncode == 0, done.stderr
    (directory,) = (bundle.parent / "checkpoints").iterdir()
    return directory


def assert_done_with_the_bits_of_one_machine(
    rig: Rig, driver: Driver, bundles: tuple[Path, Path]
) -> None:
    assert driver.end() == 0, driver.output
    there, here = bundles
    jobs.assert_same_bits(jobs.final_tensors(fetched(rig, there)), local_tensors(here))
    assert rig.strays(within=30) == []


def status(rig: Rig, host: str, job: str = "job") -> str:
    """The last word on a host: `done 200`, `failed 3 reason`; the attempt id left out."""
    machine = rig[host]
    place = f"{machine.home}/ddpgen/checkpoints/{job}/nodes/{host}/status"
    words = machine.path(place).read_text().split(maxsplit=3)
    return " ".join([words[0], *words[2:]]).strip()
