"""A job for `hosts` → the command on each host, and how the hosts find each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpgen.shell import Word
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import Own, unusual, unusual_times
from ddpgen.tiers.hosts.fields import Host, HostsJob
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.ranks import backend


def plan(job: HostsJob) -> Plan:
    """The plan of the head."""
    return of_host(job, job.order[0])


def of_host(job: HostsJob, host: Host) -> Plan:
    """The plan of one host. All hosts have one backend."""
    own = Own(tuple(_options(job)), procs_known=True)  # hosts.json has the processes of each
    here = plans.of(job.on(host), own, job.weight(host), backend(job))
    return here._replace(rendezvous=_rendezvous(job))


def _options(job: HostsJob) -> Iterator[Word]:
    """Where hosts meet and how long they wait."""
    shared = job.checkpoint.shared
    yield f"--port={job.rendezvous.port}"  # always, as a firewall may have to be opened for it
    yield from unusual_times(("collective-timeout", job.rendezvous, "collective_timeout"))
    yield from unusual(("shared", "" if shared is None else str(shared).lower(), ""))


def _rendezvous(job: HostsJob) -> str:
    head = job.order[0]
    place = f"{head.name} ({address(head)}:{job.rendezvous.port})"
    if job.rendezvous.launcher == "env":
        return f"env: processes meet at {place}, without torchrun"
    if job.rendezvous.launcher == "torchrun-static":
        return f"torchrun, static: hosts are numbered as below and meet at {place}"
    few = f", {job.nodes.least} of them are enough" if job.nodes.elastic else ""
    return f"torchrun, c10d: hosts meet at {place}{few}; it numbers them when all are there"


def address(host: Host) -> str:
    """How the other hosts reach this one: as it says, else the host that ssh is told."""
    return host.address or ssh_host(host.ssh or host.name)


def ssh_host(destination: str) -> str:
    """The host in [user@]host or ssh://[user@]host[:port]; "" where none is named."""
    place = destination.removeprefix("ssh://")
    if place != destination:
        place = re.sub(r"(:[0-9]*)?/*$", "", place)
    return place.rpartition("@")[2]
