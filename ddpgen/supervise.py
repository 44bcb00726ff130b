"""A job → the command line of its supervisor (train/supervisor/words.py has its form). Pure.

Owns which options the supervisor, the launcher and the training get. What equals the runtime's default is
left out: the bundle pins the runtime, and bundle.json records every value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen import slurm as slurm_tier
from ddpgen.fields import seconds
from ddpgen.shell import Joined, Word, at_home, pieces
from ddpgen.spec import Checkpoint, JobSpec, Rendezvous, Train

if TYPE_CHECKING:
    from fractions import Fraction

    from ddpgen.spec_slurm import SlurmJob

# Variables that a supervisor pins, unless the spec's env has them.
PINNED = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "CUBLAS_WORKSPACE_CONFIG",
    "TORCH_CPP_LOG_LEVEL",
    "PYTHONUNBUFFERED",
)
_FLAGS = (
    "optimizer lr weight_decay momentum schedule warmup_steps grad_clip seed precision reduction "
    "comm_hook bucket_cap_mb threads data_workers eval_every log_every"
)


class Supervise(NamedTuple):
    """The sections of the command, in order; what the user adds comes behind them."""

    options: tuple[Word, ...]
    launcher: tuple[Word, ...]
    program: tuple[Word, ...]


def local(job: JobSpec, backend: str, store: str) -> Supervise:
    """The command of a job on one machine."""
    launcher = (
        "torchrun",
        "--standalone",
        "--local-addr=127.0.0.1",
        *_processes(job, job.restarts),
    )
    return Supervise(
        tuple(options(job, backend, store)), launcher, tuple(program(job, backend, store))
    )


def slurm(job: SlurmJob, backend: str, store: str) -> Supervise:
    """The command of a job on the nodes that Slurm gives it."""
    told = (*options(job, backend, store), *_slurm_options(job))
    words = tuple(program(job, backend, store, world="{world_size}"))
    return Supervise(told, tuple(_slurm_launcher(job)), words)


def _slurm_options(job: SlurmJob) -> Iterator[Word]:
    if job.rendezvous.timeout != Rendezvous().timeout:
        yield f"--timeout={seconds(job.rendezvous.timeout)}"
    first = job.rendezvous.port
    yield f"--ports={first}-{min(first + 999, 65535)}"
    yield f"--requeues={job.requeues}"
    if job.restarts != JobSpec.restarts:
        yield f"--restarts={job.restarts}"
    if job.array is not None:
        yield "--array"
    if job.setup:
        yield "--setup=slurm.setup.sh"
    container = job.environment.container
    if container is None:
        return
    yield Joined(("--python=", *pieces(at_home(job.python.interpreter))))
    if job.python.activate or any(slurm_tier.activation(job)) or job.env:
        yield "--source=slurm.container.sh"
    yield from (Joined(("--in=", *pieces(word))) for word in slurm_tier.inside(job))
    yield from (Joined(("--srun=", *pieces(word))) for word in slurm_tier.on_nodes(job))


def _slurm_launcher(job: SlurmJob) -> Iterator[Word]:
    if job.rendezvous.launcher == "env":
        yield "spawn"
        yield f"--procs={job.procs_per_node}"
        yield from (
            "--first-rank={first_rank}",
            "--world-size={world_size}",
            "--node-rank={node_rank}",
        )
        return
    restarts = job.restarts
    yield from ("torchrun", "--nnodes={nodes}")
    if job.rendezvous.launcher == "torchrun-static":
        yield from ("--node-rank={node_rank}", "--master-addr={head}", "--master-port={port}")
        restarts = 0  # torchrun's own hardly ever find each other again with fixed ranks
    else:
        yield from ("--rdzv-backend=c10d", "--rdzv-endpoint={head}:{port}", "--rdzv-id={launch}")
        # Left alone, torchrun guesses from the hostname whether it is to be the host.
        waits = max(1, round(job.rendezvous.timeout))
        yield f"--rdzv-conf=is_host={{is_head}},join_timeout={waits}"
    yield "--local-addr={address}"
    yield from _processes(job, restarts)
    # Slurm signals every process of a step: the supervisor has torchrun started with these ignored.
    yield "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT"


def _processes(job: JobSpec, restarts: int) -> Iterator[Word]:
    yield f"--nproc-per-node={job.procs_per_node}"
    yield f"--max-restarts={restarts}"
    # How long a crash goes unnoticed; torchrun's own default is coarser in some versions.
    yield "--monitor-interval=0.1"


def options(job: JobSpec, backend: str, store: str) -> Iterator[Word]:
    """What the supervisor itself is told, on every tier."""
    yield f"--job={job.name}"
    yield f"--checkpoint-dir={checkpoint_dir(job)}"
    if job.procs_per_node != 1:
        yield f"--procs={job.procs_per_node}"
    if job.gpus_per_node:
        yield f"--gpus={job.gpus_per_node}"
    if backend != "gloo":
        yield f"--backend={backend}"
    if job.nic:
        yield f"--nic={job.nic}"
    if job.train.threads != 1:
        yield f"--threads={job.train.threads}"
    kept = sorted(name for name in job.env if name in PINNED)
    if kept:
        yield f"--keep={','.join(kept)}"
    if store:
        yield f"--store={store}"
    if not job.preflight.enabled:
        yield "--no-preflight"
    if job.preflight.ignore:
        yield f"--ignore={','.join(job.preflight.ignore)}"
    if job.train.script or job.train.reduction != "tree":
        yield "--bits-may-differ"


def checkpoint_dir(job: JobSpec) -> str:
    """Relative to the bundle: a relative place lies beside it."""
    path = job.checkpoint.path or f"checkpoints/{job.name}"
    return path if path.startswith(("/", "~/")) or path == "~" else f"../{path}"


def program(
    job: JobSpec, backend: str, store: str, weight: int | Fraction = 1, world: str = ""
) -> Iterator[Word]:
    """What each process runs. `world`: how many they are, where they have to be told."""
    if job.train.script:
        yield from ("script", f"code/{job.train.script}")
        for name, value in job.train.args.items():
            yield from _script_argument(name, value)
        return
    yield "run"
    yield from training(job.train)
    yield f"--backend={backend}"
    if world:
        yield f"--world-size={world}"
    if weight != 1:
        yield f"--weight={weight}"
    usual = Rendezvous()
    if job.rendezvous.timeout != usual.timeout:
        yield f"--rendezvous-timeout={seconds(job.rendezvous.timeout)}"
    if job.rendezvous.collective_timeout != usual.collective_timeout:
        yield f"--collective-timeout={seconds(job.rendezvous.collective_timeout)}"
    yield "--checkpoint-dir={checkpoint_dir}"
    if store:
        yield "--checkpoint-store={store}"
    kept = Checkpoint()
    if job.checkpoint.every != kept.every:
        yield f"--checkpoint-every={job.checkpoint.every}"
    if job.checkpoint.keep != kept.keep:
        yield f"--checkpoint-keep={job.checkpoint.keep}"
    if job.code:
        yield "--code-dir=code"
    for name, value in job.train.args.items():
        yield f"--arg={name}={_json(value)}"


def training(train: Train) -> Iterator[Word]:
    """The flags that decide what is learned, without those that have the runtime's default."""
    yield f"--workload={train.workload}"
    yield f"--steps={train.steps}" if train.steps else f"--epochs={train.epochs!r}"
    yield f"--global-batch-size={train.global_batch_size}"
    yield f"--micro-batch-size={train.micro_batch_size}"
    usual = {field.name: field.default for field in fields(Train)}
    for name in _FLAGS.split():
        value = getattr(train, name)
        if value is not None and value != usual[name]:
            yield f"--{name.replace('_', '-')}={value}"
    if train.find_unused_parameters:
        yield "--find-unused-parameters"


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
