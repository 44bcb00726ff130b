"""What the fields of the tier sky mean to SkyPilot: its resources, the bucket, the recovery.

Owns SkyPilot's names for them and which machines may stand in for each other. Writes no YAML: the
template does. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ddpgen.shell import Joined, Var, Word, at_home
from ddpgen.tiers.sky.fields import Bucket, SkyJob

# How a clean stop for a preemption ends, for SkyPilot to start the job again. Of several machines on Slurm it
# keeps the highest code alone, and those that end a moment later are killed, which is 143: so above that.
EXIT_PREEMPTED = 175
MODES = {"mount": "MOUNT", "cached": "MOUNT_CACHED"}
_KUBERNETES = ("k8s", "kubernetes")

Scalar = str | int | bool
Pairs = tuple[tuple[str, Scalar], ...]


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


def above(job: SkyJob) -> str:
    """Where on a machine the directories of a job's tasks are."""
    return f"~/.ddpgen/{job.name}"


def hook(job: SkyJob) -> str:
    """Where the hook of a pod that is taken away finds what to stop; "" where no hook is wanted."""
    wanted = job.notices and any(each.partition("/")[0] in _KUBERNETES for each in job.infra)
    return f"{above(job)}/hook" if wanted else ""


def resources(job: SkyJob) -> Iterator[tuple[str, Scalar]]:
    """What all machines that will do have in common, under SkyPilot's names."""
    names = ("instance_type", "cpus", "memory", "disk_size", "disk_tier", "network_tier", "image")
    for name in names:
        value = getattr(job, name)
        if value is not None:
            yield "image_id" if name == "image" else name, value


def alternatives(job: SkyJob) -> Iterator[Pairs]:
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
