"""A job → what its launch script writes down, and what `ddpgen plan` shows. Pure.

Owns what is the same on every tier. A tier's plan() says what differs there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.shell import Joined, Var, Word, at_home
from ddpgen.spec.job import JobSpec
from ddpgen.tiers import command, ranks
from ddpgen.tiers.command import Own, Supervise

if TYPE_CHECKING:
    from fractions import Fraction

_NOTHING = Own()
_LAUNCHERS = {"env": "env, without torchrun", "torchrun-static": "torchrun, static"}


class Plan(NamedTuple):
    """The values that a tier derives from a job."""

    command: Supervise
    """Of a node's supervisor; on `hosts`, of the head's."""

    interpreter: Word
    """The Python that trains."""

    activation: tuple[str, ...]
    """Lines of bash that make the interpreter usable where the launch script runs."""

    rendezvous: str
    """How the processes find each other, in words."""

    checkpoint_dir: Word
    """The directory of a task's checkpoints, as a script beside the bundle says it."""

    store: str | Joined
    """Where a task's checkpoints go that are to outlive the machine; "" where its disk is enough."""

    facts: tuple[str, ...] = ()
    """What else `ddpgen plan` says of it, as lines."""


def of(job: JobSpec, own: Own = _NOTHING, weight: int | Fraction = 1, backend: str = "") -> Plan:
    """The plan of a job on one machine. `own`, `weight` and `backend` (its own if "") go into the command."""
    return Plan(
        command.command(job, own, backend or ranks.backend(job), weight),
        at_home(job.python.interpreter),
        job.python.activate,
        "standalone: torchrun picks a free port on 127.0.0.1",
        _directory(job),
        own.store or job.checkpoint.url or "",
    )


def launcher(job: JobSpec) -> str:
    """The launcher in words, for the head of `rendezvous`."""
    return _LAUNCHERS.get(job.rendezvous.launcher, "torchrun, c10d")


def _directory(job: JobSpec) -> Word:
    path = job.checkpoint_path
    if path.startswith(("/", "~/")) or path == "~":
        return at_home(path)
    return Joined((Var("beside"), "/" + path))


def example(job: JobSpec) -> str:
    """Arguments that a user may add, for the head of an artefact. Both texts have one length, as columns follow."""
    return "--steps=50" if job.train.runs == "workload" else "ARG ARG..."


def again(job: JobSpec) -> str:
    """The advice after a stop. A script that saves nothing starts from the beginning."""
    return "the same command goes on" if job.train.runs == "workload" else "start it again"


def values(job: JobSpec, plan: Plan, lines: str) -> dict[str, Any]:
    """The values for the template of every launch script. `lines`: the file with its activation lines."""
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
        "again": again(job),
    }
