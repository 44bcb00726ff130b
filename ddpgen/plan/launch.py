"""A job → ranks, micro-batches, rendezvous, environment and the training command.

Owns every decision that a launch script only writes down. Knows no scheduler's syntax and touches
no network: values in, values out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.plan import sky, slurm, supervise
from ddpgen.plan.sky import SkyPlan
from ddpgen.plan.slurm import SlurmPlan
from ddpgen.plan.supervise import Supervise
from ddpgen.shell import Joined, Var, Word, at_home, pieces
from ddpgen.spec.job import Host, HostsJob, JobSpec
from ddpgen.spec.sky import SkyJob
from ddpgen.spec.slurm import SlurmJob

if TYPE_CHECKING:
    from fractions import Fraction


class Rank(NamedTuple):
    """One process; its micro-batches are first, first + 1, … end - 1."""

    rank: int
    local_rank: int
    first: int
    end: int


class Node(NamedTuple):
    """One machine and its processes."""

    node_rank: int
    ranks: tuple[Rank, ...]
    name: str = ""


class Export(NamedTuple):
    """A variable of the job's environment, and why it is set."""

    name: str
    value: Word
    why: str


@dataclass(frozen=True)
class HostPlan:
    """What is one host's own; hosts.json and the plan hold the rest. Hosts that are alike share `supervise`."""

    name: str
    ssh: str
    dir: str
    address: str
    procs: int
    interpreter: Word
    activate: tuple[str, ...]
    env: tuple[Export, ...]
    supervise: Supervise


@dataclass(frozen=True)
class HostsPlan:
    """What the tier `hosts` has beside the rest. `hosts`: by node rank, the head first."""

    hosts: tuple[HostPlan, ...]
    launcher: str
    least: int
    restarts: int
    ssh_options: tuple[str, ...]
    checkpoint_path: str

    @property
    def elastic(self) -> bool:
        """Whether fewer than all hosts can go on."""
        return self.least < len(self.hosts)


@dataclass(frozen=True)
class LaunchPlan:
    """Everything a launch script says, finished."""

    tier: str
    name: str
    nodes: tuple[Node, ...]
    micro_batches: int
    backend: str
    rendezvous: str
    interpreter: Word
    activate: tuple[str, ...]
    env: tuple[Export, ...]
    checkpoint_dir: Word
    store: str | Joined
    supervise: Supervise
    hosts: HostsPlan | None = None
    slurm: SlurmPlan | None = None
    sky: SkyPlan | None = None

    @property
    def world_size(self) -> int:
        """Processes over all nodes."""
        return sum(len(node.ranks) for node in self.nodes)


def plan(job: JobSpec, tier: str) -> LaunchPlan:
    """The plan of a job that the reader found valid for `tier`."""
    talk = backend(job)  # over all hosts, so it is asked for once
    hosts = _hosts(job, talk) if isinstance(job, HostsJob) else None
    batch = _slurm(job) if isinstance(job, SlurmJob) else None
    return LaunchPlan(
        tier=tier,
        name=job.name,
        nodes=_nodes(job),
        micro_batches=job.micro_batches,
        backend=talk,
        rendezvous=_rendezvous(job),
        interpreter=_interpreter(job),
        activate=tuple(_activation(job)),
        # Of the tier sky they stand in its YAML, where `sky launch --env` can say otherwise.
        env=() if isinstance(job, SkyJob) else _env(job),
        checkpoint_dir=_checkpoint_dir(job),
        store=_store(job),
        supervise=hosts.hosts[0].supervise if hosts else _supervise(job, talk),
        hosts=hosts,
        slurm=batch,
        sky=sky.plan(job) if isinstance(job, SkyJob) else None,
    )


def _supervise(job: JobSpec, backend: str) -> Supervise:
    if isinstance(job, SlurmJob):
        return supervise.slurm(job, backend, _place(job))
    if isinstance(job, SkyJob):
        return supervise.sky(job, backend, _place(job), sky.hook(job))
    return supervise.local(job, backend, _place(job))


def _interpreter(job: JobSpec) -> Word:
    return sky.interpreter(job) if isinstance(job, SkyJob) else at_home(job.python.interpreter)


def _activation(job: JobSpec) -> Iterator[str]:
    if isinstance(job, SlurmJob):
        if job.environment.container is None:
            yield from slurm.modules(job)
        yield from slurm.activation(job)
    yield from job.python.activate


def _slurm(job: SlurmJob) -> SlurmPlan:
    contained = job.environment.container is not None
    inside = (*slurm.activation(job), *job.python.activate)
    array = (Joined(("-", Var("SLURM_ARRAY_TASK_ID"))),) if job.array is not None else ()
    saved = (_checkpoint_dir(job), *array, Joined(("/bundle-", Var("SLURM_JOB_ID"))))
    return SlurmPlan(
        directives=tuple(slurm.directives(job)),
        least=job.nodes.least,
        most=int(job.nodes),
        procs=job.procs_per_node,
        cpus_per_task=slurm.cpus_per_task(job),
        time_s=job.time,
        warning_s=slurm.warning_s(job),
        requeues=job.requeues,
        setup=job.setup,
        activation=tuple(slurm.modules(job) if contained else _activation(job)),
        contained=inside if contained else None,
        saved=Joined(tuple(piece for word in saved for piece in pieces(word))),
    )


def _hosts(job: HostsJob, backend: str) -> HostsPlan:
    return HostsPlan(
        hosts=tuple(_each_host(job, backend)),
        launcher=job.rendezvous.launcher,
        least=job.nodes.least,
        restarts=job.restarts,
        ssh_options=job.ssh_options,
        checkpoint_path=_checkpoint_path(job),
    )


def _each_host(job: HostsJob, backend: str) -> Iterator[HostPlan]:
    """The hosts by node rank. Of ten thousand most are alike: what follows from a host's own fields is
    computed once for all that have the same."""
    alike: dict[Any, tuple[HostsJob, tuple[Export, ...], Supervise]] = {}
    for host in job.order:
        env = tuple(host.env.items())
        own = (host.procs, host.gpus, host.nic, host.share, host.dir, env, id(host.python))
        if own not in alike:
            here = job.on(host)
            command = supervise.hosts(here, job.weight(host), backend, _place(job))
            alike[own] = here, _env(here), command
        here, exports, command = alike[own]
        yield HostPlan(
            name=host.name,
            ssh=host.ssh or host.name,
            dir=here.dir,
            address=address(host),
            procs=here.procs_per_node,
            interpreter=at_home(here.python.interpreter),
            activate=here.python.activate,
            env=exports,
            supervise=command,
        )


def address(host: Host) -> str:
    """How the other hosts reach this one: as it says, else the host that ssh is told."""
    return host.address or ssh_host(host.ssh or host.name)


def ssh_host(destination: str) -> str:
    """The host in [user@]host or ssh://[user@]host[:port]; "" where none is named."""
    place = destination.removeprefix("ssh://")
    if place != destination:
        place = re.sub(r"(:[0-9]*)?/*$", "", place)
    return place.rpartition("@")[2]


def below_home(*words: Word) -> bool:
    """Whether a path begins at the home directory, which only the host knows."""
    return any(
        Var("HOME") in (word.parts if isinstance(word, Joined) else (word,)) for word in words
    )


def shares(micro_batches: int, weights: Sequence[int | Fraction]) -> Iterator[tuple[int, int]]:
    """Each rank's range of micro-batches, in proportion to the ranks' weights.

    What does not divide goes to the largest remainders, among equals to the first ranks; every rank
    gets one at least, from the one that has most. train/data.py counts the same.
    """
    total = sum(weights)
    counts = [int(weight * micro_batches // total) for weight in weights]
    rests = [weight * micro_batches % total for weight in weights]
    by_remainder = sorted(range(len(rests)), key=lambda rank: (-rests[rank], rank))
    for rank in by_remainder[: micro_batches - sum(counts)]:
        counts[rank] += 1
    _leave_none_without(counts)
    first = 0
    for count in counts:
        yield first, first + count
        first += count


def _leave_none_without(counts: list[int]) -> None:
    """Give each rank that has nothing one from the rank that has most, the first of equals."""
    if 0 not in counts:
        return
    from heapq import heapify, heapreplace  # few jobs need it

    most = [(-count, rank) for rank, count in enumerate(counts)]
    heapify(most)
    for rank, count in enumerate(counts):
        negative, giver = most[0]
        if count == 0 and negative < -1:
            counts[giver] -= 1
            counts[rank] = 1
            heapreplace(most, (negative + 1, giver))


def _nodes(job: JobSpec) -> tuple[Node, ...]:
    nodes: list[Node] = []
    if isinstance(job, HostsJob):
        each = [(host.name, job.procs(host), job.weight(host)) for host in job.order]
    else:
        each = [("", job.procs_per_node, 1)] * job.nodes
    weights = [weight for _, procs, weight in each for _ in range(procs)]
    ranges = list(shares(job.micro_batches, weights))
    start = 0
    for node_rank, (name, procs, _) in enumerate(each):
        ranks = tuple(Rank(start + i, i, *ranges[start + i]) for i in range(procs))
        nodes.append(Node(node_rank, ranks, name))
        start += procs
    return tuple(nodes)


def backend(job: JobSpec) -> str:
    """gloo or nccl: what `auto` means for this job."""
    if job.backend != "auto":
        return job.backend
    return "nccl" if job.on_gpus else "gloo"


def _rendezvous(job: JobSpec) -> str:
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


def _env(job: JobSpec) -> tuple[Export, ...]:
    return tuple(Export(name, value, "") for name, value in sorted(job.env.items()))


def _checkpoint_dir(job: JobSpec) -> Word:
    if isinstance(job, SkyJob):
        return sky.local_dir(job)
    path = _checkpoint_path(job)
    if path.startswith(("/", "~/")) or path == "~":
        return at_home(path)
    return Joined((Var("beside"), "/" + path))


def _checkpoint_path(job: JobSpec) -> str:
    return job.checkpoint.path or f"checkpoints/{job.name}"


def _store(job: JobSpec) -> str | Joined:
    """Where checkpoints of this task go that are to outlive the machine; "" where its disk is enough."""
    place = _place(job)
    if place and isinstance(job, SlurmJob) and job.array:
        return Joined((f"{place.rstrip('/')}/", Var("SLURM_ARRAY_TASK_ID")))
    return place


def _place(job: JobSpec) -> str:
    """The same for all tasks of an array."""
    if isinstance(job, SkyJob) and job.bucket:
        return sky.place(job, job.bucket)
    return job.checkpoint.url or ""
