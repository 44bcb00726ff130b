"""The tier `slurm`: one batch script for sbatch."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.slurm import plan, render
from ddpgen.tiers.slurm.fields import Container, SlurmJob
from ddpgen.tiers.tier import Tier


class Slurm(Tier[SlurmJob]):
    """A Slurm cluster, by a batch script. See Tier."""

    model = SlurmJob

    def check(self, job: SlurmJob) -> Iterable[Conflict]:
        return render.check(job)

    def files(self, job: SlurmJob, home: Path) -> Mapping[str, str]:
        container = job.environment.container
        image = re.fullmatch(
            r"(?:\./)?code/(.+\.(?:sif|img|sqsh))", container.image if container else ""
        )
        if image is None or any(image[1] in line for line in job.setup):  # which may make it
            return {}
        return {posixpath.normpath(image[1].lstrip("/")): "environment.container.image"}

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
