"""The samples of each micro-batch, and the fetching of them.

Owns the sample order, the tail of an epoch, and the division of a step's micro-batches among ranks.
Knows nothing of models, gradients or files.

Position g of the endless sample stream lies in epoch g // n at offset g % n (n = dataset size).
Micro-batch v of step s takes the positions s*B + v*b up to s*B + (v+1)*b (B and b: global and
micro-batch size). A step that reaches the end of an epoch is filled up from the start of the next
one. So no sample is dropped or repeated, and every micro-batch has the same shape.
"""

from __future__ import annotations

import functools
import itertools
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from train.base import processes
from train.base.errors import TrainError
from train.training import rng
from train.workload import Dataset

_BLOCK = 2048
# A data worker has this many batches to fetch: torch's default, written down because train/training/shares.py counts on it.
PREFETCHED = 2


class SampleOrder:
    """A keyed permutation of range(n) for every epoch, computed only at the requested positions.

    It is an alternating Feistel network over the smallest power of two that holds n. Cycle walking permutes a value
    outside range(n) again until it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002). The round function is multiply-shift hashing (Dietzfelbinger et al., J. Algorithms 25,
    1997). Nothing is stored, so resuming at any position of a dataset of any size costs nothing.
    """

    ROUNDS = 3  # of two half rounds each

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ValueError("a dataset of no samples has no order")
        self.n = n
        self._seed = seed
        bits = (n - 1).bit_length()
        self._low_bits = (bits + 1) // 2
        self._low_mask = (1 << self._low_bits) - 1
        self._high_mask = (1 << (bits - self._low_bits)) - 1
        self._epoch = -1
        self._keys: list[tuple[int, int, int, int]] = []

    def indices(self, positions: torch.Tensor) -> list[int]:
        """Return the samples at these positions (int64, one dimension, ascending) of the endless stream."""
        epochs, offsets = positions // self.n, positions % self.n
        found: list[int] = []
        values, counts = torch.unique_consecutive(epochs, return_counts=True)
        for epoch, part in zip(values.tolist(), offsets.split(counts.tolist()), strict=True):
            found += self._permute(epoch, part)
        return found

    def _permute(self, epoch: int, offsets: torch.Tensor) -> list[int]:
        if epoch != self._epoch:
            self._epoch, self._keys = epoch, self._keys_of(epoch)
        result = self._rounds(offsets)
        while (outside := result >= self.n).any():
            result[outside] = self._rounds(result[outside])
        indices: list[int] = result.tolist()
        return indices

    def _rounds(self, x: torch.Tensor) -> torch.Tensor:
        """Do one pass of the network.

        int64 overflow wraps around, and right shifts bring in copies of the sign. The masks, which have at most 32
        bits, cut both off.
        """
        low_mask, high_mask = self._low_mask, self._high_mask
        high, low = x >> self._low_bits, x & low_mask
        # Each half round is its own inverse, so the result is a permutation even if the halves are unequal.
        for add, multiply, add_too, multiply_too in self._keys:
            high = high ^ ((low + add) * multiply >> 32 & high_mask)
            low = low ^ ((high + add_too) * multiply_too >> 32 & low_mask)
        return high << self._low_bits | low

    def _keys_of(self, epoch: int) -> list[tuple[int, int, int, int]]:
        def key(i: int) -> int:
            return rng.derive(self._seed, rng.ORDER, epoch, i)

        return [
            (key(i), key(i + 1) | 1, key(i + 2), key(i + 3) | 1)
            for i in range(0, 4 * self.ROUNDS, 4)
        ]


def shares_by_weight(micro_batches: int, weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return every rank's number of micro-batches: in proportion to its weight, and at least one.

    Uses the largest remainder. Each rank gets the whole part of its quota, and the ranks with the largest fractional
    parts share the rest. Then a rank without a micro-batch takes one from the rank with most. Ties go to the lower
    rank, so equal weights give the first ranks one more. Raises TrainError if there are fewer micro-batches than ranks.
    """
    if len(weights) > micro_batches:
        raise TrainError(
            f"{len(weights)} processes share {micro_batches} micro-batches a step, so "
            f"{len(weights) - micro_batches} would have nothing to do; use fewer processes, a larger "
            "global_batch_size or a smaller micro_batch_size"
        )
    total = sum(weights)
    quotas = [w * micro_batches / total for w in weights]
    shares = [math.floor(quota) for quota in quotas]
    ranks = range(len(weights))
    # sorted() and max() keep the first of equals.
    by_rest = sorted(ranks, key=lambda rank: shares[rank] - quotas[rank])
    for rank in by_rest[: micro_batches - sum(shares)]:
        shares[rank] += 1
    for rank in ranks:
        if shares[rank] == 0:
            shares[max(ranks, key=lambda r: shares[r])] -= 1
            shares[rank] = 1
    return tuple(shares)


def ranges(shares: Sequence[int]) -> list[range]:
    """Return each rank's micro-batches: neighbouring ranks own neighbouring ranges."""
    ends = list(itertools.accumulate(shares, initial=0))
    return [range(a, b) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True)
class BatchPlan:
    """The position of every micro-batch of the run in the sample stream."""

    order: SampleOrder
    seed: int
    global_batch_size: int
    micro_batch_size: int

    def span(self, step: int) -> tuple[int, int]:
        """Return the first and the one-past-last position of the sample stream that `step` consumes."""
        return step * self.global_batch_size, (step + 1) * self.global_batch_size

    def indices(self, micro_batches: range, steps: range) -> Iterator[list[int]]:
        """Yield the samples of these micro-batches of each of `steps`: one list for each micro-batch, in order.

        Computes many steps at a time, so that one step costs next to nothing.
        """
        size = self.micro_batch_size
        offsets = torch.arange(micro_batches.start * size, micro_batches.stop * size)
        at_once = max(1, _BLOCK // len(offsets))
        for first in range(steps.start, steps.stop, at_once):
            block = torch.arange(first, min(first + at_once, steps.stop)) * self.global_batch_size
            indices = self.order.indices((block[:, None] + offsets).reshape(-1))
            for start in range(0, len(indices), size):
                yield indices[start : start + size]


@dataclass(frozen=True)
class MicroBatchKey:
    """One micro-batch: its step and its number v in the step, and the indices of its samples."""

    step: int
    v: int
    indices: list[int]


class MicroBatchFetcher:
    """Fetches batches by key: `fetcher[MicroBatchKey(step, v, indices)]`.

    Sets the random state from (step, v) before it reads the samples. So an augmentation draws the same numbers in this
    process, in a DataLoader worker, and on another machine.
    """

    def __init__(
        self, dataset: Dataset, plan: BatchPlan, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        self.plan = plan
        self._read_batch = batch_reader(dataset, collate)

    def __getitem__(self, key: MicroBatchKey) -> Any:
        rng.set_global_for_data(rng.derive(self.plan.seed, rng.DATA, key.step, key.v))
        return self._read_batch(key.indices)

    def keys(self, micro_batches: range, steps: range) -> Iterator[MicroBatchKey]:
        """Yield the keys of these micro-batches of each of `steps`, in order."""
        numbered = ((step, v) for step in steps for v in micro_batches)
        for (step, v), indices in zip(
            numbered, self.plan.indices(micro_batches, steps), strict=True
        ):
            yield MicroBatchKey(step, v, indices)


def batch_reader(
    dataset: Dataset, collate: Callable[[list[Any]], Any] | None
) -> Callable[[list[int]], Any]:
    """Return a function from indices to a batch: the dataset's own `batch` method, or `[i]` and collate."""
    batch_method = getattr(dataset, "batch", None)
    if callable(batch_method):
        read: Callable[[list[int]], Any] = batch_method
        return read
    join = collate or default_collate
    return lambda indices: join([dataset[i] for i in indices])


def fetch_batches(
    fetcher: MicroBatchFetcher,
    keys: Iterable[MicroBatchKey],
    workers: int,
    threads: int,
    timeout_s: float,
    pin_memory: bool,
) -> Iterator[Any]:
    """Return an iterator over the batches of these keys, in order.

    With `workers` > 0, that many processes fetch the batches ahead. If a worker does not deliver within `timeout_s`
    seconds, the iterator raises RuntimeError instead of hanging the job.
    """
    if workers == 0:
        return (fetcher[key] for key in keys)
    loader: DataLoader[Any] = DataLoader(
        fetcher,  # type: ignore[arg-type]
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        prefetch_factor=PREFETCHED,
        timeout=timeout_s,
        pin_memory=pin_memory,
        worker_init_fn=functools.partial(_prepare_worker, threads),
    )
    return iter(loader)


def _prepare_worker(threads: int, _: int) -> None:
    # torchrun signals a worker's whole session, DataLoader workers included. They must not die of a request to stop,
    # because the step that is under way still needs their batches.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(signal.SIGKILL)
    # Use as many threads as the training process, because another number may give other bits.
    torch.set_num_threads(threads)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch (dict, list, tuple, named tuple) to `device`."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
