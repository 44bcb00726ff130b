"""The tier `local`: this machine, bash and torchrun. Needs no network and no address."""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.ranks import command, values


def check(job: JobSpec) -> Iterator[Conflict]:
    """One machine is one node."""
    if job.nodes != 1:
        what = f"local is one machine, not {job.nodes}"
        remedy = "write targets: {local: {nodes: 1}} to run it here as well"
        yield Conflict(("nodes",), what, remedy)


def render(job: JobSpec, renderer: Renderer) -> list[Artefact]:
    """local.sh, and the activation lines beside it."""
    placed = values(job, command(job), "local.activate.sh")
    script = renderer.render("local.sh.j2", placed)
    start = "bash {bundle}/local.sh"
    return [Artefact("local.sh", script, start), *renderer.activation(placed)]
