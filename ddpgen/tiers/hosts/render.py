"""The tier `hosts`: a handful of machines that ssh reaches. One script per host, and one driver.

Owns the content of hosts.json and the rules for a list of hosts. Knows neither ssh nor the network: those
belong to the driver (ddpgen/driver/), which is copied into the bundle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ddpgen.render import Artefact, Renderer
from ddpgen.resources import package_files
from ddpgen.spec import rules
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.hosts.fields import ADDRESS, Host, HostsJob
from ddpgen.tiers.hosts.plan import address, of_host, ssh_host
from ddpgen.tiers.plan import again, example, values
from ddpgen.tiers.ranks import backend

# Starts the job on all hosts.
DRIVER = "hosts/run.sh"
_ONESELF = ("localhost", "localhost.localdomain", "0.0.0.0")


def check(job: HostsJob) -> Iterator[Conflict]:
    """Yield the faults of the list of hosts."""
    if not job.hosts:
        what = "lists no hosts"
        yield Conflict(("hosts",), what, "write targets: {hosts: {hosts: [NAME, NAME]}}")
        return
    yield from _names(job)
    yield from _numbers(job)
    yield from rules.places("dir", job.dir)
    on_nccl = backend(job) == "nccl"
    for i, host in enumerate(job.hosts):
        field = f"hosts[{i}]"
        yield from rules.environment(host.env, f"{field}.env", job.train)
        yield from rules.places(f"{field}.dir", host.dir)
        if host.python:
            yield from rules.interpreter(host.python, f"{field}.python")
        yield from _gpus(job, host, field, on_nccl)
        yield from _reached(job, host, field)


def _names(job: HostsJob) -> Iterator[Conflict]:
    names: set[str] = set()
    places: dict[tuple[str, str], str] = {}
    for i, host in enumerate(job.hosts):
        about, name = (f"hosts[{i}].name", f"hosts[{i}]"), host.name.lower()
        if name in names:
            what = f"{host.name} is listed twice (upper and lower case are the same here)"
            yield Conflict(about, what, "give each host a name of its own")
            continue
        names.add(name)
        if name == "run":
            yield Conflict(about, "hosts/run.sh is the driver", "call the host something else")
        if name.endswith(".activate"):
            what = f"hosts/{host.name}.sh may be the activation lines of another host"
            yield Conflict(about, what, "call the host something else")
        place = (host.ssh or host.name, host.dir or job.dir)
        if place in places:
            what = f"is the same place as {places[place]}: {place[0]}, directory {place[1]}"
            yield Conflict(about, what, "give one of them another ssh destination or dir")
        places[place] = host.name
    known = tuple(host.name for host in job.hosts)
    if job.head is not None and job.head not in known:
        yield Conflict(("head",), f"{job.head} is not in hosts", did_you_mean(job.head, known))


def _numbers(job: HostsJob) -> Iterator[Conflict]:
    if job.nodes != len(job.hosts):
        what = f"{int(job.nodes)} nodes, and hosts lists {len(job.hosts)}"
        remedy = f"list {int(job.nodes)} hosts, or write targets: {{hosts: {{nodes: null}}}} for all listed"
        yield Conflict(("nodes", "hosts"), what, remedy)
    if job.nodes.elastic and job.rendezvous.launcher != "torchrun":
        what = f"{job.rendezvous.launcher} starts a fixed number of nodes, not {job.nodes}"
        yield Conflict(("nodes", "rendezvous.launcher"), what, "write launcher: torchrun")
    shares = [f"hosts[{i}].share" for i, host in enumerate(job.hosts) if host.share is not None]
    if shares and job.train.reduction != "tree":
        what = "uneven shares need the fixed-order tree"
        about = (shares[0], "train.reduction")
        yield Conflict(about, what, "write reduction: tree, or leave share out")
    if shares and job.train.runs != "workload":
        what = "has no effect on a script, which shares out its work by itself"
        yield Conflict((shares[0],), what, "leave it out")


def _gpus(job: HostsJob, host: Host, field: str, on_nccl: bool) -> Iterator[Conflict]:
    gpus, procs = job.gpus(host), job.procs(host)
    about = (f"{field}.gpus", f"{field}.procs", "gpus_per_node", "procs_per_node", field)
    if on_nccl and not gpus:
        what = f"nccl talks between GPUs, and {host.name} uses none"
        yield Conflict(about, what, "write backend: gloo, or how many gpus it has")
    if gpus and procs > gpus:
        what = f"{procs} processes on {gpus} GPUs of {host.name}; each needs one of its own"
        yield Conflict(about, what, f"write procs: {gpus}")


def _reached(job: HostsJob, host: Host, field: str) -> Iterator[Conflict]:
    destination, place = host.ssh or host.name, address(host)
    about = (f"{field}.address", f"{field}.ssh", field)
    if not ssh_host(destination):
        yield Conflict((f"{field}.ssh",), "names no host", "write an alias, user@host or its like")
    elif "://" not in destination and destination.count(":") == 1:
        what = f"{destination} is no destination of ssh: it takes a port otherwise"
        yield Conflict((f"{field}.ssh",), what, f"write ssh://{destination}")
    elif not re.fullmatch(ADDRESS.pattern, place, re.ASCII):
        what = f"{show(place)} is no address for the other hosts"
        yield Conflict(about, what, f"write address: with {ADDRESS.wants} by which they reach it")
    elif len(job.hosts) > 1 and (place in _ONESELF or place.startswith("127.")):
        remedy = "write the address by which the others reach this host"
        yield Conflict(about, f"{place} reaches only the host itself", remedy)
    if len(job.hosts) > 1 and (host.nic or job.nic) in ("lo", "lo0"):
        what = "loopback reaches only the host itself"
        yield Conflict((f"{field}.nic", "nic"), what, "name the interface towards the others")


def render(job: HostsJob, renderer: Renderer) -> list[Artefact]:
    """Return run.sh first, then the files it needs: a script per host, the list of hosts, the driver."""
    run = renderer.render(
        "run.sh.j2", {"name": job.name, "example": example(job), "again": again(job)}
    )
    artefacts = [Artefact(DRIVER, run, f"bash {{bundle}}/{DRIVER}")]
    for host in job.order:
        script, lines = f"hosts/{host.name}.sh", f"hosts/{host.name}.activate.sh"
        placed = values(job.on(host), of_host(job, host), lines)
        text = renderer.render("host.sh.j2", {**placed, "host": host.name})
        artefacts += [Artefact(script, text), *renderer.activation(placed)]
    artefacts.append(Artefact("hosts/hosts.json", _listing(job), executable=False))
    for name, text in package_files("driver"):
        artefacts.append(Artefact(f"hosts/driver/{name}", text, executable=False))
    return artefacts


def _listing(job: HostsJob) -> str:
    """Return hosts.json, which the driver and every host's supervisor read. Each host has one line."""
    facts = {
        "name": job.name,
        "launcher": job.rendezvous.launcher,
        "elastic": [job.nodes.least, len(job.hosts)] if job.nodes.elastic else None,
        "restarts": job.restarts,
        "head": job.order[0].name,
        "ssh_options": job.ssh_options,
        "checkpoint_dir": job.checkpoint_path,
        **({"locked": True} if job.locked else {}),
    }
    lines = [f'  "{key}": {_json(value)},' for key, value in facts.items()]
    each = ",\n".join(f"    {_json(_listed(job, host))}" for host in job.order)
    return "\n".join(["{", *lines, '  "hosts": [', each, "  ]", "}", ""])


def _listed(job: HostsJob, host: Host) -> dict[str, str | int]:
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
