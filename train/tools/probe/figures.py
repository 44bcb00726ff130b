"""The results of a probe: the values of probe.json, the table for people, and the verdict. Pure.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md there). The algorithm's bandwidth is the bytes of the result
divided by the time. With n ranks, the bus bandwidth of an all-reduce is 2(n-1)/n times the algorithm's bandwidth, and
that of a gather is (n-1)/n times. The bus bandwidth does not depend on n, so it can be compared with the network's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from train.base.words import first_few

# A collective that reaches at least this part of the network's bandwidth is good.
_GOOD = 0.7


@dataclass(frozen=True)
class Collective:
    """One size of one collective. `ranks`: the number of ranks. `correct`: true if all results were right."""

    kind: str
    bytes: int
    seconds: float
    ranks: int
    correct: bool

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second."""
        return self.sent(self.ranks)

    def sent(self, members: int) -> float:
        """Return the bytes a second that each of `members` sends if they exchange as one ring."""
        times = 1 if self.kind == "gather" else 2
        return self.algorithm_bandwidth * times * (members - 1) / members


@dataclass(frozen=True)
class Pair:
    """Two hosts: plain TCP between them, and single messages of the backend, in bytes a second and in seconds."""

    first: str
    second: str
    tcp_bandwidth: float
    tcp_round_trip: float
    message_bandwidth: float
    message_latency: float


@dataclass(frozen=True)
class Nic:
    """The interface that a host uses, and the others that are up. `speed`: in Mbit/s, 0 if unknown."""

    name: str
    address: str
    kind: str = ""
    speed: int = 0
    others: tuple[tuple[str, str, int], ...] = ()


@dataclass
class Figures:
    """All results of a probe so far. Written to probe.json after every measurement."""

    job: str
    backend: str
    device: str
    torch: str
    processes: int
    hosts: list[str]
    nics: dict[str, Nic] = field(default_factory=dict)
    other_bits: list[str] = field(default_factory=list)
    vectors: list[list[float]] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    barrier_seconds: float = 0.0
    pairs: list[Pair] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    transports: dict[str, list[str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    complete: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the values, with the two bandwidths added to each collective, and the verdict."""
        values = asdict(self)
        for made, row in zip(self.collectives, values["collectives"], strict=True):
            row["algorithm_bandwidth"] = made.algorithm_bandwidth
            row["bus_bandwidth"] = made.bus_bandwidth
        return {**values, "verdict": verdict(self)}


def verdict(figures: Figures) -> str:
    """Return one sentence: the part of the network's bandwidth that the largest collectives reach, and what limits
    them."""
    wrong = sorted({each.kind for each in figures.collectives if not each.correct})
    if wrong:
        return f"{' and '.join(wrong)} gave wrong sums: do not train on these hosts"
    if not figures.collectives:
        return "one process: there is nothing to exchange"
    largest = {each.kind: each for each in figures.collectives}  # the last of each kind
    if not figures.pairs:
        rates = (f"{kind} {rate(c.bus_bandwidth)}" for kind, c in largest.items())
        return f"one host; bus bandwidth: {', '.join(rates)}"
    slowest = min(figures.pairs, key=lambda pair: pair.tcp_bandwidth)
    # The ranks of a host exchange within the host, so in the network each host sends like one member of a ring.
    parts = {
        kind: c.sent(len(figures.hosts)) / slowest.tcp_bandwidth for kind, c in largest.items()
    }
    said = ", ".join(f"{kind} takes {part:.0%}" for kind, part in parts.items())
    network = f"the {rate(slowest.tcp_bandwidth)} of plain TCP between {slowest.first} and {slowest.second}"
    why = (
        ""
        if min(parts.values()) >= _GOOD
        else "; for small models and slow processors that is usual"
    )
    return (
        f"{said} of {network}{why}{''.join(f'; {each}' for each in slow_interfaces(figures.nics))}"
    )


def slow_interfaces(nics: Mapping[str, Nic]) -> Iterator[str]:
    """Yield a line for each host that has a faster interface than the one that it uses."""
    for host, nic in nics.items():
        wired = [other for other in nic.others if other[1] == "wired" and other[2] > nic.speed]
        if wired and (nic.kind != "wired" or nic.speed):
            name, _, speed = max(wired, key=lambda other: other[2])
            mine = f"{nic.kind}, {nic.speed} Mbit/s" if nic.speed else nic.kind
            yield f"{host} takes part by {nic.name} ({mine}) and has {name} ({speed} Mbit/s): set nic: {name}"


def head(figures: Figures) -> Iterator[str]:
    """Yield the lines above the table."""
    vectors = [f"rank {n} {_listed(v)}" for n, v in enumerate(figures.vectors)]
    yield f"vectors: {first_few(vectors, separator='; ')}; their mean on every rank: {_listed(figures.mean)}"
    yield f"bits: {'; '.join(figures.other_bits) or 'every host computes the same'}"
    if figures.processes > 1:
        yield f"barrier: {duration(figures.barrier_seconds)}"
    for host, names in figures.transports.items():
        yield f"NCCL on {host}: {', '.join(names)}"
    for pair in figures.pairs:
        tcp = f"TCP {rate(pair.tcp_bandwidth)}, round trip {duration(pair.tcp_round_trip)}"
        ours = f"{figures.backend} {rate(pair.message_bandwidth)}, {duration(pair.message_latency)}"
        yield f"{pair.first} - {pair.second}: {tcp}; {ours}"


HEADER = f"{'size':>8}  {'collective':<10}  {'time':>9}  {'algorithm':>11}  {'bus':>11}"


def row(collective: Collective) -> str:
    """Return a line of the table."""
    wrong = "" if collective.correct else "  WRONG SUMS"
    return (
        f"{size(collective.bytes):>8}  {collective.kind:<10}  {duration(collective.seconds):>9}  "
        f"{rate(collective.algorithm_bandwidth):>11}  {rate(collective.bus_bandwidth):>11}{wrong}"
    )


def size(count: float) -> str:
    """Return a size as `4 KB` or `16 MB`: powers of 1024, as in nccl-tests."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} GB"


def rate(bytes_a_second: float) -> str:
    """Return a rate as `1.2 GB/s`: powers of 1000, as usual for networks."""
    for unit in ("B/s", "KB/s", "MB/s"):
        if bytes_a_second < 1000:
            return f"{bytes_a_second:.3g} {unit}"
        bytes_a_second /= 1000
    return f"{bytes_a_second:.3g} GB/s"


def duration(seconds: float) -> str:
    """Return a duration as `0.41 ms` or `2.3 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _listed(vector: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in vector)}]"
