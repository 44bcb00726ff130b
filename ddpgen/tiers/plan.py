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
    """What follows from a job on its tier."""

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
    """What a user may add to the training, for the head of an artefact. As long in all cases: columns follow it."""
    return "--steps=50" if job.train.runs == "workload" else "ARG ARG..."


def again(job: JobSpec) -> str:
    """What to do after a stop. A script that saves nothing begins anew."""
    return "the same command goes on" if job.train.runs == "workload" else "start it again"


def values(job: JobSpec, plan: Plan, lines: str) -> dict[str, Any]:
    """What the templates of every launch script place; `lines`: the file that its activation lines are in."""
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
