"""One module per tier; the registry that makes them known.

A target is a module with check() and render(). Targets never import each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.targets import hosts, local, sky, slurm


class Target(Protocol):
    """What a tier's module offers."""

    def check(self, job: JobSpec) -> Iterable[Conflict]:
        """What this tier cannot do of what the job asks."""

    def render(self, job: JobSpec, renderer: Renderer) -> list[Artefact]:
        """The files that launch the job on this tier, the one to start first."""


TARGETS: dict[str, Target] = {"local": local, "hosts": hosts, "slurm": slurm, "sky": sky}
