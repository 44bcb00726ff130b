"""A job → ranks, micro-batches, rendezvous and the command of its supervisor.

Owns every decision that a launch script only writes down. Knows no scheduler's syntax and touches
no network: values in, values out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.shell import Joined, Var, Word, at_home
from ddpgen.spec.hosts import Host, HostsJob
from ddpgen.spec.job import JobSpec
from ddpgen.spec.sky import SkyJob
from ddpgen.spec.slurm import SlurmJob
from ddpgen.tiers import command as supervise
from ddpgen.tiers.command import Supervise
from ddpgen.tiers.sky import directives as sky
from ddpgen.tiers.slurm import directives as slurm

if TYPE_CHECKING:
    from fractions import Fraction


class Rank(NamedTuple):
    """One process; its micro-batches are first, first + 1, … end - 1. `host`: of the tier hosts alone."""

    host: str
    node_rank: int
    rank: int
    local_rank: int
    first: int
    end: int


def command(job: JobSpec) -> Supervise:
    """The command of a supervisor; of the head's, where there are hosts."""
    talk = backend(job)
    if isinstance(job, HostsJob):
        return of_host(job, job.order[0], talk)
    return supervise.command(job, talk)


def of_host(job: HostsJob, host: Host, backend: str) -> Supervise:
    """The command of one of several hosts, but for its name. `backend` is that of all hosts."""
    return supervise.command(job.on(host), backend, job.weight(host))


def interpreter(job: JobSpec) -> Word:
    """The Python that trains."""
    return sky.interpreter(job) if isinstance(job, SkyJob) else at_home(job.python.interpreter)


def activation(job: JobSpec) -> tuple[str, ...]:
    """Lines of bash that make the interpreter usable where the launch script runs."""
    if not isinstance(job, SlurmJob):
        return job.python.activate
    if job.environment.container is not None:
        return tuple(slurm.modules(job))
    return (*slurm.modules(job), *slurm.activation(job), *job.python.activate)


def example(job: JobSpec) -> str:
    """What a user may add to the training, for the head of an artefact. As long in all cases: columns follow it."""
    return "--steps=50" if job.train.runs == "workload" else "ARG ARG..."


def again(job: JobSpec) -> str:
    """What to do after a stop. A script that saves nothing begins anew."""
    return "the same command goes on" if job.train.runs == "workload" else "start it again"


def values(job: JobSpec, command: Supervise, lines: str) -> dict[str, Any]:
    """What the templates of every launch script place; `lines`: the file that its activation lines are in."""
    procs = job.procs_per_node
    return {
        "name": job.name,
        "counted": "1 process" if procs == 1 else f"{procs} processes",
        "env": sorted(job.env.items()),
        "activate": activation(job),
        "activation": lines,
        "interpreter": interpreter(job),
        "supervise": command,
        "example": example(job),
        "again": again(job),
    }


def address(host: Host) -> str:
    """How the other hosts reach this one: as it says, else the host that ssh is told."""
    return host.address or ssh_host(host.ssh or host.name)


def ssh_host(destination: str) -> str:
    """The host in [user@]host or ssh://[user@]host[:port]; "" where none is named."""
    place = destination.removeprefix("ssh://")
    if place != destination:
        place = re.sub(r"(:[0-9]*)?/*$", "", place)
    return place.rpartition("@")[2]


def shares(micro_batches: int, weights: Sequence[int | Fraction]) -> Iterator[tuple[int, int]]:
    """Each rank's range of micro-batches, in proportion to the ranks' weights.

    What does not divide goes to the largest remainders, among equals to the first ranks; every rank
    gets one at least, from the one that has most. train/training/data.py counts the same.
    """
    total = sum(weights)
    counts = [int(weight * micro_batches // total) for weight in weights]
    rests = [weight * micro_batches % total for weight in weights]
    by_remainder = sorted(range(len(rests)), key=lambda rank: (-rests[rank], rank))
    for rank in by_remainder[: micro_batches - sum(counts)]:
        counts[rank] += 1
    for rank, count in enumerate(counts):
        if count == 0 and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[rank] = 1
    first = 0
    for count in counts:
        yield first, first + count
        first += count


def ranks(job: JobSpec) -> list[Rank]:
    """Every process, and what it does."""
    if isinstance(job, HostsJob):
        each = [(host.name, job.procs(host), job.weight(host)) for host in job.order]
    else:
        each = [("", job.procs_per_node, 1)] * job.nodes
    weights = [weight for _, procs, weight in each for _ in range(procs)]
    parts = shares(job.micro_batches, weights)
    found: list[Rank] = []
    for node_rank, (name, procs, _) in enumerate(each):
        for local_rank in range(procs):
            found.append(Rank(name, node_rank, len(found), local_rank, *next(parts)))
    return found


def backend(job: JobSpec) -> str:
    """gloo or nccl: what `auto` means for this job."""
    if job.backend != "auto":
        return job.backend
    return "nccl" if job.on_gpus else "gloo"


def rendezvous(job: JobSpec) -> str:
    """How the processes find each other, in words."""
    how = {"env": "env, without torchrun", "torchrun-static": "torchrun, static"}
    said, port = how.get(job.rendezvous.launcher, "torchrun, c10d"), job.rendezvous.port
    if isinstance(job, SlurmJob):
        return f"{said}: nodes meet at the first node, at a free port from {port} on"
    if isinstance(job, SkyJob):
        return f"{said}: machines meet at the first of SKYPILOT_NODE_IPS, at a port from {port} on"
    if not isinstance(job, HostsJob):
        return "standalone: torchrun picks a free port on 127.0.0.1"
    head = job.order[0]
    place = f"{head.name} ({address(head)}:{job.rendezvous.port})"
    if job.rendezvous.launcher == "env":
        return f"env: processes meet at {place}, without torchrun"
    if job.rendezvous.launcher == "torchrun-static":
        return f"torchrun, static: hosts are numbered as below and meet at {place}"
    few = f", {job.nodes.least} of them are enough" if job.nodes.elastic else ""
    return f"torchrun, c10d: hosts meet at {place}{few}; it numbers them when all are there"


def checkpoint_dir(job: JobSpec) -> Word:
    """Where the checkpoints of a task are, as a script beside the bundle says it."""
    if isinstance(job, SkyJob):
        return sky.local_dir(job)
    path = job.checkpoint_path
    if path.startswith(("/", "~/")) or path == "~":
        return at_home(path)
    return Joined((Var("beside"), "/" + path))


def store(job: JobSpec) -> str | Joined:
    """Where checkpoints of this task go that are to outlive the machine; "" where its disk is enough."""
    place = supervise.store(job)
    if place and isinstance(job, SlurmJob) and job.array:
        return Joined((f"{place.rstrip('/')}/", Var("SLURM_ARRAY_TASK_ID")))
    return place
