"""A site, as Slurm describes it → the text of its profile, with a comment for each choice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpgen.text import shell, yamltext
from ddpgen.tiers.slurm.site_limits import NodeType, Partition, QosLimits, written_time
from ddpgen.tiers.slurm.survey import Site


def as_yaml(site: Site, login: str | None, unknown: Sequence[str]) -> str:
    """Return the profile. `unknown`: the commands without an answer, each with the reason."""
    cluster = shell.comment_text(site.config.get("ClusterName") or "this cluster")
    lines = [
        f"# Profile of {cluster}, written by `ddpgen site`. Edit it as you like.",
        *(
            f"# Not known, because it gave no answer: {shell.comment_text(line)}"
            for line in unknown
        ),
        "targets:",
        "  slurm:",
        *_indented(_choices(site, login), 4),
        "    limits:  # ddpgen validate compares a job with them; a line that you delete refuses nothing",
        *_indented(_limits(site), 6),
    ]
    return "".join(f"{line}\n" for line in lines)


def _choices(site: Site, login: str | None) -> Iterator[str]:
    limits, config = site.limits, site.config
    if login is not None:
        yield f"login: {yamltext.scalar(login)}"
    if site.default_partition:
        yield f"partition: {yamltext.scalar(site.default_partition)}  # the default of the site"
    elif limits.partitions:
        yield f"# partition:  # the site has no default; one of {_comment(p.name for p in limits.partitions)}"
    yield from _gpus(site)
    for field, names in (("account", limits.accounts), ("qos", limits.qos)):
        if len(names) == 1:
            yield f"{field}: {yamltext.scalar(names[0])}  # your only one"
        elif names:
            yield f"# {field}:  # one of {_comment(names)}"
    if config.get("JobRequeue") == "0":
        yield "# JobRequeue is 0: jobs are requeued only if they ask for it, as those of ddpgen do (--requeue)."
    if plugins := config.get("JobSubmitPlugins", "").replace("(null)", ""):
        yield f"# JobSubmitPlugins={_comment([plugins])}: a plug-in of the site may change or refuse more than Slurm shows."


def _gpus(site: Site) -> Iterator[str]:
    known = any(each.nodes for each in site.limits.partitions)
    types = {kind: None for p in site.limits.partitions for n in p.nodes for kind in n.gpu_type}
    if known and not site.has_gpus:
        yield "gpu_request: none  # Slurm knows no GPUs here, so none can be asked for"
    elif "cons_tres" in site.config.get("SelectType", "cons_tres"):
        yield "gpu_request: gpus-per-node"
    else:
        yield f"gpu_request: gres  # {site.config['SelectType']} has no --gpus-per-node"
    if types:
        yield f"# gpu_type:  # any, or one of {_comment(types)}"


def _limits(site: Site) -> Iterator[str]:
    limits = site.limits
    if limits.max_array_size is not None:
        yield f"max_array_size: {limits.max_array_size}"
    yield "requeue: true  # false: the site refuses --requeue"
    for field, names in (("accounts", limits.accounts), ("qos", limits.qos)):
        if names:
            yield f"{field}: {_list(names)}"
    if limits.qos_limits:
        yield "qos_limits:"
        yield from (f"  - {_mapping(_qos(each))}" for each in limits.qos_limits)
    if limits.partitions:
        yield "partitions:"
    for partition in limits.partitions:
        first, *rest = _partition(partition)
        yield f"  - {first}"
        yield from _indented(rest, 4)


def _partition(partition: Partition) -> Iterator[str]:
    yield f"name: {yamltext.scalar(partition.name)}"
    if partition.time is not None:
        yield f"time: {written_time(partition.time)}"
    if partition.max_nodes is not None:
        yield f"max_nodes: {partition.max_nodes}  # for one job"
    for field, names in (("accounts", partition.accounts), ("qos", partition.qos)):
        if names:
            yield f"{field}: {_list(names)}"
    if partition.own_qos:
        yield f"own_qos: {yamltext.scalar(partition.own_qos)}"
    if partition.nodes:
        yield "nodes:"
        yield from (f"  - {_mapping(_node(each))}" for each in partition.nodes)


def _node(node: NodeType) -> Iterator[tuple[str, str | None]]:
    yield "count", str(node.count)
    yield "cpus", None if node.cpus is None else str(node.cpus)
    yield "mem", node.mem
    yield "gpus", str(node.gpus) if node.gpus else None
    types = node.gpu_type
    yield "gpu_type", yamltext.scalar(types[0]) if len(types) == 1 else _list(types) or None
    yield "features", _list(node.features) or None


def _qos(qos: QosLimits) -> Iterator[tuple[str, str | None]]:
    yield "name", yamltext.scalar(qos.name)
    yield "time", None if qos.time is None else written_time(qos.time)
    yield "max_nodes", None if qos.max_nodes is None else str(qos.max_nodes)
    yield "max_gpus", None if qos.max_gpus is None else str(qos.max_gpus)
    yield "over_partition", "true" if qos.over_partition else None


def _mapping(pairs: Iterable[tuple[str, str | None]]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in pairs if value is not None)}}}"


def _list(names: Iterable[str]) -> str:
    words = ", ".join(map(yamltext.scalar, names))
    return f"[{words}]" if words else ""


def _comment(names: Iterable[str | None]) -> str:
    return shell.comment_text(", ".join(name for name in names if name))


def _indented(lines: Iterable[str], columns: int) -> Iterator[str]:
    return (" " * columns + line for line in lines)
