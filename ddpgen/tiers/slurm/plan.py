"""A job for Slurm → the command of its supervisor on the first node, its environment, its times. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.shell import Joined, Var, Word, at_home, pieces
from ddpgen.spec.job import JobSpec
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import Own, ports, unusual
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.slurm import directives, environment
from ddpgen.tiers.slurm.fields import SlurmJob


def plan(job: SlurmJob) -> Plan:
    """Return the plan of the whole job, because its nodes are alike."""
    # Without TERM: Slurm signals every process, and torchrun would answer it by ending its workers in mid-step.
    made = plans.of(job, Own(tuple(_options(job)), signals="SIGINT,SIGQUIT"))
    port, store, url = job.rendezvous.port, made.store, job.checkpoint.url
    if url and job.array:
        store = Joined((f"{url.rstrip('/')}/", Var("SLURM_ARRAY_TASK_ID")))
    return made._replace(
        activation=_activation(job),
        rendezvous=f"{plans.launcher(job)}: nodes meet at the first node, at a free port from {port} on",
        store=store,
        facts=tuple(_facts(job)),
    )


def _activation(job: SlurmJob) -> tuple[str, ...]:
    modules = tuple(environment.modules(job))
    if job.environment.container is not None:
        return modules
    return (*modules, *environment.activation(job), *job.python.activate)


def _options(job: SlurmJob) -> Iterator[Word]:
    yield f"--ports={ports(job.rendezvous.port)}"
    yield f"--requeues={job.requeues}"
    yield f"--warning={int(directives.warning_s(job))}"
    yield from unusual(("restarts", job.restarts, JobSpec.restarts))
    if job.array is not None:
        yield "--array"
    if job.setup:
        yield "--setup=slurm.setup.sh"
    if job.python.interpreter != "python3":
        yield Joined(("--python=", *pieces(at_home(job.python.interpreter))))
    if job.environment.container and (
        job.python.activate or any(environment.activation(job)) or job.env
    ):
        yield "--source=slurm.container.sh"
    yield from (Joined(("--in=", *pieces(word))) for word in environment.inside(job))
    yield from (Joined(("--srun=", *pieces(word))) for word in environment.on_nodes(job))


def _facts(job: SlurmJob) -> Iterator[str]:
    least, most = job.nodes.least, int(job.nodes)
    fewer = f"; begins with {least} nodes, too" if least < most else ""
    yield f"each node    {directives.cpus_per_task(job)} CPUs{fewer}"
    starts = f"at most {job.requeues + 1} starts"
    if job.time is None:
        yield f"time         {starts}, each as long as the partition allows"
        return
    limit, total = directives.clock(job.time), directives.clock(job.time * (job.requeues + 1))
    yield f"time         {limit} a start, {starts}: {total} in all (days-hours:minutes:seconds)"
    warning = directives.clock(directives.warning_s(job))
    yield f"warning      {warning} before the end of a start it stops, and comes back"
