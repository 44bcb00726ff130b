"""A job for SkyPilot → the command of the supervisor on each machine, and the kinds of machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddpgen.spec.job import Rendezvous
from ddpgen.text.shell import Word
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import TierOptions, non_default, ports
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.sky import directives
from ddpgen.tiers.sky.fields import SkyJob


def plan(job: SkyJob) -> Plan:
    """Return the plan of the whole job, because its machines are alike."""
    tier_options = TierOptions(
        tuple(_options(job)),
        # Each task has a directory of its own in this one.
        directory=directives.tasks_directory(job),
        store=directives.bucket_directory(job, job.bucket) if job.bucket else "",
        # Without TERM: SkyPilot signals every process, and torchrun would answer it by ending its workers in mid-step.
        signals="SIGINT,SIGHUP,SIGQUIT",
        # On a cloud's machine with several network cards NCCL's plugins choose well, unless the user has chosen.
        unpinned=() if job.nic else ("NCCL_SOCKET_IFNAME",),
    )
    port = job.rendezvous.port
    return plans.build_plan(job, tier_options)._replace(
        interpreter=directives.interpreter(job),
        rendezvous=f"{plans.launcher(job)}: machines meet at the first of SKYPILOT_NODE_IPS, at a port from {port} on",
        checkpoint_dir=directives.local_dir(job),
        facts=tuple(_facts(job)),
    )


def _options(job: SkyJob) -> Iterator[Word]:
    yield from non_default(
        ("nodes", int(job.nodes), 1),
        ("ports", ports(job.rendezvous.port), ports(Rendezvous.port)),
        ("bucket", job.bucket.url.rstrip("/") if job.bucket else "", ""),
        ("mount", job.bucket.path if job.bucket else "", ""),
        ("hook", directives.hook(job), ""),
    )
    if not job.notices:
        yield "--no-notices"


def _facts(job: SkyJob) -> Iterator[str]:
    if job.bucket:
        mode, url = directives.MODES[job.bucket.mode], job.bucket.url.rstrip("/")
        yield f"bucket       {url}, seen as {job.bucket.path} ({mode})"
    common = _pairs(directives.resources(job))
    for number, kind in enumerate(directives.alternatives(job)):
        yield f"{'machines' if not number else 'or':13}{', '.join(filter(None, (_pairs(kind), common)))}"


def _pairs(pairs: Iterable[tuple[str, directives.Scalar]]) -> str:
    return ", ".join(
        f"{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in pairs
    )
