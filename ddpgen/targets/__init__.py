"""One module per tier; the registry that makes them known.

A target is a module with NAME, check() and render(). Targets never import each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ddpgen.errors import TargetUnavailableError
from ddpgen.plan.launch import LaunchPlan
from ddpgen.render import Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.targets import hosts, local, sky, slurm
from ddpgen.targets.artefact import Artefact


class Target(Protocol):
    """What a tier's module offers."""

    NAME: str

    def check(self, job: JobSpec) -> Iterable[Conflict]:
        """What this tier cannot do of what the job asks."""

    def render(self, plan: LaunchPlan, renderer: Renderer) -> list[Artefact]:
        """The files that launch the plan on this tier, the one to start first."""


TARGETS: dict[str, Target] = {each.NAME: each for each in (local, hosts, slurm, sky)}


def target(name: str) -> Target:
    """The target called `name`; raises TargetUnavailableError."""
    if name in TARGETS:
        return TARGETS[name]
    raise TargetUnavailableError(f"tier {name} is unknown; there is {', '.join(TARGETS)}")
