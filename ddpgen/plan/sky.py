"""What the fields of the tier sky mean to SkyPilot: its resources, the bucket, the way back.

Owns SkyPilot's names for them and which machines may stand in for each other. Writes no YAML: the
template does. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddpgen.shell import Joined, Var, Word, at_home
from ddpgen.spec.sky import Bucket, SkyJob

# How a clean stop for a preemption ends, for SkyPilot to start the job again. Of several machines on Slurm it
# keeps the highest code alone, and those that end a moment later are killed, which is 143: so above that.
EXIT_PREEMPTED = 175
_MODES = {"mount": "MOUNT", "cached": "MOUNT_CACHED"}
_KUBERNETES = ("k8s", "kubernetes")

Scalar = str | int | bool
Pairs = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class SkyPlan:
    """What the tier `sky` has beside the rest.

    `resources` is what all machines that come into question have in common, `alternatives` how they
    differ (one at least), `choice` how SkyPilot chooses among several: any_of or ordered.
    """

    num_nodes: int
    procs: int
    resources: Pairs
    alternatives: tuple[Pairs, ...]
    choice: str
    labels: Pairs
    autostop_min: int | None
    recovery: Pairs
    bucket_url: str | None
    bucket_mode: str
    bucket_path: str
    envs: Pairs
    secrets: tuple[str, ...]
    setup: tuple[str, ...]
    requirements: tuple[str, ...]
    environment: Word
    base_python: Word
    hook: str
    spot: bool

    @property
    def sets_up(self) -> bool:
        """Whether a machine has to be made ready."""
        return bool(self.setup or self.requirements)


def plan(job: SkyJob) -> SkyPlan:
    """What SkyPilot is told of this job."""
    alternatives = tuple(_alternatives(job))
    bucket = job.bucket
    return SkyPlan(
        num_nodes=int(job.nodes),
        procs=job.procs_per_node,
        resources=tuple(_common(job)),
        alternatives=alternatives,
        choice="ordered" if job.ordered else "any_of",
        labels=tuple(sorted(job.labels.items())),
        autostop_min=None if job.autostop is None else math.ceil(job.autostop / 60),
        recovery=tuple(_recovery(job)),
        bucket_url=bucket.url.rstrip("/") if bucket else None,
        bucket_mode=_MODES[bucket.mode] if bucket else "",
        bucket_path=bucket.path if bucket else "",
        envs=tuple(sorted(job.env.items())),
        secrets=job.secrets,
        setup=job.setup,
        requirements=job.requirements,
        environment=environment(job),
        base_python=at_home(job.python.interpreter),
        hook=hook(job),
        spot=job.spot,
    )


def place(job: SkyJob, bucket: Bucket) -> str:
    """Where on a machine the job's part of the bucket is seen."""
    return f"{bucket.path}/{bucket.prefix or job.name}"


def environment(job: SkyJob) -> Word:
    """The virtual environment for `requirements`: another list is another one."""
    listed = "\n".join((job.python.interpreter, *job.requirements))
    return at_home(f"~/.ddpgen/env-{hashlib.sha256(listed.encode()).hexdigest()[:12]}")


def interpreter(job: SkyJob) -> Word:
    """The Python that trains: that of the environment, where there is one."""
    if not job.requirements:
        return at_home(job.python.interpreter)
    made = environment(job)
    assert isinstance(made, Joined)
    return Joined((*made.parts, "/bin/python"))


def local_dir(job: SkyJob) -> Word:
    """Where on a machine the job lives while it runs: of this task alone, whatever else ran there."""
    return Joined((Var("HOME"), f"/.ddpgen/{job.name}/", Var("SKYPILOT_TASK_ID")))


def hook(job: SkyJob) -> str:
    """Where the hook of a pod that is taken away finds what to stop; "" where no hook is wanted."""
    wanted = job.notices and any(each.partition("/")[0] in _KUBERNETES for each in job.infra)
    return f"~/.ddpgen/{job.name}/hook" if wanted else ""


def _common(job: SkyJob) -> Iterator[tuple[str, Scalar]]:
    names = {
        "instance_type": "instance_type",
        "cpus": "cpus",
        "memory": "memory",
        "disk_size": "disk_size",
        "disk_tier": "disk_tier",
        "network_tier": "network_tier",
        "image": "image_id",
    }
    for field, name in names.items():
        value = getattr(job, field)
        if value is not None:
            yield name, value


def _alternatives(job: SkyJob) -> Iterator[Pairs]:
    """Every kind of machine that will do; what is written first comes first, and spot before full price."""
    paid = (True, False) if job.spot and job.on_demand_fallback else (job.spot,)
    for use_spot in paid:
        for infra in job.infra or ("",):
            for gpus in job.accelerators or ("",):
                found: dict[str, Scalar] = {}
                if infra:
                    found["infra"] = infra
                if gpus:
                    found["accelerators"] = gpus
                found["use_spot"] = use_spot
                yield tuple(found.items())


def _recovery(job: SkyJob) -> Iterator[tuple[str, Scalar]]:
    yield "strategy", job.recovery.strategy.upper()
    yield "max_restarts_on_errors", job.recovery.restarts_on_errors
