"""The interface of a tier, and the one list of them. Tiers never import each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.hosts import render as hosts
from ddpgen.tiers.local import render as local
from ddpgen.tiers.sky import render as sky
from ddpgen.tiers.slurm import render as slurm


class Target(Protocol):
    """The module `render` in a tier's folder."""

    def check(self, job: JobSpec) -> Iterable[Conflict]:
        """What this tier cannot do of what the job asks."""

    def render(self, job: JobSpec, renderer: Renderer) -> list[Artefact]:
        """The files that launch the job on this tier, the one to start first."""


TARGETS: dict[str, Target] = {"local": local, "hosts": hosts, "slurm": slurm, "sky": sky}
