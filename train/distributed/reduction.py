"""The gradient of a step as one fixed sum, whoever computes the parts.

Owns the DDP communication hook of `reduction: tree` and the local sums that precede it. Knows
nothing of models, steps or files.

train/distributed/tree.py gives the order of the additions; this module carries them out. Each rank adds up its own
micro-batches. Then every rank gets one chunk of the bucket from all others (all-to-all), finishes the tree for it, and
gives the sum back (all-gather). That moves as many bytes as a ring all-reduce. With several hosts, the ranks of a host
exchange first and the hosts next, so the network carries the same bytes as with a hierarchical ring.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from train.distributed import tree

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Level:
    """A process group that exchanges, this rank's index in it, and the partial sums that each member brings."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    member_index: int
    stage: tree.Stage

    @property
    def size(self) -> int:
        return len(self.stage.rows)


def exchange_groups(
    layout: Sequence[Sequence[int]],
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the groups of ranks that exchange: the ranks of a host, and across hosts those of the same number there.

    `layout`: the ranks of each host, hosts in order of rank. If there is one host, if a host has one process, or if the
    hosts have different numbers of them, all ranks count as one host.
    """
    hosts, across = [tuple(host) for host in layout], list(zip(*layout, strict=False))
    if len({len(host) for host in hosts}) > 1 or 1 in (len(hosts), len(across)):
        everyone = tuple(itertools.chain.from_iterable(layout))
        return [everyone], [(rank,) for rank in everyone]
    return hosts, across


def plan_stages(
    ranges: Sequence[range], layout: Sequence[Sequence[int]], rank: int
) -> list[tuple[tuple[int, ...], tree.Stage]]:
    """Return the exchanges in which `rank` takes part, inner ones first: (ranks of the group, stage).

    There is a single stage if all ranks count as one host.
    """
    leaves = ranges[-1].stop
    nodes = [tree.fold_of_rank(r, leaves).nodes for r in ranges]
    hosts, across = exchange_groups(layout)
    inner = [tree.stage([nodes[r] for r in host], leaves) for host in hosts]
    if len(hosts) == 1:
        return [(hosts[0], inner[0])]
    own = next(i for i, host in enumerate(hosts) if rank in host)
    outer = tree.stage([s.fold.nodes for s in inner], leaves)
    return [(hosts[own], inner[own]), (across[hosts[own].index(rank)], outer)]


def plain_sum_is_the_tree(ranges: Sequence[range]) -> bool:
    """Return whether any all-reduce gives the tree's bits: two ranks with one partial sum each (a + b)."""
    leaves = ranges[-1].stop
    return len(ranges) == 2 and all(len(tree.fold_of_rank(r, leaves).nodes) == 1 for r in ranges)


class LocalSums:
    """Adds up this rank's micro-batches in tree order, and keeps at most log2 V partial sums."""

    def __init__(self, own_micro_batches: range, leaves: int) -> None:
        self._leaves = leaves
        self.assign(own_micro_batches)

    def assign(self, own_micro_batches: range) -> None:
        """From the next step on, add up these micro-batches."""
        self._fold = tree.fold_of_rank(own_micro_batches, self._leaves)
        self._rows: dict[int, list[torch.Tensor | None]] = {}
        self._next = 0

    def reset(self) -> None:
        self._rows.clear()
        self._next = 0

    def push(self, values: list[torch.Tensor | None]) -> None:
        """Take the next micro-batch's tensors (None: all zeros). They are added to in place."""
        self._rows[self._next] = values
        for left, right in self._fold.due[self._next]:
            self._rows[left] = add_lists(self._rows[left], self._rows.pop(right))
        self._next += 1

    def finish(self, pick: Sequence[int], last: Tensors) -> list[list[torch.Tensor | None]]:
        """Return the partial sums of the tensors numbered `pick`; `last` holds the last micro-batch's tensors.

        `last` is added to in place and is the final row of the result. Each call touches only the tensors in `pick`,
        so buckets can be finished one by one.
        """
        rows = {row: [values[i] for i in pick] for row, values in self._rows.items()}
        for left, _ in self._fold.due[self._next]:
            add_lists(last, rows.pop(left))
        return [*rows.values(), list(last)]


def add_lists(
    left: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return left + right, tensor by tensor, added in place to one of the two; None stands for zeros."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    result: list[torch.Tensor | None] = []
    for a, b in zip(left, right, strict=True):
        if a is not None and b is not None:
            result.append(a)
        else:
            # x + 0: a sum must not keep the -0.0 that the same sum elsewhere has lost.
            one = a if a is not None else b
            result.append(None if one is None else one.add_(0.0))
    return result


class TreeReducer:
    """Finishes the tree across ranks, for DDP's buckets and for tensors handed to it directly."""

    def __init__(self, levels: Sequence[Level], shortcut: bool, device: torch.device) -> None:
        """`shortcut`: use a plain all-reduce, because for these ranks it adds in the tree's order."""
        self._levels = list(levels)
        self._shortcut = shortcut
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._scratch: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        if self._levels and self._stream is None:
            self._worker = threading.Thread(target=self._work, name="reduce", daemon=True)
            self._worker.start()

    def assign(self, stages: Sequence[tree.Stage], shortcut: bool) -> None:
        """Between two steps: take the exchanges of other ranges. The process groups stay."""
        self._shortcut = shortcut
        self._levels = [
            replace(level, stage=stage) for level, stage in zip(self._levels, stages, strict=True)
        ]

    def reduce(
        self, rows: Tensors, out: torch.Tensor, last: bool = False
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum `rows` (this rank's partial sums, flat, in order) over all ranks, into `out`.

        `out` may be one of the rows. `last`: the caller will only wait from now on. Every rank must make its calls
        in the same order: one thread (gloo) or one stream (NCCL) carries the exchanges out, one after the other. If
        completion callbacks issued them, their order could differ between ranks.
        """
        if not self._levels:
            return _completed(out)
        if self._shortcut and last and self._stream is None:
            # A synchronous call wakes up one thread less than a callback.
            dist.all_reduce(out, group=self._levels[0].group)
            return _completed(out)
        if self._shortcut:
            work = dist.all_reduce(out, group=self._levels[0].group, async_op=True)
            future: torch.futures.Future[Any] = work.get_future()
            # value() raises the error of the all-reduce. Without that, `out` would lack the part of a lost peer, and
            # nothing would say so.
            return future.then(lambda done: (done.value(), out)[1])
        if self._stream is not None:
            return self._on_stream(rows, out)
        result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._do_later(result, lambda: result.set_result(self._sum(rows, out)))
        return result

    def _do_later(
        self, result: torch.futures.Future[torch.Tensor], job: Callable[[], None]
    ) -> None:
        """Let the thread do `job`, which sets `result`, after all earlier jobs."""

        def do() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - DDP raises it where backward waits
                result.set_exception(error)  # type: ignore[arg-type]

        self._jobs.put(do)

    def _sum(self, rows: Tensors, out: torch.Tensor) -> torch.Tensor:
        """Return `out`, with the sum over all ranks."""
        if self._shortcut:
            dist.all_reduce(out, group=self._levels[0].group)
        else:
            self._exchange(rows, out, 0)
        return out

    def close(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _on_stream(self, rows: Tensors, out: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(out.device))
        with torch.cuda.stream(self._stream):
            for tensor in (*rows, out):
                tensor.record_stream(self._stream)
            self._exchange(rows, out, 0)
            result: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[out.device])
            result.set_result(out)  # the future remembers the stream it was set on
        return result

    def _exchange(self, rows: Tensors, out: torch.Tensor, depth: int) -> None:
        """Do one level: send the chunks to their owners, add them in tree order there, do the next level if there is
        one, and send the sums back."""
        level = self._levels[depth]
        bounds = [out.numel() * i // level.size for i in range(level.size + 1)]
        chunks = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        own_chunk = out[chunks[level.member_index]]
        received = self._buffer(f"received {depth}", sum(level.stage.rows) * own_chunk.numel(), out)
        dist.all_to_all_single(
            received,
            self._pack(rows, chunks, depth),
            [n * own_chunk.numel() for n in level.stage.rows],
            [len(rows) * (chunk.stop - chunk.start) for chunk in chunks],
            group=level.group,
        )
        parts = received.view(sum(level.stage.rows), own_chunk.numel())
        for left, right in level.stage.fold.adds:
            parts[left].add_(parts[right])
        kept = [parts[row] for row in level.stage.fold.remaining_rows]
        if depth + 1 < len(self._levels):
            self._exchange(kept, own_chunk, depth + 1)
        else:
            own_chunk.copy_(kept[0])
        share(out, chunks, level.member_index, level.ranks, level.group)

    def _pack(self, rows: Tensors, chunks: list[slice], depth: int) -> torch.Tensor:
        """Return the message to all members: the chunk of member 0 from every row, then the chunk of member 1, …"""
        if len(rows) == 1:
            return rows[0]
        size = sum(row.numel() for row in rows)
        pieces = [row[chunk] for chunk in chunks for row in rows]
        return torch.cat(pieces, out=self._buffer(f"sent {depth}", size, rows[0]))

    def _buffer(self, name: str, size: int, like: torch.Tensor) -> torch.Tensor:
        """Return scratch memory, which is kept: exchanges run one at a time, so they share it."""
        key = (name, like.dtype, like.device)
        if key not in self._scratch or self._scratch[key].numel() < size:
            self._scratch[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._scratch[key][:size]


def share(
    out: torch.Tensor,
    chunks: Sequence[slice],
    member_index: int,
    ranks: Sequence[int],
    group: dist.ProcessGroup,
) -> None:
    """Send every member's chunk of `out` to every other member: an all-gather of unequal parts, in place.

    Uses single messages, because gloo's own all-gather takes longer and wants equal parts, so the chunks would have
    to be padded.
    """
    others = [i for i in range(len(ranks)) if i != member_index]
    own_chunk = out[chunks[member_index]]
    incoming = [dist.P2POp(dist.irecv, out[chunks[i]], ranks[i], group) for i in others]
    outgoing = [dist.P2POp(dist.isend, own_chunk, ranks[i], group) for i in others]
    operations = [op for op in (*incoming, *outgoing) if op.tensor.numel()]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


class ThroughHostMemory(TreeReducer):
    """A TreeReducer for CUDA tensors over gloo, so that hosts with and without a GPU can share a job.

    gloo has no all-to-all for CUDA tensors, so each sum is formed in the host's memory. A stream of its own copies, and
    the thread waits for it, so the backward pass goes on.
    """

    def __init__(self, levels: Sequence[Level], shortcut: bool, device: torch.device) -> None:
        super().__init__(levels, shortcut, torch.device("cpu"))
        self._copies = torch.cuda.Stream(device)

    def reduce(
        self, rows: Tensors, out: torch.Tensor, last: bool = False
    ) -> torch.futures.Future[torch.Tensor]:
        """Do the same as TreeReducer.reduce."""
        if not out.is_cuda:
            return super().reduce(rows, out, last)
        self._copies.wait_stream(torch.cuda.current_stream(out.device))
        with torch.cuda.stream(self._copies):
            on_host = [torch.empty_like(row, device="cpu", pin_memory=True) for row in rows]
            for copy, row in zip(on_host, rows, strict=True):
                row.record_stream(self._copies)
                copy.copy_(row, non_blocking=True)
            out.record_stream(self._copies)
            copied = self._copies.record_event()
        result: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[out.device])

        def job() -> None:
            copied.synchronize()
            self._sum(on_host, on_host[-1])
            with torch.cuda.stream(self._copies):
                out.copy_(on_host[-1], non_blocking=True)
                result.set_result(out)  # the future remembers the stream it was set on

        self._do_later(result, job)
        return result


def tree_hook(
    reducer: TreeReducer,
    sums: LocalSums,
    parameters: Sequence[torch.nn.Parameter],
    ready: Callable[[], None],
) -> Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]:
    """Return DDP's communication hook: it finishes this rank's partial sums of a bucket, then the tree across ranks.

    The micro-batches before the last are in `sums`; the last one's gradients are in the bucket. `ready` is called
    when all of this rank's gradients are computed.
    """
    number = {id(p): i for i, p in enumerate(parameters)}

    def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        members = bucket.parameters()
        pick = [number[id(p)] for p in members]
        *earlier, _last = sums.finish(pick, views(buffer, members))
        rows = [_as_in_bucket(row, members, buffer) for row in earlier]
        if bucket.is_last():
            ready()
        return reducer.reduce([*rows, buffer], buffer, last=bucket.is_last())

    # DDP checks the annotations as objects, and `from __future__ import annotations` has made them strings.
    hook.__annotations__.update(
        {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    )
    return hook


def views(flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Tensors:
    """Return the gradients of `parameters` as views of a bucket's memory.

    Does not use bucket.gradients(): DDP keeps a dense parameter's own memory order in the bucket (channels last,
    transposed), and bucket.gradients() reads it in row-major order.
    """
    gradients, start = [], flat.storage_offset()
    for p in parameters:
        dense = torch.ops.aten.is_non_overlapping_and_dense(p)
        strides = p.stride() if dense else torch.empty(p.shape, device="meta").stride()
        gradients.append(flat.as_strided(p.shape, strides, start))
        start += p.numel()
    return gradients


def _as_in_bucket(
    row: list[torch.Tensor | None], parameters: Sequence[torch.Tensor], bucket: torch.Tensor
) -> torch.Tensor:
    flat = torch.zeros_like(bucket)
    for tensor, view in zip(row, views(flat, parameters), strict=True):
        if tensor is not None:
            view.copy_(tensor)
    return flat


def flatten(row: list[torch.Tensor | None], shapes: Tensors) -> torch.Tensor:
    """Return one flat tensor from a row of tensors shaped like `shapes`; None stands for zeros."""
    return torch.cat(
        [
            (torch.zeros_like(shape) if t is None else t).reshape(-1)
            for t, shape in zip(row, shapes, strict=True)
        ]
    )


def _completed(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    devices: list[int | str | torch.device] = [tensor.device] if tensor.is_cuda else []
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future
