"""A job for SkyPilot → SkyPilot's resources and the paths on its machines. Pure.

Owns SkyPilot's names for the fields, and which machines may replace each other. Writes no YAML: the
template does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from ddpgen.text.shell import JoinedWord, Var, Word, expand_home
from ddpgen.tiers.sky.fields import Bucket, SkyJob

# The exit code of a clean stop for a preemption, on which SkyPilot starts the job again. On several machines of a
# Slurm cluster SkyPilot keeps only the highest code, and kills those that end a moment later, which gives 143. So
# this code is higher.
EXIT_PREEMPTED = 175
MODES = {"mount": "MOUNT", "cached": "MOUNT_CACHED"}
_KUBERNETES = ("k8s", "kubernetes")

Scalar = str | int | bool
Pairs = tuple[tuple[str, Scalar], ...]


def bucket_directory(job: SkyJob, bucket: Bucket) -> str:
    """Return the directory at which a machine sees the job's part of the bucket."""
    return f"{bucket.path}/{bucket.prefix or job.name}"


def environment(job: SkyJob) -> Word:
    """Return the path of the virtual environment for `requirements`; each list has an environment of its own."""
    packages = "\n".join((job.python.interpreter, *job.requirements))
    return expand_home(f"~/.ddpgen/env-{hashlib.sha256(packages.encode()).hexdigest()[:12]}")


def interpreter(job: SkyJob) -> Word:
    """Return the Python that trains: the environment's, if the job has requirements, else the spec's."""
    if not job.requirements:
        return expand_home(job.python.interpreter)
    path = environment(job)
    assert isinstance(path, JoinedWord)
    return JoinedWord((*path.parts, "/bin/python"))


def local_dir(job: SkyJob) -> Word:
    """Return the checkpoint directory on a machine. Each task has its own, because other tasks may have run there."""
    return JoinedWord((Var("HOME"), f"/.ddpgen/{job.name}/", Var("SKYPILOT_TASK_ID")))


def tasks_directory(job: SkyJob) -> str:
    """Return the directory on a machine that holds the directories of the job's tasks."""
    return f"~/.ddpgen/{job.name}"


def hook(job: SkyJob) -> str:
    """Return the file in which a pod's hook finds the job to stop; "" if the job needs no hook."""
    on_kubernetes = not job.clouds.isdisjoint(_KUBERNETES)
    return f"{tasks_directory(job)}/hook" if job.notices and on_kubernetes else ""


def resources(job: SkyJob) -> Iterator[tuple[str, Scalar]]:
    """Yield the properties that every suitable machine must have, under SkyPilot's names."""
    names = ("instance_type", "cpus", "memory", "disk_size", "disk_tier", "network_tier", "image")
    for name in names:
        value = getattr(job, name)
        if value is not None:
            yield "image_id" if name == "image" else name, value


def memory_mib(memory: str) -> float:
    """Return the MiB of a size, as SkyPilot reads it: a number without a unit is in GiB."""
    number = re.match("[0-9.]+", memory)
    assert number is not None
    unit = memory[number.end() :].rstrip("+").upper()[:1] or "G"
    return float(number[0]) * 1024.0 ** ("KMGTP".index(unit) - 1)


def alternatives(job: SkyJob) -> Iterator[Pairs]:
    """Yield each suitable kind of machine in the spec's order, all spot machines before those at full price."""
    paid = (True, False) if job.spot and job.on_demand_fallback else (job.spot,)
    for use_spot in paid:
        for infra in job.infra or ("",):
            for gpus in job.accelerators or ("",):
                properties: dict[str, Scalar] = {}
                if infra:
                    properties["infra"] = infra
                if gpus:
                    properties["accelerators"] = gpus
                properties["use_spot"] = use_spot
                yield tuple(properties.items())
