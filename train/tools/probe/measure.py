"""The measurements of a probe, on every rank at once. Rank 0 prints and writes the results.

Sums are checked at every size. Each collective is repeated for about a second, back to back, and the slowest rank
gives its time, as in nccl-tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.base.console import say
from train.base.files import replace_file
from train.distributed import nccl, tree
from train.distributed.agreement import Assembly
from train.distributed.gradients import connect_reducer
from train.distributed.process_group import World
from train.distributed.sharding import Gather
from train.health.phase import doing
from train.run.lock import Fence
from train.run.node import Node
from train.run.status import Status, record_status
from train.run.stop import StopRequest, foremost
from train.tools.probe import figures, wire
from train.tools.probe.figures import Collective, Figures, Nic, Pair
from train.training import startup
from train.training.run_info import RunInfo

FILE = "probe.json"
SIZES = tuple(4096 * 4**n for n in range(9))  # 4 KB to 256 MB
_BUDGET_S = 1.0  # for the repetitions of one size
_MAX_REPEATS = 50
# If a size takes longer than this, or than an eighth of the collective timeout, larger sizes are left out.
_TOO_LONG_S = 5.0
_ALL_PAIRS = 8  # with more hosts than this, only neighbours are measured
_MESSAGE = 16 << 20  # bytes


def run(info: RunInfo) -> int:
    """Meet the other ranks, measure, and return the exit code. The status says how a probe ended. Raises TrainError."""
    met = startup.meet(info)
    world, fence, stop = met.world, met.fence, met.stop
    record = partial(_record_status, info.directory, fence, met.host)
    with doing("probing"):
        record("running", "")
        gather = Gather(world) if info.config.shard == "optimizer" and world.size > 1 else None
        probe = Probe(world, met.shares.ranges, met.assembly, info.directory, stop, gather)
        complete = probe.run()
        reason = "" if complete else foremost(world.all_gather(stop.reason))
        record("done" if complete else "stopped", reason)
        if fence is not None:
            fence.close()
        stop.close()
    startup.leave(world, info)
    return 0


def _record_status(
    directory: Path, fence: Fence | None, host: Node | None, word: str, reason: str
) -> None:
    if fence is not None:
        fence.check()
        record_status(directory, Status(word, fence.attempt, 0, reason))
    if host is not None:
        host.write(word, 0, reason)


class Probe:
    """One rank's part in the measurements of a job."""

    def __init__(
        self,
        world: World,
        rank_micro_batches: Sequence[range],
        assembly: Assembly,
        directory: Path,
        stop: StopRequest,
        gather: Gather | None = None,
    ) -> None:
        """`gather`: the exchange of updated parameters, if the job has one."""
        self._world, self._rank_micro_batches, self._stop = world, rank_micro_batches, stop
        self._gather = gather
        self._path = directory / FILE
        leaders = [ranks[0] for ranks in world.layout]
        names = [assembly.members[rank].host or "this host" for rank in leaders]
        self._leaders = dict(zip(names, leaders, strict=True))
        self.figures = Figures(
            job=os.environ.get("DDPGEN_JOB", ""),
            backend=world.backend,
            device=str(world.device.type),
            torch=torch.__version__,
            processes=world.size,
            hosts=names,
            other_bits=assembly.other_bits(),
        )

    def run(self) -> bool:
        """Measure everything and return True. On a request to stop return False; the file has the results so far."""
        self._vectors()
        self._interfaces()
        if self._world.size > 1:
            self._barrier()
            for first, second in self._pairs():
                if self._must_stop():
                    return False
                self._pair(first, second)
        self._transports()
        for line in (*figures.head(self.figures), *self.figures.findings):
            self._say(line)
        if self._world.size > 1 and not self._collectives():
            return False
        self.figures.complete = True
        self._write()
        self._say(f"verdict: {figures.verdict(self.figures)}")
        self._say(f"all figures: {self._path}")
        return True

    # --- the measurements -------------------------------------------------------------------------

    def _vectors(self) -> None:
        """Record every rank's own numbers, and the mean that an all-reduce gives to every rank."""
        rank, size = self._world.rank, self._world.size
        mine = torch.tensor([rank + 1.0, 2.0 * rank, 10.0], device=self._world.device)
        total = mine.clone()
        if size > 1:
            dist.all_reduce(total)
        means = self._world.all_gather((mine.tolist(), (total / size).tolist()))
        self.figures.vectors = [vector for vector, _ in means]
        self.figures.mean = means[0][1]
        if any(mean != means[0][1] for _, mean in means):
            self.figures.findings.append("the ranks do not agree on the mean of their vectors")

    def _interfaces(self) -> None:
        name = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME", "")
        mine = wire.interface(name.removeprefix("=")) if len(self._leaders) > 1 else Nic("", "")
        everyone = self._world.all_gather(mine)
        self.figures.nics = {
            host: everyone[rank] for host, rank in self._leaders.items() if everyone[rank].name
        }

    def _barrier(self) -> None:
        self.figures.barrier_seconds = self._timed(dist.barrier)
        self._write()

    def _pairs(self) -> list[tuple[str, str]]:
        hosts = self.figures.hosts
        if len(hosts) <= _ALL_PAIRS:
            return [(a, b) for n, a in enumerate(hosts) for b in hosts[n + 1 :]]
        return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))

    def _pair(self, first: str, second: str) -> None:
        """Measure one pair of hosts. The first host receives, the second sends; the others wait."""
        receiver, sender = self._leaders[first], self._leaders[second]
        bandwidth, trip = self._tcp(receiver, sender, self.figures.nics)
        small = self._messages(receiver, sender, 4096)
        large = self._messages(receiver, sender, _MESSAGE)
        pair = Pair(first, second, bandwidth, trip, _MESSAGE / large, small)
        self.figures.pairs.append(pair)
        self._write()

    def _tcp(self, receiver: int, sender: int, nics: dict[str, Nic]) -> tuple[float, float]:
        rank, addresses = self._world.rank, {self._leaders[h]: n.address for h, n in nics.items()}
        server = wire.listen(addresses[receiver]) if rank == receiver else None
        port = server.getsockname()[1] if server is not None else 0
        port = self._world.all_gather(port)[receiver]
        found, why = (0.0, 0.0), ""
        try:
            if server is not None:
                with server:
                    found = wire.serve(server)
            elif rank == sender:
                wire.send((addresses[receiver], port), addresses[sender])
        except OSError as error:
            why = str(error)
        answers = self._world.all_gather((found, why))
        if why := answers[receiver][1] or answers[sender][1]:
            self.figures.findings.append(f"plain TCP between ranks {receiver} and {sender}: {why}")
        result: tuple[float, float] = answers[receiver][0]
        return result

    def _messages(self, receiver: int, sender: int, count: int) -> float:
        """Return the seconds of one message of the backend, one way: half of a round trip."""
        data = torch.zeros(count // 4, device=self._world.device)

        def there_and_back() -> None:
            if self._world.rank == receiver:
                dist.recv(data, sender)
                dist.send(data, sender)
            elif self._world.rank == sender:
                dist.send(data, receiver)
                dist.recv(data, receiver)

        return self._timed(there_and_back) / 2

    def _transports(self) -> None:
        """Record the transports that NCCL has chosen on each host, and whether InfiniBand is unused."""
        everyone = self._world.all_gather((nccl.chosen(os.environ), nccl.infiniband()))
        for host, rank in self._leaders.items():
            names, cards = everyone[rank]
            if names:
                self.figures.transports[host] = names
            if finding := nccl.idle_infiniband(host, names, cards):
                self.figures.findings.append(finding)

    def _collectives(self) -> bool:
        reducer = connect_reducer(self._world, self._rank_micro_batches)
        self._say(figures.HEADER)
        try:
            for count in SIZES:
                if self._must_stop():
                    return False
                slowest = max(self._all_reduce(count), self._tree(count, reducer))
                if self._gather is not None:
                    slowest = max(slowest, self._gathered(count, self._gather))
                too_long_s = min(_TOO_LONG_S, self._world.collective_timeout / 8)
                if slowest > too_long_s and count < SIZES[-1]:
                    self._say(f"larger sizes are left out: this one takes {slowest:.0f} s")
                    break
        finally:
            reducer.close()
        return True

    def _all_reduce(self, count: int) -> float:
        rank, size, device = self._world.rank, self._world.size, self._world.device
        pattern = _pattern(count // 4, device)
        data = pattern * _weight(rank)
        dist.all_reduce(data)
        expected = pattern * sum(map(_weight, range(size)))
        correct = bool(torch.equal(data, expected))
        data.zero_()  # sums that are added up again and again would overflow
        return self._record("all-reduce", count, lambda: dist.all_reduce(data), correct)

    def _tree(self, count: int, reducer: Any) -> float:
        """Measure the job's own reduction for one bucket of this size, with its partial sums and its levels."""
        mine, leaves = self._rank_micro_batches[self._world.rank], self._rank_micro_batches[-1].stop
        pattern = _pattern(count // 4, self._world.device)
        weights = [
            sum(map(_weight, range(node.k << node.level, min((node.k + 1) << node.level, leaves))))
            for node in tree.fold_of_rank(mine, leaves).nodes
        ]
        rows = [pattern * weight for weight in weights]
        reducer.reduce(rows, rows[-1]).wait()
        self._settle()
        correct = bool(torch.equal(rows[-1], pattern * sum(map(_weight, range(leaves)))))
        for row in rows:
            row.zero_()
        return self._record("tree", count, lambda: reducer.reduce(rows, rows[-1]).wait(), correct)

    def _gathered(self, count: int, gather: Gather) -> float:
        """Measure the exchange of `count` bytes of parameters if each rank has updated an equal part of them."""
        rank, size, device = self._world.rank, self._world.size, self._world.device
        pattern = _pattern(count // 4 // size, device)
        parts = [pattern * _weight(r) * (r == rank) for r in range(size)]
        gather.start([[part] for part in parts])
        gather.wait()
        self._settle()
        correct = all(torch.equal(part, pattern * _weight(r)) for r, part in enumerate(parts))

        def exchange() -> None:
            gather.start([[part] for part in parts])
            gather.wait()

        return self._record("gather", count, exchange, correct)

    def _record(self, kind: str, count: int, operation: Callable[[], Any], correct: bool) -> float:
        seconds = self._timed(operation)
        correct = all(self._world.all_gather(correct))
        made = Collective(kind, count, seconds, self._world.size, correct)
        self.figures.collectives.append(made)
        self._write()
        self._say(figures.row(made))
        return seconds

    def _timed(self, operation: Callable[[], Any]) -> float:
        """Return the seconds of one call on the slowest rank. All ranks have to call this together."""
        first: float = max(self._world.all_gather(self._seconds(operation, 1)))
        repeats = max(1, min(_MAX_REPEATS, int(_BUDGET_S / first)))
        slowest: float = max(self._world.all_gather(self._seconds(operation, repeats)))
        return slowest

    def _seconds(self, operation: Callable[[], Any], repeats: int) -> float:
        self._settle()
        began = time.perf_counter()
        for _ in range(repeats):
            operation()
        self._settle()
        return (time.perf_counter() - began) / repeats

    def _settle(self) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _must_stop(self) -> bool:
        """Return whether any rank was asked to stop. All ranks call this at the same place, so all get the same
        answer."""
        return any(self._world.all_gather(self._stop.by_file or self._stop.by_signal))

    # --- the output -------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        if self._world.rank == 0:
            say(line)

    def _write(self) -> None:
        if self._world.rank == 0:
            text = json.dumps(self.figures.as_json(), indent=1)
            replace_file(self._path, f"{text}\n".encode(), sync=False)


def _pattern(count: int, device: torch.device) -> torch.Tensor:
    """Return small whole numbers, so that every order of addition gives the same exact sum."""
    return torch.arange(count, dtype=torch.int64, device=device).remainder_(7).add_(1).float()


def _weight(n: int) -> float:
    return float(n % 16 + 1)
