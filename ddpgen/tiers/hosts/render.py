"""The tier `hosts`: a handful of machines that ssh reaches. One script per host, and one driver.

Owns the content of hosts.json and the rules for a list of hosts. Knows neither ssh nor the network: those
belong to the driver (ddpgen/driver/), which is copied into the bundle.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from typing import Any

from ddpgen.render import Artefact, Renderer
from ddpgen.resources import package_files
from ddpgen.spec import rules, unwise
from ddpgen.spec.fields import Refused, did_you_mean, show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.hosts.fields import ADDRESS, Host, HostsJob
from ddpgen.tiers.hosts.plan import address, host_plan
from ddpgen.tiers.plan import example, restart_advice, values
from ddpgen.tiers.ranks import backend

# Starts the job on all hosts.
DRIVER = "hosts/run.sh"
_SCRIPT = (
    "share: auto moves micro-batches between processes, and a script shares out its work by itself"
)
# The fields that exclude share: auto, each with the reason and the remedy.
_FIXED = {
    **dict.fromkeys(("train.script", "train.command"), (_SCRIPT, "leave it out")),
    "train.reduction": ("share: auto needs the fixed-order tree", "write reduction: tree, or leave share out"),
}  # fmt: skip
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "0.0.0.0")


def check(job: HostsJob) -> Iterator[Conflict]:
    """Yield the faults of the list of hosts."""
    if not job.hosts:
        problem = "lists no hosts"
        yield Conflict(("hosts",), problem, "write targets: {hosts: {hosts: [NAME, NAME]}}")
        return
    yield from _names(job)
    yield from _shared_addresses(job)
    yield from _numbers(job)
    yield from rules.ssh_options(job.ssh_options)
    if len(job.hosts) > 1:
        yield from unwise.temporary(
            job, "name a directory that outlives a reboot, like ~/runs/NAME", {"dir": job.dir}
        )
    on_nccl = backend(job) == "nccl"
    for i, host in enumerate(job.hosts):
        field = f"hosts[{i}]"
        yield from rules.environment(host.env, f"{field}.env", job.train)
        for name in host.env.keys() & {secret.name for secret in job.secrets}:
            problem, remedy = f"{name} is in secrets as well", "leave one of them out"
            yield Conflict((f"{field}.env.{name}",), problem, remedy)
        yield from unwise.environment(host.env, f"{field}.env", job.gpus(host))
        if host.python:
            yield from rules.interpreter(host.python, f"{field}.python")
        yield from _gpus(job, host, field, on_nccl)
        yield from _address(job, host, field)
        yield from _inside_the_bundle(job, host.dir or job.dir)


def _names(job: HostsJob) -> Iterator[Conflict]:
    names: set[str] = set()
    hosts_by_destination: dict[tuple[str, str], str] = {}
    for i, host in enumerate(job.hosts):
        fields, name = (f"hosts[{i}].name", f"hosts[{i}]"), host.name.lower()
        if name in names:
            problem = f"{host.name} is listed twice (upper and lower case are the same here)"
            yield Conflict(fields, problem, "give each host a name of its own")
            continue
        names.add(name)
        if name == "run":
            yield Conflict(fields, "hosts/run.sh is the driver", "call the host something else")
        if name.endswith(".activate"):
            problem = f"hosts/{host.name}.sh may be the activation lines of another host"
            yield Conflict(fields, problem, "call the host something else")
        destination = (host.ssh or host.name, host.dir or job.dir)
        if destination in hosts_by_destination:
            problem = f"is the same place as {hosts_by_destination[destination]}: {destination[0]}, directory {destination[1]}"
            yield Conflict(fields, problem, "give one of them another ssh destination or dir")
        hosts_by_destination[destination] = host.name
    spares = [host.name for host in job.hosts[len(job.hosts) - job.spares :]]
    if job.head in spares:
        problem = f"{job.head} is a spare: the last {job.spares} of hosts take no part"
        yield Conflict(("head", "spares"), problem, "list another host last", False)
    host_names = tuple(host.name for host in job.hosts)
    if job.head is not None and job.head not in host_names:
        yield Conflict(("head",), f"{job.head} is not in hosts", did_you_mean(job.head, host_names))


def _numbers(job: HostsJob) -> Iterator[Conflict]:
    if job.spares >= len(job.hosts):
        problem = f"{job.spares} spares of {len(job.hosts)} hosts leave none that takes part"
        yield Conflict(("spares", "hosts"), problem, "list more hosts, or write fewer spares")
    elif job.nodes != len(job.hosts) - job.spares:
        spares = f", {job.spares} of them as spares" if job.spares else ""
        problem = f"{int(job.nodes)} nodes, and hosts lists {len(job.hosts)}{spares}"
        number = int(job.nodes) + job.spares
        remedy = f"list {number} hosts, or write targets: {{hosts: {{nodes: null}}}} for all listed"
        yield Conflict(("nodes", "hosts"), problem, remedy)
    if job.spares and not job.exclude_bad_nodes:
        yield unwise.no_effect("spares", "with exclude_bad_nodes: false")
    if job.nodes.elastic and job.rendezvous.launcher != "torchrun":
        problem = f"{job.rendezvous.launcher} starts a fixed number of nodes, not {job.nodes}"
        yield Conflict(("nodes", "rendezvous.launcher"), problem, "write launcher: torchrun")
    shares = [f"hosts[{i}].share" for i, host in enumerate(job.hosts) if host.share is not None]
    if shares and job.train.reduction != "tree":
        problem = "uneven shares need the fixed-order tree"
        fields = (shares[0], "train.reduction")
        yield Conflict(fields, problem, "write reduction: tree, or leave share out")
    if shares and job.train.program_field != "workload":
        problem = "has no effect on a script, which shares out its work by itself"
        yield Conflict((shares[0],), problem, "leave it out")
    if shares and job.share is not None:
        problem = f"share: {job.share} and the share of a host exclude each other"
        yield Conflict(("share", shares[0]), problem, "leave one of them out")
    elif job.share == "auto" and job.fixed:
        yield Conflict(("share", job.fixed), *_FIXED[job.fixed])


def _gpus(job: HostsJob, host: Host, field: str, on_nccl: bool) -> Iterator[Conflict]:
    gpus, procs = job.gpus(host), job.procs(host)
    fields = (f"{field}.gpus", f"{field}.procs", "gpus_per_node", "procs_per_node", field)
    if on_nccl and not gpus:
        problem = f"nccl talks between GPUs, and {host.name} uses none"
        yield Conflict(fields, problem, "write backend: gloo, or how many gpus it has")
    if gpus and procs > gpus:
        problem = f"{procs} processes share {gpus} GPU{'s' * (gpus > 1)} of {host.name}; each needs one of its own"
        yield Conflict(fields, problem, f"write procs: {gpus}")
    elif gpus > procs and not job.train.command:
        problem = f"{gpus - procs} of {gpus} GPUs of {host.name} stay idle"
        yield Conflict(fields, problem, f"write procs: {gpus}, one process per GPU", False)


def _shared_addresses(job: HostsJob) -> Iterator[Conflict]:
    names: dict[str, str] = {}
    for i, host in enumerate(job.hosts):
        other = names.setdefault(address(host), host.name)
        # Hosts without `address` may have the same one: they may be two directories of one machine.
        if host.address and other != host.name:
            problem = f"{host.address} is also the address of {other}"
            remedy = "write the address of this host"
            yield Conflict((f"hosts[{i}].address",), problem, remedy, False)


def _address(job: HostsJob, host: Host, field: str) -> Iterator[Conflict]:
    host_address = address(host)
    fields = (f"{field}.address", f"{field}.ssh", field)
    try:
        ADDRESS.parse_text(host_address)
    except Refused:
        problem = f"{show(host_address)} is no address for the other hosts"
        remedy = f"write address: with {ADDRESS.allowed} by which they reach it"
        yield Conflict(fields, problem, remedy)
    else:
        local = host_address in _LOCAL_NAMES or host_address.startswith("127.")
        if local and len(job.hosts) > 1:
            remedy = "write the address by which the others reach this host"
            yield Conflict(fields, f"{host_address} reaches only the host itself", remedy)
    if len(job.hosts) > 1 and (host.nic or job.nic) in ("lo", "lo0"):
        problem = "loopback reaches only the host itself"
        yield Conflict((f"{field}.nic", "nic"), problem, "name the interface towards the others")


def _inside_the_bundle(job: HostsJob, directory: str) -> Iterator[Conflict]:
    """Yield a conflict for each directory of the job inside the bundle on a host. `directory`: the host's `dir`."""
    bundle = posixpath.normpath(posixpath.join(directory, job.name))
    paths = (("checkpoint.dir", job.checkpoint.path), ("train.workdir", job.train.workdir))
    for field, path in paths:
        place = path if path and path.startswith("~") else posixpath.join(directory, path or "")
        if path and f"{posixpath.normpath(place)}/".startswith(f"{bundle}/"):
            problem = f"{show(path)} is inside the bundle on the hosts, {bundle}, which each launch replaces"
            yield Conflict((field,), problem, "name a directory outside of it, like runs/NAME")


def render(job: HostsJob, renderer: Renderer) -> list[Artefact]:
    """Return run.sh first, then the files it needs: a script per host, the list of hosts, the driver."""
    run = renderer.render(
        "run.sh.j2",
        {
            "name": job.name,
            "example": example(job),
            "points": len(job.points),
            "again": restart_advice(job),
        },
    )
    artefacts = [Artefact(DRIVER, run, f"bash {{bundle}}/{DRIVER}")]
    for host in job.order:
        script, lines = f"hosts/{host.name}.sh", f"hosts/{host.name}.activate.sh"
        template_values = values(job.for_host(host), host_plan(job, host), lines)
        text = renderer.render("host.sh.j2", {**template_values, "host": host.name})
        artefacts += [Artefact(script, text), *renderer.activation(template_values)]
    artefacts.append(Artefact("hosts/hosts.json", listing(job), executable=False))
    for name, text in package_files("driver"):
        artefacts.append(Artefact(f"hosts/driver/{name}", text, executable=False))
    return artefacts


def listing(job: HostsJob) -> str:
    """Return hosts.json, which the driver and every host's supervisor read. Each host has one line."""
    facts = {
        "name": job.name,
        "launcher": job.rendezvous.launcher,
        "elastic": [job.nodes.minimum, int(job.nodes)] if job.nodes.elastic else None,
        "restarts": job.restarts,
        "head": job.order[0].name,
        "ssh_options": job.ssh_options,
        "checkpoint_dir": job.checkpoint_path,
        **({"spares": job.spares} if job.spares else {}),
        **({} if job.exclude_bad_nodes else {"exclude_bad_nodes": False}),
        **({"locked": True} if job.locked else {}),
        **({"secrets": dict(job.secrets)} if job.secrets else {}),
        **({"points": {n: point.id for n, point in job.points.items()}} if job.points else {}),
    }
    lines = [f'  "{key}": {_json(value)},' for key, value in facts.items()]
    hosts = ",\n".join(f"    {_json(_host_row(job, host))}" for host in job.order)
    return "\n".join(["{", *lines, '  "hosts": [', hosts, "  ]", "}", ""])


def _host_row(job: HostsJob, host: Host) -> dict[str, str | int]:
    return {
        "name": host.name,
        "address": address(host),
        "procs": job.procs(host),
        "ssh": host.ssh or host.name,
        "dir": host.dir or job.dir,
        "script": f"hosts/{host.name}.sh",
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
