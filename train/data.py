"""Which samples make up which micro-batch, and the fetching of them.

Owns the sample order, the tail of an epoch, and the division of a step's micro-batches among ranks.
Knows nothing of models, gradients or files.

Position g of the endless sample stream lies in epoch g // n at offset g % n (n = dataset size).
Micro-batch v of step s takes the positions s*B + v*b up to s*B + (v+1)*b (B and b: global and
micro-batch size). A step that reaches the end of an epoch is filled up from the start of the next
one: nothing is dropped, nothing is repeated, and every micro-batch has the same shape.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from train import leash, rng
from train.errors import TrainError
from train.workload import Dataset

_MASK64 = (1 << 64) - 1


class SampleOrder:
    """A keyed permutation of range(n) for every epoch, computed at the position asked for.

    An alternating Feistel network over the smallest power of two that holds n, with cycle walking:
    a value outside range(n) is permuted again until it falls inside (Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", CT-RSA 2002). The round function is multiply-shift hashing
    (Dietzfelbinger et al., J. Algorithms 25, 1997). Nothing is stored, so resuming at any position of
    a dataset of any size costs nothing.
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

    def index(self, position: int) -> int:
        """The sample at `position` of the endless stream."""
        epoch, x = divmod(position, self.n)
        if epoch != self._epoch:
            self._epoch, self._keys = epoch, self._keys_of(epoch)
        low_bits, low_mask, high_mask, n = self._low_bits, self._low_mask, self._high_mask, self.n
        while True:
            high, low = x >> low_bits, x & low_mask
            # Each half round is undone by itself, so unequal halves still permute.
            for add, multiply, add_too, multiply_too in self._keys:
                high ^= ((low + add) * multiply & _MASK64) >> 32 & high_mask
                low ^= ((high + add_too) * multiply_too & _MASK64) >> 32 & low_mask
            x = high << low_bits | low
            if x < n:
                return x

    def _keys_of(self, epoch: int) -> list[tuple[int, int, int, int]]:
        def key(i: int) -> int:
            return rng.derive(self._seed, rng.ORDER, epoch, i)

        return [
            (key(i), key(i + 1) | 1, key(i + 2), key(i + 3) | 1)
            for i in range(0, 4 * self.ROUNDS, 4)
        ]

    def indices(self, start: int, count: int) -> list[int]:
        """The samples at positions start … start + count - 1."""
        return [self.index(g) for g in range(start, start + count)]


def shares_evenly(micro_batches: int, world_size: int) -> tuple[int, ...]:
    """As even as it goes; the first ranks take one more. Raises TrainError when a rank has none."""
    if world_size > micro_batches:
        raise TrainError(
            f"{world_size} processes share {micro_batches} micro-batches a step, so "
            f"{world_size - micro_batches} would have nothing to do; use fewer processes, a larger "
            "global_batch_size or a smaller micro_batch_size"
        )
    each, more = divmod(micro_batches, world_size)
    return tuple(each + (rank < more) for rank in range(world_size))


def ranges(shares: Sequence[int]) -> list[range]:
    """Each rank's micro-batches: neighbouring ranks own neighbouring ranges."""
    ends = list(itertools.accumulate(shares, initial=0))
    return [range(a, b) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True)
class BatchPlan:
    """Where in the sample stream every micro-batch of the run lies."""

    order: SampleOrder
    seed: int
    global_batch_size: int
    micro_batch_size: int

    @property
    def micro_batches(self) -> int:
        """V, the number of micro-batches that make up one step."""
        return self.global_batch_size // self.micro_batch_size

    def span(self, step: int) -> tuple[int, int]:
        """First and one-past-last position of the sample stream that `step` consumes."""
        return step * self.global_batch_size, (step + 1) * self.global_batch_size

    def indices(self, step: int, v: int) -> list[int]:
        start = step * self.global_batch_size + v * self.micro_batch_size
        return self.order.indices(start, self.micro_batch_size)


class MicroBatchFetcher:
    """Fetches the batch of a (step, v) key: `fetcher[step, v]`.

    Random state is set from the key before the samples are read, so an augmentation draws the same
    numbers in this process, in a DataLoader worker, or on another machine.
    """

    def __init__(
        self, dataset: Dataset, plan: BatchPlan, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        self._plan = plan
        self._read = batch_reader(dataset, collate)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        step, v = key
        rng.set_global(rng.derive(self._plan.seed, rng.DATA, step, v), torch.device("cpu"))
        return self._read(self._plan.indices(step, v))


def batch_reader(
    dataset: Dataset, collate: Callable[[list[Any]], Any] | None
) -> Callable[[list[int]], Any]:
    """How this dataset turns indices into a batch: its own `batch` method, or `[i]` and collate."""
    own = getattr(dataset, "batch", None)
    if callable(own):
        read: Callable[[list[int]], Any] = own
        return read
    join = collate or default_collate
    return lambda indices: join([dataset[i] for i in indices])


def micro_batches(
    fetcher: MicroBatchFetcher,
    mine: range,
    first_step: int,
    last_step: int,
    workers: int,
    timeout_s: float,
    pin_memory: bool,
) -> Iterator[Any]:
    """This rank's batches from `first_step` up to `last_step` (not included), in order.

    With `workers` > 0 they are fetched ahead by that many processes. A worker that does not
    deliver within `timeout_s` seconds raises RuntimeError instead of hanging the job.
    """
    keys = ((step, v) for step in range(first_step, last_step) for v in mine)
    if workers == 0:
        return (fetcher[key] for key in keys)
    loader: DataLoader[Any] = DataLoader(
        fetcher,  # type: ignore[arg-type]
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        timeout=timeout_s,
        pin_memory=pin_memory,
        worker_init_fn=_prepare_worker,
    )
    return iter(loader)


def _prepare_worker(_: int) -> None:
    # torchrun signals a worker's whole session, DataLoader workers included. They must not die of
    # a request to stop: the step that is under way still needs their batches.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leash.die_with_parent(signal.SIGKILL)
    torch.set_num_threads(1)


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
