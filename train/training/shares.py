"""The micro-batches of each rank in a step: planned at the start, and with `share: auto` changed by measured times.

Owns the moment of a change. A change takes effect at a step boundary, after all steps whose batches were already
requested from the data workers. train/distributed/balance.py decides on the changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from train.distributed.balance import WINDOW_STEPS, Balancer
from train.run.config import RunConfig
from train.training.data import PREFETCHED, MicroBatchFetcher, MicroBatchKey, ranges


class Part(Protocol):
    """A part of the training that depends on the ranges."""

    def assign(self, ranges: Sequence[range], rank: int) -> None:
        """From the next step on, the ranks have these micro-batches. `rank`: the rank of this process."""


class Shares:
    """The ranges of the ranks in the next step.

    `balances`: true if the ranges may change. `parts`: the parts of the training that get a change.
    """

    def __init__(self, ranges: Sequence[range], rank: int, config: RunConfig) -> None:
        self.ranges, self._rank = list(ranges), rank
        self.parts: list[Part] = []
        self._prefetched = PREFETCHED * config.data_workers
        self._log_every = config.log_every
        self.balances = config.balance and len(ranges) > 1
        self._balancer: Balancer | None = None
        self._next: tuple[int, list[range]] | None = None
        self._drawn_step = -1

    @property
    def own(self) -> range:
        """This rank's range."""
        return self.ranges[self._rank]

    @property
    def counts(self) -> list[int]:
        """The number of micro-batches of each rank."""
        return [len(part) for part in self.ranges]

    @property
    def settled(self) -> bool:
        """True if a slow rank has all the help that it will get."""
        return not self.balances or (self._balancer is not None and self._balancer.settled)

    def times_due(self, step: int) -> bool:
        """Return whether the ranks exchange their times in `step`, which is counted from 1."""
        return step % self._log_every == 0 or (self.balances and step % WINDOW_STEPS == 0)

    def keys(self, fetcher: MicroBatchFetcher, steps: range) -> Iterator[MicroBatchKey]:
        """Yield the keys of this rank's micro-batches of each of `steps`, in order."""
        first: int | None = steps.start
        while first is not None and first < steps.stop:
            own, begin, first = self._own_in(first), first, None
            for key in fetcher.keys(own, range(begin, steps.stop)):
                if key.v == own.start:
                    self._drawn_step = key.step
                    if self._own_in(key.step) != own:
                        first = key.step
                        break
                yield key

    def _own_in(self, step: int) -> range:
        """Return this rank's range in `step`, which is counted from 0."""
        if self._next is not None and step >= self._next[0]:
            return self._next[1][self._rank]
        return self.own

    def stepped(self, step: int, rank_times: Sequence[Sequence[float]]) -> bool:
        """Take the times after `step` complete steps. Returns whether the next step has new ranges, on all ranks alike.

        `rank_times`: the times of each rank; empty if this step did not exchange them.
        """
        if self.balances and rank_times and self._next is None:
            self._observe(step, rank_times)
        if self._next is None or step < self._next[0]:
            return False
        self.ranges, self._next = self._next[1], None
        for part in self.parts:
            part.assign(self.ranges, self._rank)
        if self._balancer is not None:
            self._balancer.change(self.counts, step)
        return True

    def _observe(self, step: int, rank_times: Sequence[Sequence[float]]) -> None:
        if self._balancer is None:
            self._balancer = Balancer(self.counts, step)
            return
        step_s = max(times[0] for times in rank_times)
        counts = self._balancer.observe(step, step_s, [times[3] for times in rank_times])
        if counts is not None:
            self.change(step, counts)

    def change(self, step: int, counts: Sequence[int]) -> None:
        """After `step` complete steps, let the ranks have `counts` micro-batches as soon as that is possible.

        Data workers already have the keys of the next batches. On the rank with the fewest micro-batches these keys
        are of most steps, so that rank sets the step at which all ranks change.
        """
        effective = step + math.ceil(self._prefetched / min(self.counts))
        assert self._drawn_step < effective
        self._next = effective, ranges(counts)
