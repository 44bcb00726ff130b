"""The limits of a cluster, as the field `targets.slurm.limits` of a site's profile has them. Pure.

`ddpgen site` writes them (site.py), and admission.py compares a job with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpgen.spec.fields import Flag, Text, WholeNumber, setting
from ddpgen.spec.groups import Group, Groups, Texts
from ddpgen.spec.times import ClockTime, Duration
from ddpgen.tiers.slurm.fields import SIZE

NAME = Text(r"[^\s\0]+", "a name without spaces")
_NAMES = Texts(NAME)


@dataclass(frozen=True, repr=False, eq=False)
class NodeType:
    """Nodes of a partition that are alike. None: unknown."""

    count: int = setting(WholeNumber(1))
    cpus: int | None = setting(WholeNumber(1), None)
    mem: str | None = setting(SIZE, None)
    gpus: int = setting(WholeNumber(0), 0)
    gpu_type: tuple[str, ...] = setting(_NAMES, ())
    features: tuple[str, ...] = setting(_NAMES, ())


@dataclass(frozen=True, repr=False, eq=False)
class Partition:
    """A partition. A limit that is None or empty does not exist."""

    name: str = setting(NAME)
    time: float | None = setting(ClockTime(), None)
    max_nodes: int | None = setting(WholeNumber(0), None)
    accounts: tuple[str, ...] = setting(_NAMES, ())
    qos: tuple[str, ...] = setting(_NAMES, ())
    own_qos: str | None = setting(NAME, None)
    nodes: tuple[NodeType, ...] = setting(Groups(Group(NodeType)), ())


@dataclass(frozen=True, repr=False, eq=False)
class QosLimits:
    """The limits that a QoS sets for one job. `over_partition`: in place of the partition's limits."""

    name: str = setting(NAME)
    time: float | None = setting(ClockTime(), None)
    max_nodes: int | None = setting(WholeNumber(0), None)
    max_gpus: int | None = setting(WholeNumber(0), None)
    over_partition: bool = setting(Flag(), False)


@dataclass(frozen=True, repr=False, eq=False)
class Limits:
    """The limits of a site for one user. An empty list: unknown, so that nothing is refused by it."""

    partitions: tuple[Partition, ...] = setting(Groups(Group(Partition)), ())
    accounts: tuple[str, ...] = setting(_NAMES, ())
    qos: tuple[str, ...] = setting(_NAMES, ())
    qos_limits: tuple[QosLimits, ...] = setting(Groups(Group(QosLimits)), ())
    max_array_size: int | None = setting(WholeNumber(0), None)
    requeue: bool = setting(Flag(), True)


def largest(values: Iterable[int | None]) -> int:
    """Return the largest known value; 0 if none is known."""
    return max((value for value in values if value is not None), default=0)


def written_time(seconds: float) -> str:
    """Return a time as people speak of a limit: 48h."""
    return f"{seconds / 3600:g}h" if seconds % 3600 == 0 else Duration().written(seconds)
