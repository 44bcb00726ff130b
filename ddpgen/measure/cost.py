"""What a step, a checkpoint and an interruption cost, from sizes, rates and times that are given.

Owns the formulas and their sources. Bytes, bits per second and seconds throughout; latency is left out. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Forward, and twice as much backward: for the activations and for the weights (Kaplan et al., "Scaling laws
# for neural language models", 2020, section 2.1).
BACKWARD = 2 / 3
MIB = 1 << 20


@dataclass(frozen=True)
class Link:
    """A full-duplex link: its line rate each way."""

    name: str
    bits_per_s: float

    def seconds(self, sent_bytes: float, efficiency: float) -> float:
        """How long so many bytes take, at a part `efficiency` of the line rate."""
        return sent_bytes * 8 / (self.bits_per_s * efficiency)


@dataclass(frozen=True)
class Shape:
    """How many processes each host has, and how many of a step's micro-batches each rank computes.

    `micro_batches` is empty for a script with a loop of its own.
    """

    procs: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()

    @property
    def hosts(self) -> int:
        return len(self.procs)

    @property
    def processes(self) -> int:
        return sum(self.procs)

    @property
    def most(self) -> int:
        """The micro-batches of the rank that has most; 1 for a script."""
        return max(self.micro_batches, default=1)


def ring_bytes(shape: Shape, gradient_bytes: float) -> float:
    """DDP's all-reduce: a ring of all ranks in order, so that each host has one way in and one way out.

    This and the next two: a step's bytes on the busiest link, out of a host or into it; where there is one
    host, of a process. 2(N-1)/N of the data for each member, the factor between algorithm and bus bandwidth
    in nccl-tests (doc/PERFORMANCE.md); no all-reduce sends less (P. Patarasuk, X. Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009).
    """
    return 2 * (shape.processes - 1) / shape.processes * gradient_bytes


def sharded_bytes(shape: Shape, gradient_bytes: float) -> float:
    """FSDP, ZeRO-3: parameters are gathered for forward and for backward, gradients reduced and scattered.

    (N-1)/N of the data each, 3(N-1)/N together, with one micro-batch a rank (S. Rajbhandari et al., "ZeRO:
    memory optimizations toward training trillion parameter models", SC20, section 7).
    """
    return 1.5 * ring_bytes(shape, gradient_bytes)


def tree_bytes(shape: Shape, gradient_bytes: float) -> float:
    """`reduction: tree` as train/distributed/reduction.py carries it out: an all-to-all of each member's
    partial sums, then an all-gather; the ring's 2(N-1)/N where each has one partial sum.

    Inside each host and then between hosts, where all have the same number of processes, more than one.
    """
    leaves = sum(shape.micro_batches)
    ends = list(itertools.accumulate(shape.micro_batches, initial=0))
    rows = [partial_sums(first, end, leaves) for first, end in itertools.pairwise(ends)]
    if rows == [1, 1]:
        return ring_bytes(shape, gradient_bytes)  # a + b: any all-reduce gives the tree's bits
    if shape.hosts == 1:
        return _exchanged(rows, [1] * len(rows)) * gradient_bytes
    if len(set(shape.procs)) > 1:
        return _exchanged(rows, shape.procs) * gradient_bytes
    of_hosts = ends[:: shape.procs[0]]
    rows = [partial_sums(first, end, leaves) for first, end in itertools.pairwise(of_hosts)]
    return _exchanged(rows, [1] * shape.hosts) * gradient_bytes


def partial_sums(first: int, end: int, leaves: int) -> int:
    """How many nodes of the tree over `leaves` micro-batches hold first, first + 1, … end - 1."""
    found = 0
    while first < end:
        size = 1
        while first % (2 * size) == 0 and min(first + 2 * size, leaves) <= end:
            size *= 2
            if first + size >= leaves:
                break
        first, found = first + size, found + 1
    return found


def _exchanged(rows: Sequence[int], groups: Sequence[int]) -> float:
    """What crosses the border of the busiest group, in parts of the data; `groups`: members of each.

    Each member of n owns 1/n of the data: it gets everybody's `rows` for it, and gives back one sum.
    """
    members, total, first, most = len(rows), sum(rows), 0, 0.0
    for size in groups:
        mine = sum(rows[first : first + size])
        sent = (mine + size) * (members - size) / members
        received = size * (total - mine + members - size) / members
        first, most = first + size, max(most, sent, received)
    return most


@dataclass(frozen=True)
class StepCost:
    """One step. `exposed_s`: the part of the communication that nothing hides."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True)
class Overlap:
    """What can hide communication: the backward pass of the last of `micro_batches`, because the gradients
    of those before stay on the rank; and never the last bucket, `last_bucket` of the gradients, as it is
    complete only when that pass is over.
    """

    micro_batches: int
    last_bucket: float

    def step(self, compute_s: float, communication_s: float) -> StepCost:
        """A step that computes, and communicates, for so long."""
        hidden = BACKWARD * compute_s / self.micro_batches
        exposed = max(communication_s - hidden, communication_s * self.last_bucket)
        return StepCost(compute_s, communication_s, exposed)

    def compute_s(self, step_s: float, communication_s: float) -> float:
        """What a measured step computes for; negative where the communication alone takes longer."""
        hides_all = step_s - communication_s * self.last_bucket
        hides_part = (step_s - communication_s) / (1 - BACKWARD / self.micro_batches)
        return min(hides_all, hides_part)


def last_bucket(gradient_bytes: float, bucket_mib: float) -> float:
    """The part of the gradients in DDP's last bucket, at most."""
    return min(1.0, bucket_mib * MIB / gradient_bytes)


@dataclass(frozen=True)
class Interruptions:
    """A machine lost every `mean_s`, checkpoints that take `checkpoint_s`, starts that take `restart_s`."""

    mean_s: float
    checkpoint_s: float
    restart_s: float

    @property
    def young_s(self) -> float:
        """The best interval to first order (J. W. Young, CACM 17(9), 1974), within the bounds of
        train/checkpoint/checkpointer.py, which finds `preempted_every` its interval."""
        young = math.sqrt(2 * self.checkpoint_s * self.mean_s)
        return max(2 * self.checkpoint_s, min(self.mean_s, young))

    @property
    def daly_s(self) -> float:
        """The higher order estimate (J. T. Daly, FGCS 22(3), 2006)."""
        if self.checkpoint_s >= 2 * self.mean_s:
            return self.mean_s
        part = self.checkpoint_s / (2 * self.mean_s)
        young = math.sqrt(2 * self.checkpoint_s * self.mean_s)
        return young * (1 + math.sqrt(part) / 3 + part / 9) - self.checkpoint_s

    def lost_s(self, interval_s: float) -> float:
        """Lost by an interruption: half an interval, the checkpoint under way, and the start."""
        return interval_s / 2 + self.checkpoint_s + self.restart_s

    def goodput(self, interval_s: float) -> tuple[float, float]:
        """The part of the time that goes into steps that count: with checkpoints that stop the training
        while they are written, and with ones that cost it nothing."""
        kept = max(0.0, 1 - self.lost_s(interval_s) / self.mean_s)
        return kept * interval_s / (interval_s + self.checkpoint_s), kept
