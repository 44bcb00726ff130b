"""Questions to Slurm about a site, as argv, and its answers, as values. Pure.

Owns the formats of sinfo, `scontrol show partition|config` and sacctmgr, as Slurm 21.08 to 25.11 have them. Sources:
sinfo(1), scontrol(1), sacctmgr(1), slurm.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ddpgen.spec.fields import Refused
from ddpgen.spec.times import ClockTime
from ddpgen.tiers.slurm.site_limits import Limits, NodeType, Partition, QosLimits

_NONE = ("", "(null)", "N/A", "NONE", "None", "n/a", "UNLIMITED", "INFINITE", "ALL")
_GPU = re.compile(r"(?<![^,])gpu(?::(?P<type>[^:,()]+))??:(?P<count>\d+)(?=[,(]|$)")
_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")
# Values of AccountingStorageEnforce. Without one of these a job may name any account.
_NEEDS_ACCOUNT = frozenset(["all", "associations", "limits", "qos", "safe", "wckeys"])


class Answers(NamedTuple):
    """The answers of the programs; "" for none."""

    partitions: str = ""
    nodes: str = ""
    config: str = ""
    associations: str = ""
    qos: str = ""


class Site(NamedTuple):
    """A cluster as one user sees it. `config`: the values of `scontrol show config`; empty if unknown."""

    limits: Limits
    default_partition: str
    config: Mapping[str, str]

    @property
    def has_gpus(self) -> bool:
        return any(node.gpus for each in self.limits.partitions for node in each.nodes)


def questions(user: str) -> dict[str, list[str]]:
    """Return the command for each of the Answers, by its name."""
    return {
        "partitions": ["scontrol", "--oneliner", "show", "partition"],
        # Without --exact, nodes that differ share a line, with the fewest CPUs and a plus sign.
        "nodes": ["sinfo", "--noheader", "--exact", "--format=%R|%D|%c|%m|%G|%f"],
        "config": ["scontrol", "show", "config"],
        "associations": [*_SACCTMGR, "assoc", f"user={user}", "format=Cluster,Account,QOS"],
        "qos": [*_SACCTMGR, "qos", "format=Name,MaxWall,MaxTRES,Flags"],
    }


def read(answers: Answers) -> Site:
    """Return the site that these answers describe."""
    config = _config(answers.config)
    enforced = set(config.get("AccountingStorageEnforce", "all").lower().split(","))
    accounts, qos = _associations(answers.associations, config.get("ClusterName", ""))
    nodes = _nodes(answers.nodes)
    records = _partitions(answers.partitions) or [{"PartitionName": name} for name in nodes]
    partitions = tuple(_partition(record, nodes) for record in records)
    array = config.get("MaxArraySize", "")
    limits = Limits(
        partitions=partitions,
        accounts=accounts if enforced & _NEEDS_ACCOUNT else (),
        qos=qos if enforced & {"all", "qos"} else (),
        qos_limits=_qos(answers.qos, {*qos, *(p.own_qos for p in partitions)})
        if enforced & {"all", "limits", "safe"}
        else (),
        max_array_size=int(array) if array.isdigit() else None,
    )
    default = (record["PartitionName"] for record in records if record.get("Default") == "YES")
    return Site(limits, next(default, ""), config)


def _config(answer: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in answer.splitlines())
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def _partitions(answer: str) -> list[dict[str, str]]:
    """Return the record of each partition. Slurm leaves out those that the user may not use."""
    lines = (line.split() for line in answer.splitlines() if line.startswith("PartitionName="))
    return [dict(word.split("=", 1) for word in words if "=" in word) for words in lines]


def _partition(record: Mapping[str, str], nodes: Mapping[str, tuple[NodeType, ...]]) -> Partition:
    name = record["PartitionName"]
    return Partition(
        name=name,
        time=_seconds(record.get("MaxTime", "")),
        max_nodes=_number(record.get("MaxNodes", "")),
        accounts=_names(record.get("AllowAccounts", "")),
        qos=_names(record.get("AllowQos", "")),
        own_qos=_plain(record.get("QoS", "")) or None,
        nodes=nodes.get(name, ()),
    )


def _nodes(answer: str) -> dict[str, tuple[NodeType, ...]]:
    """Return the nodes of each partition, by its name."""
    node_types: dict[str, tuple[NodeType, ...]] = {}
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].isdigit() and int(cells[1]):
            partition, count, cpus, mem, gres, features = cells
            gpus = [(match["type"], int(match["count"])) for match in _GPU.finditer(gres)]
            node = NodeType(
                count=int(count),
                cpus=_number(cpus.rstrip("+")) or None,
                mem=f"{_number(mem.rstrip('+'))}M" if _number(mem.rstrip("+")) else None,
                gpus=sum(number for _, number in gpus),
                gpu_type=tuple(kind for kind, _ in gpus if kind),
                features=_names(features),
            )
            node_types[partition] = (*node_types.get(partition, ()), node)
    return node_types


def _associations(answer: str, cluster: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the accounts and the QoS of the user. A database may have several clusters."""
    accounts: dict[str, None] = {}
    qos: dict[str, None] = {}
    for line in answer.splitlines():
        cells = line.strip().split("|")
        if len(cells) == 3 and cells[1] and cluster in ("", cells[0]):
            accounts[cells[1]] = None
            qos |= dict.fromkeys(_names(cells[2]))
    return tuple(accounts), tuple(qos)


def _qos(answer: str, wanted: set[str | None]) -> tuple[QosLimits, ...]:
    """Return the limits of those QoS that the user or a partition has, if they have any."""
    rules = []
    for line in answer.splitlines():
        cells = line.strip().split("|")
        if len(cells) != 4 or cells[0] not in wanted:
            continue
        name, wall, resources, flags = cells
        most = dict(pair.split("=", 1) for pair in resources.split(",") if "=" in pair)
        gpus = most.get("gres/gpu", "")
        limits = QosLimits(
            name=name,
            time=_seconds(wall),
            max_nodes=_number(most.get("node", "")),
            max_gpus=_number(gpus),
            over_partition="PartitionTimeLimit" in flags.split(","),
        )
        known = (limits.time, limits.max_nodes, limits.max_gpus)
        if limits.over_partition or any(value is not None for value in known):
            rules.append(limits)
    return tuple(rules)


def _plain(cell: str) -> str:
    return "" if cell in _NONE else cell


def _names(cell: str) -> tuple[str, ...]:
    return tuple(name for name in _plain(cell).split(",") if name)


def _number(cell: str) -> int | None:
    return int(cell) if cell.isdigit() else None


def _seconds(cell: str) -> float | None:
    """Return a time limit; None without one."""
    try:
        return ClockTime().parse_text(cell) if _plain(cell) else None
    except Refused:
        return None
