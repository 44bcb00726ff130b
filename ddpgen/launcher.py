"""The launchers: the command that starts the processes of one node so that all nodes meet.

Owns the argv of torchrun in its three forms and of `train spawn`, with the reason beside each choice;
and that of the preflight before it.
What a script finds out on its host (addresses, ranks, who takes part) is a Var. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.fields import seconds
from ddpgen.shell import Joined, Var, Word
from ddpgen.spec import HostsJob, JobSpec
from ddpgen.spec_slurm import SlurmJob

_TORCHRUN = ("-m", "torch.distributed.run")
# Hosts that are started together come within this time; one that comes later is taken in by a restart.
_LAST_CALL_S = 15
_NO_END = 1000


def standalone(job: JobSpec) -> Iterator[Word]:
    """torchrun on one machine: needs no address, no name and no free port of ours."""
    yield Var("python")
    yield from _TORCHRUN
    # Said although it is the default: Kubernetes operators set other defaults by PET_NNODES.
    yield from ("--standalone", "--nnodes=1", "--local-addr=127.0.0.1")
    yield f"--nproc-per-node={job.procs_per_node}"
    yield from _watched(job.restarts)


def on_host(job: JobSpec) -> Iterator[Word]:
    """The launcher of one host; `job` is the job as that host sees it."""
    elastic = isinstance(job, HostsJob) and job.nodes.elastic
    yield Var("python")
    if job.rendezvous.launcher == "env":
        yield from ("-m", "train", "spawn")
        yield f"--procs={job.procs_per_node}"
        yield Joined(("--first-rank=", Var("first_rank")))
        yield Joined(("--world-size=", Var("world_size")))
        yield Joined(("--node-rank=", Var("node_rank")))
        yield "--"
        yield Var("python")
        return
    yield from _TORCHRUN
    yield Joined(("--nnodes=", Var("nodes")))
    yield f"--nproc-per-node={job.procs_per_node}"
    if job.rendezvous.launcher == "torchrun-static":
        yield Joined(("--node-rank=", Var("node_rank")))
        yield Joined(("--master-addr=", Var("head_address")))
        yield Joined(("--master-port=", _port(job)))
        # torchrun's own restarts hardly ever find each other again with fixed ranks.
        restarts = 0
    else:
        yield from _c10d(job, elastic)
        # Every host that comes or goes costs the others' torchrun a restart. The training itself gives
        # up when it crashes without getting on.
        restarts = _NO_END if elastic else job.restarts
    # What the others reach this host by. Left alone, torchrun takes the hostname, which may mean
    # nothing to them, or 127.0.1.1.
    yield Joined(("--local-addr=", Var("address")))
    yield from _watched(restarts)
    if job.signalled:
        # Slurm signals every process of a step, SkyPilot every one below its shell. The script turns
        # that into a clean stop; torchrun, which would end the processes in mid-step, is started with
        # these ignored.
        yield "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT"


def _port(job: JobSpec) -> str | Var:
    return Var("port") if job.shares_machines else str(job.rendezvous.port)


def _c10d(job: JobSpec, elastic: bool) -> Iterator[Word]:
    yield "--rdzv-backend=c10d"
    yield Joined(("--rdzv-endpoint=", Var("head_address"), ":", _port(job)))
    yield Joined(("--rdzv-id=", Var("launch")))
    # Left alone, torchrun guesses from the hostname whether it is to be the host, and with a second
    # card or a VPN nobody is.
    waits = f",join_timeout={max(1, round(job.rendezvous.timeout))}"
    if elastic:
        waits += f",last_call_timeout={_LAST_CALL_S}"
    yield Joined(("--rdzv-conf=is_host=", Var("is_head"), waits))


def _watched(restarts: int) -> Iterator[Word]:
    yield f"--max-restarts={restarts}"
    # How long a crash goes unnoticed; torchrun's own default is coarser in some versions.
    yield "--monitor-interval=0.1"


def preflight(job: JobSpec, backend: str) -> Iterator[Word]:
    """What the host looks at before; `job` is the job as that host sees it."""
    yield Var("python")
    yield from ("-m", "train", "preflight")
    yield f"--job={job.name}"
    yield Joined(("--checkpoint-dir=", Var("checkpoint_dir")))
    yield f"--procs={job.procs_per_node}"
    yield f"--backend={backend}"
    if job.gpus_per_node:
        yield f"--gpus={job.gpus_per_node}"
    if job.train.reduction == "tree" and not job.train.script:
        yield "--same-bits"
    # Slurm may start the job on other nodes next time: what one writes, all have to see.
    shared = True if isinstance(job, SlurmJob) else job.checkpoint.shared
    if shared is not None:
        yield f"--shared={str(shared).lower()}"
    if job.preflight.ignore:
        yield f"--ignore={','.join(job.preflight.ignore)}"
    if job.nic:
        yield f"--nic={job.nic}"
    if not job.meets:
        yield f"--world-size={job.world_size}"
        return
    yield Joined(("--me=", Var("me")))
    yield Joined(("--head=", Var("head_address")))
    yield Joined(("--port=", _port(job)))
    yield Joined(("--node-rank=", Var("node_rank")))
    yield Joined(("--nodes=", Var("nodes")))
    yield Joined(("--world-size=", Var("world_size")))
    yield Joined(("--roster=", Var("roster")))
    yield f"--timeout={seconds(job.rendezvous.timeout)}"
