"""A job → ranks, micro-batches, rendezvous, environment and the torchrun argv.

Owns every decision that a launch script only writes down. Knows no scheduler's syntax and touches
no network: values in, values out. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddpgen.fields import seconds
from ddpgen.shell import Joined, Var, Word
from ddpgen.spec import JobSpec


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


class Export(NamedTuple):
    """A variable of the job's environment, and why it is set."""

    name: str
    value: Word
    why: str


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
    pinned: tuple[Export, ...]
    nic: str | None
    checkpoint_dir: Word
    torchrun: tuple[Word, ...]
    check: tuple[Word, ...]

    @property
    def needs_home(self) -> bool:
        """Whether a path begins at the home directory, which only the host knows."""
        words = (self.interpreter, self.checkpoint_dir)
        return any(
            Var("HOME") in (word.parts if isinstance(word, Joined) else (word,)) for word in words
        )

    @property
    def world_size(self) -> int:
        """Processes over all nodes."""
        return sum(len(node.ranks) for node in self.nodes)


def plan(job: JobSpec, tier: str) -> LaunchPlan:
    """The plan of a job that the reader found valid for `tier`."""
    pinned = tuple(export for export in _pinned(job) if export.name not in job.env)
    return LaunchPlan(
        tier=tier,
        name=job.name,
        nodes=_nodes(job),
        micro_batches=job.micro_batches,
        backend=_backend(job),
        rendezvous="standalone: torchrun picks a free port on 127.0.0.1",
        interpreter=_on_host(job.python.interpreter),
        activate=job.python.activate,
        env=tuple(Export(name, value, "") for name, value in sorted(job.env.items())),
        pinned=pinned,
        nic=job.nic,
        checkpoint_dir=_checkpoint_dir(job),
        torchrun=(*_torchrun(job), *_program(job)),
        check=() if job.train.script else tuple(_enough(job)),
    )


def shares(micro_batches: int, world_size: int) -> Iterator[tuple[int, int]]:
    """Each rank's range of micro-batches: as even as can be, the first ranks get one more."""
    each, more = divmod(micro_batches, world_size)
    first = 0
    for rank in range(world_size):
        end = first + each + (rank < more)
        yield first, end
        first = end


def _nodes(job: JobSpec) -> tuple[Node, ...]:
    ranges = list(shares(job.micro_batches, job.world_size))
    nodes = []
    for node_rank in range(job.nodes):
        start = node_rank * job.procs_per_node
        ranks = (Rank(start + i, i, *ranges[start + i]) for i in range(job.procs_per_node))
        nodes.append(Node(node_rank, tuple(ranks)))
    return tuple(nodes)


def _backend(job: JobSpec) -> str:
    if job.backend != "auto":
        return job.backend
    return "nccl" if job.gpus_per_node else "gloo"


def _on_host(path: str) -> Word:
    """A path of the host, its home filled in there and not here."""
    if path == "~":
        return Var("HOME")
    return Joined((Var("HOME"), path[1:])) if path.startswith("~/") else path


def _checkpoint_dir(job: JobSpec) -> Word:
    path = job.checkpoint.dir or f"checkpoints/{job.name}"
    if path.startswith(("/", "~/")) or path == "~":
        return _on_host(path)
    return Joined((Var("beside"), "/" + path))


def _pinned(job: JobSpec) -> Iterator[Export]:
    nic = Var("nic")
    yield Export("GLOO_SOCKET_IFNAME", nic, "Left alone, gloo may pick docker0 or a VPN and hang.")
    yield Export("NCCL_SOCKET_IFNAME", Joined(("=", nic)), "`=` makes NCCL take the name exactly.")
    yield Export(
        "OMP_NUM_THREADS",
        str(job.train.threads),
        "Threads per process: more than the cores allow is slow, and another number gives other bits.",
    )
    yield Export(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "1",
        "Restarted workers would read the dead ones' addresses from a shared store and fail.",
    )
    yield Export(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS gives the same bits twice only like this."
    )
    yield Export(
        "PYTHONUNBUFFERED", "1", "The last words of a crashed process are the ones needed."
    )


def _torchrun(job: JobSpec) -> Iterator[Word]:
    yield Var("python")
    yield from ("-m", "torch.distributed.run")
    # Said although it is the default: Kubernetes operators set other defaults by PET_NNODES.
    yield from ("--standalone", "--nnodes=1", "--local-addr=127.0.0.1")
    yield f"--nproc-per-node={job.procs_per_node}"
    yield f"--max-restarts={job.restarts}"
    # How long a crash goes unnoticed; torchrun's own default is coarser in some versions.
    yield "--monitor-interval=0.1"


def _program(job: JobSpec) -> Iterator[Word]:
    yield from ("-m", "train")
    if job.train.script:
        yield from ("script", f"code/{job.train.script}")
        for name, value in job.train.args.items():
            yield from _script_argument(name, value)
        return
    yield "run"
    yield from _training(job)
    yield f"--backend={_backend(job)}"
    yield f"--world-size={job.world_size}"
    yield f"--rendezvous-timeout={seconds(job.rendezvous.timeout)}"
    yield f"--collective-timeout={seconds(job.rendezvous.collective_timeout)}"
    yield Joined(("--checkpoint-dir=", Var("checkpoint_dir")))
    every = job.checkpoint.every
    yield f"--checkpoint-every={every}"
    yield f"--checkpoint-keep={job.checkpoint.keep}"
    if job.code:
        yield "--code-dir=code"
    for name, value in job.train.args.items():
        yield f"--arg={name}={_json(value)}"


def _training(job: JobSpec) -> Iterator[Word]:
    """The flags that decide what is learned."""
    train = job.train
    yield f"--workload={train.workload}"
    yield f"--steps={train.steps}" if train.steps else f"--epochs={train.epochs!r}"
    names = (
        "global_batch_size micro_batch_size optimizer lr weight_decay momentum schedule "
        "warmup_steps grad_clip seed precision reduction comm_hook bucket_cap_mb threads "
        "data_workers eval_every log_every"
    )
    for name in names.split():
        value = getattr(train, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}={value}"
    if train.find_unused_parameters:
        yield "--find-unused-parameters"


def _enough(job: JobSpec) -> Iterator[Word]:
    """The flags that arguments added by hand are judged together with."""
    needed = ("workload", "steps", "epochs", "global-batch-size", "micro-batch-size")
    for word in _training(job):
        if isinstance(word, str) and word.partition("=")[0][2:] in needed:
            yield word


def _script_argument(name: str, value: Any) -> Iterator[str]:
    if value is True:
        yield f"--{name}"
    elif isinstance(value, list):
        for item in value:
            yield f"--{name}={item if isinstance(item, str) else _json(item)}"
    elif value is not None and value is not False:
        yield f"--{name}={value if isinstance(value, str) else _json(value)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
