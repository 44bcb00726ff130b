"""A worker before its first step: it meets the others, and refuses a run that cannot be exact.

trainer.run gives the order of the checks that need a model.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train.base.console import say
from train.base.errors import TrainError, start_command
from train.base.scheduler import VARIABLE
from train.checkpoint.resume import NewestCheckpoint
from train.checkpoint.weights import weights_sha256
from train.distributed import agreement, bits
from train.distributed.gradients import Gradients
from train.distributed.process_group import (
    RankInfo,
    World,
    another_connection,
    join,
    leave_process_group,
)
from train.health.phase import JOINING, NOW, WAITING, doing
from train.health.reporter import Reporter
from train.run.config import RunConfig
from train.run.lock import Fence, FencedOffError, claim
from train.run.node import Node
from train.run.provenance import differences
from train.run.stop import StopRequest
from train.training import numerics
from train.training.data import ranges, shares_by_weight
from train.training.environment import environment, identity
from train.training.run_info import RunInfo
from train.training.shares import Shares

if TYPE_CHECKING:
    from train.checkpoint.remote import RemoteCheckpoints

# How long the peers wait while rank 0 downloads a checkpoint from a store or uploads one, because a checkpoint may be
# large and a store far away.
STORE_S = 6 * 3600.0


@dataclass(frozen=True)
class Meeting:
    """The world that a worker has joined.

    `shares`: the micro-batches of each rank in a step. `environments`: the hosts' environments by their hash, only on
    rank 0. `stop`: the request to stop. `fence`: the right to write to the directory, only on rank 0. `host`: this
    host's own directory with its status, only on the first rank of each of several hosts.
    """

    world: World
    shares: Shares
    assembly: agreement.Assembly
    environments: dict[str, Any]
    stop: StopRequest
    fence: Fence | None
    host: Node | None


def meet(info: RunInfo) -> Meeting:
    """Join the process group, compare the hosts and take the directory. Raises TrainError, FencedOffError."""
    config, directory, node = info.config, info.directory, info.node
    NOW.name = "starting"
    rank_info = RankInfo.from_environment(os.environ)
    check_world_size(config, rank_info, node is not None)
    fence = None
    if rank_info.rank == 0 and node is None:
        # If no supervisor has claimed the directory, rank 0 does.
        fence = Fence(directory, info.attempt or claim_by_hand(directory))
    numerics.pin(config.threads)
    timeouts = config.rendezvous_timeout, config.collective_timeout
    with doing(JOINING), WAITING:
        world = join(rank_info, config.backend, *timeouts, info.failures)
    # Install the signal handler only after the rendezvous: until then SIGTERM must end a worker that waits for missing
    # peers.
    scheduler = os.environ.get(VARIABLE, "")
    stop = StopRequest(directory / "stop", scheduler, watches=rank_info.local_rank == 0)
    facts = numerics.facts(config, world.device)
    own_environment = environment(facts, world.device) if rank_info.local_rank == 0 else {}
    assembly = agreement.assemble(
        world, config.weight, facts, identity(own_environment), directory, node
    )
    environments = assembly.gather_environments(world, own_environment)
    connect_reporters(info.reporter, world)
    host = None
    if node is not None:
        if rank_info.local_rank == 0:
            agreement.enter(node, assembly)
            host = node
        fence = agreement.take_directory(directory, assembly, world)
    shares = Shares(ranges(counts(config, assembly)), world.rank, config)
    if world.rank == 0:
        agreement.introduce(assembly, world.backend, shares.ranges, config.determinism)
    keep_if_hosts_differ(shares, assembly, world.rank)
    return Meeting(world, shares, assembly, environments, stop, fence, host)


def leave(world: World, info: RunInfo, gradients: Gradients | None = None) -> None:
    """Leave the world after a good end. No rank leaves before all are done."""
    if info.failures is not None:
        world.barrier()
        info.failures.close()
    info.reporter.stop()
    leave_process_group(world, gradients)


def check_world_size(config: RunConfig, rank_info: RankInfo, among_hosts: bool) -> None:
    """Raise TrainError when more or fewer processes were started than the artefacts were written for."""
    if config.world_size in (None, rank_info.world_size):
        return
    mismatch = f"planned for {config.world_size} processes and started as {rank_info.world_size}"
    if among_hosts and rank_info.world_size < (config.world_size or 0):
        # The supervisor counted the processes from the list of nodes, so a node of the list is missing.
        raise TrainError(
            f"{mismatch}: torchrun has left a node out, as it does when the clocks of the nodes are 10 s "
            "apart or more; compare them (`date +%s` on each at once; `ddpgen explain CLK001`), let "
            "all keep time by NTP, and start the job again"
        )
    raise TrainError(
        f"{mismatch}; start the job by its launch script, or render it again for this number"
    )


def counts(config: RunConfig, assembly: agreement.Assembly) -> tuple[int, ...]:
    """Return the number of micro-batches of a step for each rank. Raises TrainError."""
    weights = [member.weight for member in assembly.members]
    counts = config.shares or shares_by_weight(config.micro_batches, weights)
    if len(counts) != len(weights):
        raise TrainError(f"--shares names {len(counts)} ranks, the world has {len(weights)}")
    return counts


def keep_if_hosts_differ(shares: Shares, assembly: agreement.Assembly, rank: int) -> None:
    """Let no micro-batch move if hosts may compute other bits, because the weights would depend on the moment of a
    change."""
    if not shares.balances or not (assembly.differences() or assembly.other_bits()):
        return
    shares.balances = False
    if rank == 0:
        say(
            "share: auto leaves the micro-batches where they are, because the weights would depend on the moment of a "
            "change; for a fixed split, write a share for each host"
        )


def claim_by_hand(directory: Path) -> str:
    """Do a supervisor's part: take the directory, and delete an old request to stop. Returns the attempt id."""
    job = os.environ.get("DDPGEN_JOB", "(started by hand)")
    attempt = claim(directory, job, os.getpid(), scheduler=os.environ.get(VARIABLE, ""))
    (directory / "stop").unlink(missing_ok=True)
    return attempt


def connect_reporters(reporter: Reporter, world: World) -> None:
    """Connect the reporters of this world with each other, over the network if it has several hosts."""
    name = world.all_gather(secrets.token_hex(4))[0]
    reporter.meet(name, another_connection(world.store) if len(world.layout) > 1 else None)
    if world.backend == "nccl":
        # On a timeout NCCL's watchdog aborts the process without an exception, so report before that.
        reporter.speak_before(world.collective_timeout, lambda line: say(line, world.rank))


@contextmanager
def end_all_when_fenced_off(node: Node | None) -> Iterator[None]:
    """Within this context, end the job on all hosts if rank 0 may not write any more."""
    try:
        yield
    except FencedOffError as error:
        if node is None:
            raise
        node.check()  # raises if only this host was started again: then the others go on without it
        raise TrainError(str(error)) from None


@contextmanager
def open_store(
    config: RunConfig, directory: Path, fence: Fence | None, world: World
) -> Iterator[RemoteCheckpoints | None]:
    """If there is a store, rank 0 takes it and downloads its newest checkpoint.

    Yields the store on rank 0, and None on other ranks or without a store. Raises TrainError on every rank if rank 0
    cannot take the store or download from it. A job that fails for good within this context records the reason in the
    store.
    """
    if not config.checkpoint_store:
        yield None
        return
    remote, why = None, ""
    if fence is not None:
        from train.checkpoint.remote import open_remote  # only if there is a store

        job = os.environ.get("DDPGEN_JOB", "(started by hand)")
        try:
            place, keep = config.checkpoint_store, config.checkpoint_keep
            remote = open_remote(place, directory, keep, fence, f"{job} {fence.attempt}")
            remote.pull(fence.check)
        except (TrainError, FencedOffError) as error:
            why = str(error)
    try:
        agreement.agree(world, "checkpoint store", why, STORE_S)
        yield remote
    except TrainError as error:
        if remote is not None:
            remote.give_up(str(error))
        raise


def check_settings(
    config: RunConfig, settings: dict[str, Any], world: World, newest: NewestCheckpoint
) -> list[str]:
    """Compare this run with the one that wrote the checkpoint, and return the accepted changes of settings.

    Raises TrainError if the settings differ and the changes are not accepted. Warns if only the bits may differ.
    """
    now = _as_json(settings)
    # Checkpoints of older versions do not record `determinism`.
    before = {"determinism": "default", **newest.source.meta.get("settings", {})}
    accepted = differences(before, now)
    if accepted and not config.accept_changes:
        raise TrainError(
            f"the checkpoint of step {newest.source.step} was written with other settings: "
            f"{'; '.join(accepted)}. Use another checkpoint.dir to start over, or add "
            "--accept-changes to the training command to resume from it with the new settings "
            f"({start_command(len(world.layout) > 1)} --accept-changes)"
        )
    if world.rank == 0 and newest.source.meta.get("code") != numerics.code():
        say(
            f"your code has changed since the checkpoint of step {newest.source.step} was written; resuming "
            "from it all the same. To start over, give the job another name or checkpoint.dir"
        )
    if world.rank == 0:
        before = newest.source.meta.get("facts", {})
        now = _as_json(numerics.facts(config, world.device))
        changed = differences(before, now)
        odd = bits.differing_operations(before.get("bits", {}), now["bits"])
        if odd:
            differ = f"; what differs: {'; '.join(changed)}" if changed else ""
            say(
                "warning: this run computes other bits than the one that wrote the checkpoint, in "
                f"{bits.describe(odd)}{differ}"
            )
        elif changed:
            say(f"bits may differ from the run that wrote the checkpoint: {'; '.join(changed)}")
    return accepted


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def check_equal(
    model: torch.nn.Module, last_step: int, world: World, other_bits: Sequence[str]
) -> None:
    """Raise TrainError, before the first step, unless all ranks hold the same parameters and plan the same steps.

    `other_bits`: the differences that the bit probe found between the hosts, which explain other parameters.
    """
    answers = world.all_gather(f"{last_step} {weights_sha256(model.state_dict())}")
    odd = [str(rank) for rank, answer in enumerate(answers) if answer != answers[0]]
    if odd and other_bits:
        raise TrainError(
            f"rank(s) {', '.join(odd)} begin with other parameters than rank 0, as the hosts compute "
            f"{'; '.join(other_bits)}; use hosts of one kind, or set train.determinism: portable in the spec"
        )
    if odd:
        raise TrainError(
            f"rank(s) {', '.join(odd)} hold other parameters, or plan another number of steps, than "
            "rank 0; the workload has to build the same model and dataset on every rank (is "
            "something seeded by rank, time or file order?)"
        )
