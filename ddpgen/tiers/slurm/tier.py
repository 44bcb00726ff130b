"""The tier `slurm`: one batch script for sbatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.slurm import plan, render
from ddpgen.tiers.slurm.fields import Container, SlurmJob
from ddpgen.tiers.tier import Follow, Tier

if TYPE_CHECKING:
    from ddpgen.monitor.record import Launch


class Slurm(Tier[SlurmJob]):
    """A Slurm cluster, by a batch script. See Tier."""

    model = SlurmJob

    def check(self, job: SlurmJob) -> Iterable[Conflict]:
        return render.check(job)

    def plan(self, job: SlurmJob) -> Plan:
        return plan.plan(job)

    def render(self, job: SlurmJob, renderer: Renderer) -> list[Artefact]:
        return render.render(job, self.plan(job), renderer)

    def contained(self, job: SlurmJob, image: str) -> SlurmJob:
        container = replace(job.environment.container or Container(""), image=f"docker://{image}")
        if container.runtime != "apptainer":
            return job
        environment = replace(job.environment, packages="installed", container=container)
        return replace(job, environment=environment)

    def submit(
        self, job: SlurmJob, bundle: Path, arguments: Sequence[str], points: Sequence[str] = ()
    ) -> Launch:
        from ddpgen.tiers.slurm import submit

        return submit.submit(job, bundle, arguments, points)

    def preview(
        self, job: SlurmJob, bundle: Path, copy: Path, words: Sequence[str], points: Sequence[str]
    ) -> Sequence[str]:
        from ddpgen.tiers.slurm import submit

        return list(submit.preview(job, bundle, copy, words, points))

    @property
    def follow(self) -> Follow:
        from ddpgen.tiers.slurm import follow

        return follow
