"""The tier `local`: this machine, bash and torchrun. Needs no network and no address."""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.plan import values
from ddpgen.tiers.tier import Tier


class Local(Tier[JobSpec]):
    """One machine, which runs the job in the foreground. See Tier."""

    model = JobSpec
    start = "local.sh"

    def check(self, job: JobSpec) -> Iterator[Conflict]:
        if job.nodes != 1:
            problem = f"local is one machine, not {job.nodes}"
            remedy = "write targets: {local: {nodes: 1}} to run it here as well"
            yield Conflict(("nodes",), problem, remedy)

    def render(self, job: JobSpec, renderer: Renderer) -> list[Artefact]:
        template_values = values(job, self.plan(job), "local.activate.sh")
        script = renderer.render("local.sh.j2", template_values)
        return [
            Artefact(self.start, script, "bash {bundle}/local.sh"),
            *renderer.activation(template_values),
        ]
