"""Several hosts as one job: the facts they exchange when they meet, and their agreements.

Owns the agreement on the launch, on the holder of the checkpoint directory and on each process' share of a step, and
the messages about these. Knows nothing of models or steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from train.base.console import say
from train.base.errors import ToldError, TrainError, start_command
from train.base.scheduler import VARIABLE
from train.base.words import first_few
from train.distributed import bits
from train.distributed.process_group import World
from train.run import lock
from train.run.layout import steps_on_disk
from train.run.lock import Fence, FencedOffError, Start
from train.run.node import Node
from train.run.portable import PORTABLE, is_met
from train.run.status import Status, write_status

# Rank 0 may have to watch a holder on another machine for one to three minutes before the holder counts as dead.
TAKE_S = 300.0


@dataclass(frozen=True)
class Member:
    """The facts that a process gives the others when the world meets.

    `environment`: the hash of its host's environment, given by the first process of each host; "" from the others.
    """

    weight: Fraction
    device: str
    facts: dict[str, Any]
    machine: str = ""
    nic: str = ""
    environment: str = ""
    host: str = ""
    attempt: str = ""
    launch: str = ""
    step: int = 0


@dataclass(frozen=True)
class Assembly:
    """All members, by rank, and the layout of the world they met in."""

    members: Sequence[Member]
    layout: Sequence[Sequence[int]]

    @property
    def firsts(self) -> list[Member]:
        """The first process of each host."""
        return [self.members[ranks[0]] for ranks in self.layout]

    @property
    def launch(self) -> str:
        """The launch that a host remembers or was given, else a new one: the attempt id of rank 0's host."""
        known = (m.launch for m in self.members if m.launch)
        return next(known, self.members[0].attempt)

    @property
    def start(self) -> Start:
        """The newest step on any disk, and a hash of these hosts and their attempts."""
        hosts = sorted({(m.host, m.attempt) for m in self.members})
        digest = hashlib.sha256(repr(hosts).encode()).hexdigest()[:12]
        return Start(max(m.step for m in self.members), digest)

    def check_names(self) -> None:
        """Raise TrainError when two hosts have the same name, or when the launch script did not start all of them."""
        seen: dict[str, str] = {}
        for first in self.firsts:
            if not first.host:
                raise TrainError(
                    "some of the hosts were started by the launch script and some otherwise; start "
                    f"all of them by one ({start_command(among_hosts=True)})"
                )
            if first.host in seen:
                raise TrainError(
                    f"two hosts are called {first.host!r} (attempts {seen[first.host]} and "
                    f"{first.attempt}); start each host once, and by its own script where it has one"
                )
            seen[first.host] = first.attempt

    def describe(self, shares: Sequence[range]) -> str:
        """Return one line of text: the hosts, their numbers of processes, and their micro-batches of a step."""
        parts = []
        for ranks in self.layout:
            first, last = shares[ranks[0]].start, shares[ranks[-1]].stop - 1
            span = f"{first}-{last}" if last > first else f"{first}"
            parts.append(f"{self.members[ranks[0]].host}: {len(ranks)}, {span}")
        parts[0] = parts[0].replace(", ", ", micro-batches ", 1)
        listed = first_few(parts, separator="; ")
        return f"{len(self.members)} processes on {len(self.layout)} hosts ({listed})"

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Return the ranks, the network interface and the hash of the environment of each host, by host name."""
        return {
            first.host or first.machine: {
                "ranks": list(ranks), "nic": first.nic, "environment": first.environment,
            }
            for ranks, first in zip(self.layout, self.firsts, strict=True)
        }  # fmt: skip

    def gather_environments(self, world: World, own_environment: dict[str, Any]) -> dict[str, Any]:
        """Return the hosts' environments, by their hash, on rank 0. If several are equal, only one host sends its own.

        `own_environment`: the environment of this host.
        """
        environments = {self.members[0].environment: own_environment} if world.rank == 0 else {}
        senders = {self.members[r[0]].environment: r[0] for r in reversed(self.layout)}
        senders.pop(self.members[0].environment)
        for name, rank in senders.items():
            text = world.to_first(rank, f"environment/{name}", json.dumps(own_environment))
            if text:
                environments[name] = json.loads(text)
        return environments

    def rank_names(self) -> list[str]:
        """Return a name of each rank for people: `rank 1 on laptop` if there are several hosts, else `rank 1`."""
        several = len(self.layout) > 1
        return [
            f"rank {rank} on {member.host}" if several and member.host else f"rank {rank}"
            for rank, member in enumerate(self.members)
        ]

    def devices(self) -> str:
        """The kind of device, or the kinds if they differ."""
        return " and ".join(sorted({m.device for m in self.members}))

    def differences(self) -> list[str]:
        """Return the facts that the bits depend on and that differ between hosts, with the hosts of each value."""
        found = []
        for name in sorted({key for first in self.firsts for key in first.facts} - {"bits"}):
            holders: dict[str, list[str]] = {}
            for first in self.firsts:
                holders.setdefault(repr(first.facts.get(name)), []).append(first.host)
            if len(holders) > 1:
                each = (f"{value} on {first_few(names)}" for value, names in holders.items())
                found.append(f"{name}: {', '.join(each)}")
        return found

    def not_portable(self) -> list[str]:
        """Return the hosts on which `determinism: portable` fixes nothing, each with its processor and kernels."""
        return [
            f"{first.host or 'this host'} ({first.facts['machine']}, kernels {first.facts['cpu_capability']})"
            for first in self.firsts
            if not is_met(first.facts["cpu_capability"])
        ]

    def other_bits(self) -> list[str]:
        """Return the hosts where the bit probe gave other results than on most hosts, with the operations. If two
        results are equally frequent, the earlier host's result is the reference."""
        results = {member.host: member.facts.get("bits", {}) for member in self.firsts}
        known = Counter(frozenset(each.items()) for each in results.values())
        usual = known.most_common(1)[0][0]
        reference = next(host for host, each in results.items() if frozenset(each.items()) == usual)
        odd: dict[tuple[str, ...], list[str]] = {}
        for host, each in results.items():
            operations = bits.differing_operations(results[reference], each)
            odd.setdefault(tuple(operations), []).append(host)
        odd.pop((), None)
        return [
            f"other bits on {first_few(hosts)} than on {reference} in {bits.describe(operations)}"
            for operations, hosts in odd.items()
        ]


def assemble(
    world: World,
    weight: Fraction,
    facts: dict[str, Any],
    environment: str,
    directory: Path,
    node: Node | None,
) -> Assembly:
    """Gather every process' Member. Raises TrainError when two hosts have the same name."""
    nic = os.environ.get("GLOO_SOCKET_IFNAME", "")
    me = Member(weight, world.device.type, facts, socket.gethostname(), nic, environment)
    if node is not None:
        # Only one process of each node looks at the node's disk.
        steps = steps_on_disk(directory) if world.rank_info.local_rank == 0 else []
        step = max(steps, default=0)
        me = replace(me, host=node.name, attempt=node.attempt, launch=node.launch(), step=step)
    assembly = Assembly(world.all_gather(me), world.layout)
    if any(m.host for m in assembly.members):
        assembly.check_names()
    return assembly


def enter(node: Node, assembly: Assembly) -> None:
    """Enter a new generation in this host's node directory, and remember the launch.

    Raises FencedOffError when a later supervisor of this host has claimed the node directory, TrainError when the same
    hosts have crashed twice without committing a step in between.
    """
    Fence(node.directory, node.attempt, assembly.start).close()  # the supervisor renews the lock
    node.remember(assembly.launch)


def take_directory(directory: Path, assembly: Assembly, world: World) -> Fence | None:
    """Rank 0 takes the checkpoint directory for the launch and enters a new generation. The other ranks wait for that.

    Returns the fence on rank 0, and None on other ranks. Raises TrainError on every rank if rank 0 cannot take the
    directory.
    """
    fence, why = None, ""
    if world.rank == 0:
        try:
            launcher = int(os.environ.get("DDPGEN_LAUNCHER_PID", os.getpid()))
            job = os.environ.get("DDPGEN_JOB", "?")
            lock.take(directory, job, launcher, assembly.launch, os.environ.get(VARIABLE, ""))
            # Overwrite the final status of an earlier world of this launch, because this world has not ended.
            step = assembly.start.step
            write_status(directory, Status("running", assembly.launch, step))
            fence = Fence(directory, assembly.launch, assembly.start)
        except (TrainError, FencedOffError) as error:
            why = str(error)
        except OSError as error:
            why = f"the checkpoint directory {directory} cannot be used: {error.strerror or error}"
    agree(world, "lock", why, TAKE_S)
    return fence


def agree(world: World, name: str, refusal: str, timeout_s: float) -> None:
    """Wait for rank 0's `refusal`, the reason not to go on, and raise TrainError on every rank unless it is ""."""
    refusal = world.broadcast(name, refusal, timeout_s)
    if refusal:
        raise TrainError(refusal) if world.rank == 0 else ToldError(refusal)


def introduce(assembly: Assembly, backend: str, shares: Sequence[range], determinism: str) -> None:
    """Print the processes and hosts that have met, once, on rank 0, and warn of differences between the hosts."""
    among = len(assembly.layout) > 1 and assembly.members[0].host
    count = len(assembly.members)
    who = assembly.describe(shares) if among else f"{count} process{'es' if count > 1 else ''}"
    say(f"{who}, backend {backend}, device {assembly.devices()}")
    if determinism == PORTABLE and (odd := assembly.not_portable()):
        say(
            f"warning: determinism: portable needs an x86 processor with AVX2, unlike {'; '.join(odd)}"
        )
    differ, proof = assembly.differences(), assembly.other_bits()
    if proof:
        what = f"; what differs: {'; '.join(differ)}" if differ else ""
        say(f"warning: the weights depend on which host computes what: {'; '.join(proof)}{what}")
    elif differ:
        say(f"bits may differ between the hosts: {'; '.join(differ)}")
