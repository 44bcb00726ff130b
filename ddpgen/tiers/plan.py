"""A job → the values of its launch script and of `ddpgen plan`. Pure.

Owns the values that are the same on every tier. A tier's plan() replaces those that differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.spec.job import JobSpec
from ddpgen.text.shell import JoinedWord, Var, Word, expand_home
from ddpgen.tiers import command, ranks
from ddpgen.tiers.command import SupervisorCommand, TierOptions

if TYPE_CHECKING:
    from fractions import Fraction

_NO_OPTIONS = TierOptions()
_LAUNCHERS = {"env": "env, without torchrun", "torchrun-static": "torchrun, static"}


class Plan(NamedTuple):
    """The values that a tier derives from a job."""

    command: SupervisorCommand
    """The command of a node's supervisor; on `hosts`, of the head's supervisor."""

    interpreter: Word
    """The Python that trains."""

    activation: tuple[str, ...]
    """Lines of bash that make the interpreter usable on the launch script's machine."""

    rendezvous: str
    """The rendezvous of the processes, in words."""

    checkpoint_dir: Word
    """The directory of a task's checkpoints, as a word of the launch script."""

    store: str | JoinedWord
    """The store for a task's checkpoints that must outlive the machine; "" if the disk is enough."""

    facts: tuple[str, ...] = ()
    """More lines for `ddpgen plan`."""


def build_plan(
    job: JobSpec,
    tier_options: TierOptions = _NO_OPTIONS,
    weight: int | Fraction = 1,
    backend: str = "",
) -> Plan:
    """Return the plan of a job on one machine.

    `tier_options`, `weight` and `backend` go into the command. If `backend` is "", the job's own backend is taken.
    """
    return Plan(
        command.command(job, tier_options, backend or ranks.backend(job), weight),
        expand_home(job.python.interpreter),
        job.python.activate,
        "standalone: torchrun picks a free port on 127.0.0.1",
        _directory(job),
        tier_options.store or job.checkpoint.url or "",
    )


def launcher(job: JobSpec) -> str:
    """Return the launcher in words, for the beginning of `rendezvous`."""
    return _LAUNCHERS.get(job.rendezvous.launcher, "torchrun, c10d")


def _directory(job: JobSpec) -> Word:
    path = job.checkpoint_path
    if path.startswith(("/", "~/")) or path == "~":
        return expand_home(path)
    return JoinedWord((Var("beside"), "/" + path))


def example(job: JobSpec) -> str:
    """Return an example of arguments that a user may add, for the head of an artefact.

    The two possible texts have the same length, because a column follows them in the artefact.
    """
    return "--steps=50" if job.train.program_field == "workload" else "ARG ARG..."


def restart_advice(job: JobSpec) -> str:
    """Return the advice after a stop. It promises less for a script, which may save nothing and start from scratch."""
    return "the same command resumes" if job.train.program_field == "workload" else "start it again"


def values(job: JobSpec, plan: Plan, lines: str) -> dict[str, Any]:
    """Return the values that every launch script's template takes. `lines`: the file of its activation lines."""
    procs = job.procs_per_node
    return {
        "name": job.name,
        "counted": "1 process" if procs == 1 else f"{procs} processes",
        "env": sorted(job.env.items()),
        "activate": plan.activation,
        "activation": lines,
        "interpreter": plan.interpreter,
        "supervise": plan.command,
        "example": example(job),
        "points": len(job.points),
        "again": restart_advice(job),
    }
