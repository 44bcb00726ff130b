"""The tier `sky`: one task for SkyPilot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.sky import plan, render, requirement_files
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.tier import Tier


class Sky(Tier[SkyJob]):
    """Machines in a cloud, by a managed job of SkyPilot. See Tier."""

    model = SkyJob
    can_bench = False

    def check(self, job: SkyJob) -> Iterable[Conflict]:
        return render.check(job)

    def files(self, job: SkyJob, home: Path) -> Mapping[str, str]:
        return requirement_files.travelling(job, home)

    def check_files(self, job: SkyJob, home: Path) -> Iterable[Conflict]:
        return requirement_files.check(job, self.files(job, home), home)

    def plan(self, job: SkyJob) -> Plan:
        return plan.plan(job)

    def render(self, job: SkyJob, renderer: Renderer) -> list[Artefact]:
        return render.render(job, self.plan(job), renderer)

    def contained(self, job: SkyJob, image: str) -> SkyJob:
        environment = replace(job.environment, packages="installed")
        return replace(job, environment=environment, image=f"docker:{image}")
