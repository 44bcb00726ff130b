"""The cost of a step, a checkpoint and an interruption, computed from given sizes, rates and times. Pure.

Owns the formulas and their sources. Units are bytes, bits per second and seconds. Latency is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

# The backward pass computes gradients of activations and weights: twice the work of the forward pass. Source: Kaplan et
# al., "Scaling laws for neural language models", 2020, section 2.1.
BACKWARD = 2 / 3
MIB = 1 << 20


@dataclass(frozen=True)
class Link:
    """A full-duplex link with its line rate in each direction."""

    name: str
    bits_per_s: float

    def seconds(self, sent_bytes: float, efficiency: float) -> float:
        """Return the seconds that so many bytes take at the part `efficiency` of the line rate."""
        return sent_bytes * 8 / (self.bits_per_s * efficiency)


@dataclass(frozen=True)
class Shape:
    """The number of processes of each host, and the number of a step's micro-batches of each rank.

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
    def max_micro_batches(self) -> int:
        """The largest number of micro-batches of a rank; 1 for a script."""
        return max(self.micro_batches, default=1)


def ring_bytes(shape: Shape, gradient_bytes: float) -> float:
    """Return the bytes of DDP's all-reduce: a ring of all ranks in order, in which each host has one way in and out.

    This function and the next one return a step's bytes on the busiest link, in one direction. It is the link of a
    host, or of a process if there is one host. Each member sends 2(N-1)/N of the data, which is the factor between
    algorithm and bus bandwidth in nccl-tests (doc/PERFORMANCE.md). No all-reduce sends less (P. Patarasuk, X. Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009).
    """
    return 2 * (shape.processes - 1) / shape.processes * gradient_bytes


def tree_bytes(shape: Shape, gradient_bytes: float) -> float:
    """Return the bytes of `reduction: tree` as train/distributed/reduction.py carries it out.

    It is an all-to-all of each member's partial sums, and then an all-gather. If each member has one partial sum,
    that is the ring's 2(N-1)/N. If all hosts have the same number of processes, more than one, the exchange runs
    inside each host first and then between hosts.
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
    host_ends = ends[:: shape.procs[0]]
    rows = [partial_sums(first, end, leaves) for first, end in itertools.pairwise(host_ends)]
    return _exchanged(rows, [1] * shape.hosts) * gradient_bytes


def gather_bytes(shape: Shape, parameter_bytes: float) -> float:
    """Return the bytes of `shard: optimizer`, which gives every rank the parameters that another one has updated.

    Each of N members sends (N-1)/N of them. If all hosts have the same number of processes, the exchange runs
    between hosts first, and then inside each host.
    """
    if shape.hosts == 1 or len(set(shape.procs)) == 1:
        members = shape.processes if shape.hosts == 1 else shape.hosts
        return (members - 1) / members * parameter_bytes
    processes = shape.processes
    return max(n * (processes - n) for n in shape.procs) / processes * parameter_bytes


def partial_sums(first: int, end: int, leaves: int) -> int:
    """Return how many nodes of the tree over `leaves` micro-batches cover first, first + 1, … end - 1."""
    count = 0
    while first < end:
        size = 1
        while first % (2 * size) == 0 and min(first + 2 * size, leaves) <= end:
            size *= 2
            if first + size >= leaves:
                break
        first, count = first + size, count + 1
    return count


def _exchanged(rows: Sequence[int], groups: Sequence[int]) -> float:
    """Return the data that enters or leaves the busiest group, the larger of both, as a multiple of the gradients.

    `rows`: the partial sums of each member. `groups`: the number of members of each group. Each of n members owns
    1/n of the data: it gets all members' `rows` of that part, and gives back one sum.
    """
    members, total, first, busiest = len(rows), sum(rows), 0, 0.0
    for size in groups:
        group_sums = sum(rows[first : first + size])
        sent = (group_sums + size) * (members - size) / members
        received = size * (total - group_sums + members - size) / members
        first, busiest = first + size, max(busiest, sent, received)
    return busiest


@dataclass(frozen=True)
class StepCost:
    """The times of one step. `exposed_s`: the part of the communication that no computing hides."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True)
class Overlap:
    """The overlap of communication with the backward pass of the last micro-batch of a step.

    The gradients of the earlier micro-batches stay on the rank. The last bucket, which is the part `last_bucket` of
    the gradients, is never hidden, because it is complete only after that pass.
    """

    micro_batches: int
    last_bucket: float

    def step(self, compute_s: float, communication_s: float) -> StepCost:
        """Return the step that computes and communicates for these times."""
        hidden = BACKWARD * compute_s / self.micro_batches
        exposed = max(communication_s - hidden, communication_s * self.last_bucket)
        return StepCost(compute_s, communication_s, exposed)

    def compute_s(self, step_s: float, communication_s: float) -> float:
        """Return the computing time of a measured step; it is negative if the communication alone takes longer."""
        hides_all = step_s - communication_s * self.last_bucket
        hides_part = (step_s - communication_s) / (1 - BACKWARD / self.micro_batches)
        return min(hides_all, hides_part)


def last_bucket(gradient_bytes: float, bucket_mib: float) -> float:
    """Return the largest possible part of the gradients in DDP's last bucket."""
    return min(1.0, bucket_mib * MIB / gradient_bytes)


@dataclass(frozen=True)
class Interruptions:
    """A machine is lost every `mean_s`, a checkpoint takes `checkpoint_s`, and a start takes `restart_s`."""

    mean_s: float
    checkpoint_s: float
    restart_s: float

    @property
    def young_s(self) -> float:
        """The best interval to first order (J. W. Young, CACM 17(9), 1974).

        It has the bounds of train/checkpoint/checkpointer.py, which computes the interval for `preempted_every`.
        """
        young = math.sqrt(2 * self.checkpoint_s * self.mean_s)
        return max(2 * self.checkpoint_s, min(self.mean_s, young))

    def lost_s(self, interval_s: float) -> float:
        """Return the time that an interruption loses: half an interval, the checkpoint under way, and the start."""
        return interval_s / 2 + self.checkpoint_s + self.restart_s

    def goodput(self, interval_s: float) -> tuple[float, float]:
        """Return the part of the time in steps that count, at least and at most.

        The least: the training stops while a checkpoint is written. The most: a checkpoint does not slow the training.
        """
        counted = max(0.0, 1 - self.lost_s(interval_s) / self.mean_s)
        return counted * interval_s / (interval_s + self.checkpoint_s), counted
