"""The tier `hosts`: a handful of machines that ssh reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.hosts import plan, render
from ddpgen.tiers.hosts.fields import HostsJob
from ddpgen.tiers.plan import Plan
from ddpgen.tiers.tier import Tier


class Hosts(Tier[HostsJob]):
    """Several machines by ssh, with a driver in the foreground. See Tier."""

    model = HostsJob
    start = render.DRIVER
    fetch_option = "--fetch"

    def check(self, job: HostsJob) -> Iterable[Conflict]:
        return render.check(job)

    def plan(self, job: HostsJob) -> Plan:
        return plan.plan(job)

    def render(self, job: HostsJob, renderer: Renderer) -> list[Artefact]:
        return render.render(job, renderer)

    def preview(
        self, job: HostsJob, bundle: Path, copy: Path, words: Sequence[str], points: Sequence[str]
    ) -> Sequence[str]:
        from ddpgen.tiers.hosts import preview

        return list(preview.lines(render.listing(job), bundle, words))
