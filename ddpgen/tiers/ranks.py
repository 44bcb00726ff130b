"""A job → its ranks, with the micro-batches of each, and their backend. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddpgen.spec.job import JobSpec

if TYPE_CHECKING:
    from fractions import Fraction


class Rank(NamedTuple):
    """One process; its micro-batches are first, first + 1, … end - 1. `host`: "" if a scheduler chooses it."""

    host: str
    node_rank: int
    rank: int
    local_rank: int
    first: int
    end: int


def shares(micro_batches: int, weights: Sequence[int | Fraction]) -> Iterator[tuple[int, int]]:
    """Yield each rank's range of micro-batches (first, end), in proportion to the ranks' weights.

    Micro-batches that the division leaves over go to the ranks with the largest remainders, and among equal
    remainders to the lower ranks. A rank without a micro-batch takes one from the rank that has most.
    train/training/data.py counts in the same way.
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
    """Return every process of the job with its micro-batches, in order of rank."""
    machines = job.machines
    weights = [machine.weight for machine in machines for _ in range(machine.procs)]
    parts = shares(job.micro_batches, weights)
    processes: list[Rank] = []
    for node_rank, machine in enumerate(machines):
        for local_rank in range(machine.procs):
            processes.append(
                Rank(machine.name, node_rank, len(processes), local_rank, *next(parts))
            )
    return processes


def backend(job: JobSpec) -> str:
    """Return the job's backend: `auto` becomes nccl if it runs on GPUs, else gloo."""
    if job.backend != "auto":
        return job.backend
    return "nccl" if job.on_gpus else "gloo"
