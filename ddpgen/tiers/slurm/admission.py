"""A job and the limits of a site → the fields that would keep the job from ever starting. Pure.

A limit that is not known refuses nothing. A job for several partitions needs one that takes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.slurm import directives
from ddpgen.tiers.slurm.fields import SlurmJob
from ddpgen.tiers.slurm.site_limits import (
    Limits,
    NodeType,
    Partition,
    QosLimits,
    largest,
    written_time,
)

_OTHER = "write partition: "
_FEATURE = r"[\w.-]+"
_ANY, _ALL = (re.compile(rf"{_FEATURE}(?:[{sign}]{_FEATURE})*") for sign in ("|", "&"))


def check(job: SlurmJob, limits: Limits) -> Iterator[Conflict]:
    """Yield the fields with a value that this site does not allow."""
    if any(option.startswith("--clusters") for option in job.extra):
        return  # the limits are those of this cluster
    yield from _choice("account", job.account, limits.accounts)
    yield from _choice("qos", job.qos, limits.qos)
    yield from _array(job, limits)
    if not limits.requeue and job.requeues:
        problem = "this site does not requeue jobs, so that the job ends at its time limit"
        remedy = "write requeues: 0, and submit the job again by hand"
        yield Conflict(("requeues",), problem, remedy, fatal=False)
    yield from _partitions(job, limits)


def _choice(field: str, value: str | None, allowed: tuple[str, ...]) -> Iterator[Conflict]:
    if value is not None and not _among(value, allowed):
        yield Conflict((field,), f"you have no {field} {show(value)} here", _one_of(allowed))


def _array(job: SlurmJob, limits: Limits) -> Iterator[Conflict]:
    if job.indices is None or limits.max_array_size is None:
        return
    field, most = ("sweep" if job.points else "array",), limits.max_array_size - 1
    index = max(map(int, re.findall(r"[0-9]+", re.sub(r"[:%][0-9]+", "", job.indices))), default=0)
    if most < 1:
        yield Conflict(field, "this site has no job arrays", "leave it out")
    elif index > most:
        problem = f"the index {index} is above the site's largest, {most} (MaxArraySize)"
        yield Conflict(field, problem, "split it into several jobs")


def _partitions(job: SlurmJob, limits: Limits) -> Iterator[Conflict]:
    partitions = {partition.name: partition for partition in limits.partitions}
    if not partitions:
        yield from _within(job, Partition(""), limits)
        return
    names = job.partition.split(",") if job.partition else list(partitions)
    unknown = [name for name in names if name not in partitions]
    for name in unknown:
        yield Conflict(
            ("partition",), f"there is no partition {show(name)}", did_you_mean(name, partitions)
        )
    refusals = {name: list(_refusals(job, each, limits)) for name, each in partitions.items()}
    if unknown:
        return
    fitting = next((name for name in partitions if not refusals[name]), "")
    fewest = min((refusals[name] for name in names), key=len)
    for conflict in fewest:
        remedy = conflict.remedy
        if fitting:
            replaced = remedy.startswith(_OTHER)
            remedy = f"{_OTHER}{fitting}" if replaced else f"{remedy}, or partition: {fitting}"
        yield conflict._replace(remedy=remedy)


def _refusals(job: SlurmJob, partition: Partition, limits: Limits) -> Iterator[Conflict]:
    """Yield the fields that keep the job from starting in this partition."""
    for field, value, allowed in (
        ("account", job.account, partition.accounts),
        ("qos", job.qos, partition.qos),
    ):
        if value is not None and not _among(value, allowed):
            problem = f"{partition.name} does not take the {field} {show(value)}"
            yield Conflict((field,), problem, _one_of(allowed))
    yield from _within(job, partition, limits)
    yield from _on_nodes(job, partition, limits)


def _within(job: SlurmJob, partition: Partition, limits: Limits) -> Iterator[Conflict]:
    """Yield the limits of one job that this job exceeds."""
    rules = list(_rules(job, partition, limits))
    longest, owner = _least("time", partition, rules)
    if job.time is not None and job.time > longest:
        most = written_time(longest)
        problem = f"{written_time(job.time)} is more than {owner}'s limit of {most}"
        yield Conflict(("time",), problem, f"write {most} or less")
    nodes = job.nodes.minimum
    most_nodes, owner = _least("max_nodes", partition, rules)
    if nodes > most_nodes:
        problem = f"{nodes} nodes are more than {owner}'s limit of {most_nodes} for a job"
        yield Conflict(("nodes",), problem, f"write {most_nodes} or fewer")
    gpus = 0 if job.gpu_request == "none" else nodes * (job.gpus_per_node or 0)
    most_gpus, owner = _least("max_gpus", partition, rules)
    if gpus > most_gpus:
        problem = f"{gpus} GPUs in all are more than {owner}'s limit of {most_gpus} for a job"
        yield Conflict(("gpus_per_node", "nodes"), problem, "write fewer, or fewer nodes")


def _rules(job: SlurmJob, partition: Partition, limits: Limits) -> Iterator[QosLimits]:
    """Yield the limits by QoS. Those of the partition's own QoS come first, because Slurm prefers them."""
    for name in (partition.own_qos, job.qos):
        yield from (each for each in limits.qos_limits if name and _among(name, (each.name,)))


def _least(name: str, partition: Partition, rules: list[QosLimits]) -> tuple[float, str]:
    """Return the limit of this name, and its owner.

    It is the limit of the first QoS that has one, or the partition's if that is less and no QoS takes its place.
    """
    limits = []
    for rule in rules:
        if (value := getattr(rule, name)) is not None:
            limits.append((value, f"QoS {rule.name}"))
            break
    value = getattr(partition, name, None)
    if value is not None and not any(rule.over_partition for rule in rules):
        limits.append((value, partition.name))
    return min(limits, default=(math.inf, ""))


class _Need(NamedTuple):
    """A property that the job asks of each node. `words`: after "a node with"."""

    fields: tuple[str, ...]
    words: str
    fits: Callable[[NodeType], bool]
    remedy: str


def _on_nodes(job: SlurmJob, partition: Partition, limits: Limits) -> Iterator[Conflict]:
    """Yield the needs that too few nodes of the partition meet."""
    if not partition.nodes:
        return
    nodes = job.nodes.minimum
    if (total := _count(partition, lambda node: True)) < nodes:
        problem = f"{partition.name} has {total} node(s)"
        yield Conflict(("nodes",), problem, f"write {total} or fewer")
        return
    needs = list(_needs(job, partition, limits))
    short = [need for need in needs if _count(partition, need.fits) < nodes]
    for need in short:
        yield _shortage(need, _count(partition, need.fits), partition, limits)
    count = _count(partition, lambda node: all(need.fits(node) for need in needs))
    if count < nodes and not short:
        fields = tuple(field for need in needs for field in need.fields)
        words = " and ".join(need.words for need in needs)
        problem = f"{partition.name} has {count} node(s) with {words}"
        yield Conflict(fields, problem, "ask for less of one of them, or for fewer nodes")


def _needs(job: SlurmJob, partition: Partition, limits: Limits) -> Iterator[_Need]:
    nodes, gpus = partition.nodes, job.gpus_per_node or 0
    if gpus and job.gpu_request != "none":
        most = largest(node.gpus for node in nodes)
        with_gpus = [p.name for p in limits.partitions if any(node.gpus for node in p.nodes)]
        fewer = "write gpu_request: none if whole nodes are given"
        if most or with_gpus:
            fewer = f"write {most} or fewer" if most else f"{_OTHER}{with_gpus[0]}"
        yield _Need(("gpus_per_node",), f"{gpus} GPUs", lambda node: node.gpus >= gpus, fewer)
        if kind := (job.gpu_type or "").lower():
            types = sorted({each for node in nodes for each in node.gpu_type})
            yield _Need(
                ("gpu_type",), f"GPUs of the type {kind}",
                lambda node: node.gpus > 0 and _among(kind, node.gpu_type),
                _one_of(types) if types else "leave it out",
            )  # fmt: skip
    cpus = directives.cpus_per_task(job)
    most = largest(node.cpus for node in nodes)
    each = most // job.procs_per_node
    yield _Need(
        ("cpus_per_proc", "procs_per_node"), f"{cpus} CPUs", lambda node: (node.cpus or cpus) >= cpus,
        f"write cpus_per_proc: {each}, or fewer" if each else f"write procs_per_node: {most}, or fewer",
    )  # fmt: skip
    if job.mem is not None:
        mem = directives.memory_mib(job.mem)
        sizes = [node.mem for node in nodes if node.mem]
        yield _Need(
            ("mem",), f"{job.mem} of memory", lambda node: node.mem is None or directives.memory_mib(node.mem) >= mem,
            f"write {max(sizes, key=directives.memory_mib, default='')} or less",
        )  # fmt: skip
    for pattern, sign, combine in ((_ALL, "&", all), (_ANY, "|", any)):
        if job.constraint is not None and pattern.fullmatch(job.constraint):
            names = job.constraint.split(sign)
            features = sorted({name for node in nodes for name in node.features})
            yield _Need(
                ("constraint",), f"the features {job.constraint}",
                lambda node, names=names, combine=combine: combine(n in node.features for n in names),  # type: ignore[misc]
                _one_of(features) if features else "leave it out",
            )  # fmt: skip
            return


def _shortage(need: _Need, count: int, partition: Partition, limits: Limits) -> Conflict:
    if count:
        problem = f"{partition.name} has only {count} node(s) with {need.words}"
        return Conflict((*need.fields, "nodes"), problem, f"{need.remedy}, or write nodes: {count}")
    anywhere = any(_count(each, need.fits) or not each.nodes for each in limits.partitions)
    problem = f"no partition has {need.words} a node"
    if anywhere:
        problem = f"no node of {partition.name} has {need.words}"
    return Conflict(need.fields, problem, need.remedy)


def _count(partition: Partition, fits: Callable[[NodeType], bool]) -> int:
    return sum(node.count for node in partition.nodes if fits(node))


def _among(value: str, allowed: Iterable[str]) -> bool:
    """True if the name is allowed, or if no allowed name is known. Slurm keeps names in small letters."""
    names = [name.lower() for name in allowed]
    return not names or value.lower() in names


def _one_of(names: Iterable[str]) -> str:
    return f"write one of {', '.join(names)}"
