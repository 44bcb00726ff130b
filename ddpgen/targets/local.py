"""The tier `local`: this machine, bash and torchrun. Needs no network and no address."""

from __future__ import annotations

from collections.abc import Iterator

from ddpgen.plan.launch import LaunchPlan, activation, exports, interpreter
from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict


def check(job: JobSpec) -> Iterator[Conflict]:
    """One machine is one node."""
    if job.nodes != 1:
        what = f"local is one machine, not {job.nodes}"
        remedy = "write targets: {local: {nodes: 1}} to run it here as well"
        yield Conflict(("nodes",), what, remedy)


def render(plan: LaunchPlan, renderer: Renderer) -> list[Artefact]:
    """local.sh, and the activation lines beside it."""
    job = plan.job
    procs = job.world_size
    values = {
        "name": job.name,
        "counted": "1 process" if procs == 1 else f"{procs} processes",
        "env": exports(job),
        "activate": activation(job),
        "activation": "local.activate.sh",
        "interpreter": interpreter(job),
        "supervise": plan.supervise,
    }
    text = renderer.render("local.sh.j2", values)
    artefacts = [Artefact("local.sh", text, "bash {bundle}/local.sh")]
    if values["activate"]:
        lines = renderer.render("activate.sh.j2", values)
        artefacts.append(Artefact("local.activate.sh", lines, executable=False))
    return artefacts
