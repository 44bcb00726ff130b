"""A job for Slurm → the command of its supervisor on the first node, its environment, its times. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.spec.job import JobSpec
from ddpgen.text.shell import JoinedWord, Var, Word, expand_home, pieces
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import TierOptions, non_default, ports
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.slurm import directives, environment
from ddpgen.tiers.slurm.fields import SlurmJob


def plan(job: SlurmJob) -> Plan:
    """Return the plan of the whole job, because its nodes are alike."""
    # Without TERM: Slurm signals every process, and torchrun would answer it by ending its workers in mid-step.
    base_plan = plans.build_plan(job, TierOptions(tuple(_options(job)), signals="SIGINT,SIGQUIT"))
    port, store, url = job.rendezvous.port, base_plan.store, job.checkpoint.url
    if url and job.array:
        store = JoinedWord((f"{url.rstrip('/')}/", Var("SLURM_ARRAY_TASK_ID")))
    return base_plan._replace(
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
    yield from non_default(("restarts", job.restarts, JobSpec.restarts))
    flags = {"--keep-bad-nodes": not job.exclude_bad_nodes, "--array": job.array is not None}
    yield from (flag for flag, is_set in flags.items() if is_set)
    if job.points:
        yield JoinedWord(("--point=", Var("point")))
    if job.setup:
        yield "--setup=slurm.setup.sh"
    if job.python.interpreter != "python3":
        yield JoinedWord(("--python=", *pieces(expand_home(job.python.interpreter))))
    if job.environment.container and (
        job.python.activate or any(environment.activation(job)) or job.env
    ):
        yield "--source=slurm.container.sh"
    yield from (JoinedWord(("--in=", *pieces(word))) for word in environment.container_command(job))
    yield from (JoinedWord(("--srun=", *pieces(word))) for word in environment.step_options(job))


def _facts(job: SlurmJob) -> Iterator[str]:
    minimum, maximum = job.nodes.minimum, int(job.nodes)
    fewer = f"; begins with {minimum} nodes, too" if minimum < maximum else ""
    yield f"each node    {directives.cpus_per_task(job)} CPUs{fewer}"
    starts = f"at most {job.requeues + 1} starts"
    if job.time is None:
        yield f"time         {starts}, each as long as the partition allows"
        return
    limit, total = directives.clock(job.time), directives.clock(job.time * (job.requeues + 1))
    yield f"time         {limit} a start, {starts}: {total} in all (days-hours:minutes:seconds)"
    warning = directives.clock(directives.warning_s(job))
    yield f"warning      {warning} before the end of a start it stops, and comes back"
