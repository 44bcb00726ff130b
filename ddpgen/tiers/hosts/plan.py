"""A job for `hosts` → the command on each host, and the rendezvous of the hosts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpgen.text.shell import Word
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import TierOptions, non_default, non_default_times
from ddpgen.tiers.hosts.fields import Host, HostsJob
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.ranks import backend


def plan(job: HostsJob) -> Plan:
    """Return the plan of the head."""
    return host_plan(job, job.order[0])


def host_plan(job: HostsJob, host: Host) -> Plan:
    """Return the plan of one host. All hosts have the same backend."""
    # A supervisor gets the number of its host's processes from hosts.json.
    tier_options = TierOptions(tuple(_options(job)), procs_known=True, balances=job.balances)
    base_plan = plans.build_plan(job.for_host(host), tier_options, job.weight(host), backend(job))
    return base_plan._replace(rendezvous=_rendezvous(job), facts=tuple(_facts(job)))


def _facts(job: HostsJob) -> Iterator[str]:
    if spares := ", ".join(host.name for host in job.order[len(job.taking_part) :]):
        yield f"spares       {spares}, in place of a bad host"
    if job.balances:
        yield "share        auto: from these micro-batches on, they move from slow processes to fast ones"


def _options(job: HostsJob) -> Iterator[Word]:
    """Yield the supervisor's options for the rendezvous: the port, the waits, and `shared` of the checkpoints."""
    shared = job.checkpoint.shared
    yield f"--port={job.rendezvous.port}"  # even the default, because a firewall may have to admit it
    yield from non_default_times(("collective-timeout", job.rendezvous, "collective_timeout"))
    yield from non_default(("shared", "" if shared is None else str(shared).lower(), ""))


def _rendezvous(job: HostsJob) -> str:
    head = job.order[0]
    endpoint = f"{head.name} ({address(head)}:{job.rendezvous.port})"
    if job.rendezvous.launcher == "env":
        return f"env: processes meet at {endpoint}, without torchrun"
    if job.rendezvous.launcher == "torchrun-static":
        return f"torchrun, static: hosts are numbered as below and meet at {endpoint}"
    minimum = f", {job.nodes.minimum} of them are enough" if job.nodes.elastic else ""
    return f"torchrun, c10d: hosts meet at {endpoint}{minimum}; it numbers them when all are there"


def address(host: Host) -> str:
    """Return the address by which the other hosts reach this one: its `address`, else the host in its ssh target."""
    return host.address or ssh_host(host.ssh or host.name)


def ssh_host(destination: str) -> str:
    """Return the host in [user@]host or ssh://[user@]host[:port]; "" if it names no host."""
    target = destination.removeprefix("ssh://")
    if target != destination:
        target = re.sub(r"(:[0-9]*)?/*$", "", target)
    return target.rpartition("@")[2]
