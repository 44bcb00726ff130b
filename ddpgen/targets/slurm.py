"""The tier `slurm`: one batch script for sbatch.

Owns what a job for Slurm may not say, and which values the script is made of. What they mean to sbatch
and srun is ddpgen/plan/slurm.py's; Slurm itself is only met by the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddpgen.plan import slurm
from ddpgen.plan.launch import (
    activation,
    checkpoint_dir,
    command,
    example,
    exports,
    interpreter,
)
from ddpgen.render import Artefact, Renderer
from ddpgen.shell import Joined, Var, Word, pieces
from ddpgen.spec import rules
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.spec.slurm import SlurmJob


def check(job: JobSpec) -> Iterator[Conflict]:
    """What Slurm would refuse, or take for something else."""
    assert isinstance(job, SlurmJob)
    yield from _directives(job)
    yield from _times(job)
    yield from _environment(job)
    yield from rules.places("dir", job.dir)
    if job.checkpoint.shared is False:
        what = (
            "slurm starts the job on other nodes next time, and they have to find its checkpoints"
        )
        yield Conflict(
            ("checkpoint.shared",), what, "leave it out, and name a directory all nodes see"
        )


def _directives(job: SlurmJob) -> Iterator[Conflict]:
    for i, option in enumerate(job.extra):
        name = option[2:].partition("=")[0]
        if name in slurm.OWNED:
            what = f"--{name} is said by this tier itself"
            yield Conflict((f"extra[{i}]", "extra"), what, "use the field for it (docs/slurm.md)")
    if job.gpu_type and not job.gpus_per_node:
        what = "names a type of GPU, and the job asks for none"
        yield Conflict(("gpu_type",), what, f"write gpus_per_node: {job.procs_per_node}")
    if job.gpus_per_node and job.gpu_request == "gpus-per-task" and job.nodes.elastic:
        what = "sbatch takes gpus-per-task only for a fixed number of nodes"
        yield Conflict(("gpu_request", "nodes"), what, "write gpus-per-node or gres")
    if job.gpus_per_node and job.gpu_type and job.gpu_request == "none":
        what = "is asked for nowhere with gpu_request: none"
        yield Conflict(("gpu_type", "gpu_request"), what, "leave one of them out")


def _times(job: SlurmJob) -> Iterator[Conflict]:
    if job.time is None:
        return
    warned = slurm.warning_s(job)
    if warned >= job.time:
        what = (
            f"the warning comes {warned:g} s before the end of {job.time:g} s: at once, every time"
        )
        about = ("warning", "step_time", "write_time", "time")
        yield Conflict(about, what, "write a longer time, or a shorter warning")


def _environment(job: SlurmJob) -> Iterator[Conflict]:
    given = job.environment
    chosen = [name for name in ("conda", "venv", "uv") if getattr(given, name)]
    if len(chosen) > 1:
        what = f"{' and '.join(chosen)} are both given"
        yield Conflict((f"environment.{chosen[1]}",), what, "keep one of them")
    for name in ("venv", "uv"):
        path = getattr(given, name)
        yield from rules.places(f"environment.{name}", path)
        if path and not path.startswith(("/", "~")):
            what = f'"{path}" is another place on every node'
            yield Conflict((f"environment.{name}",), what, "write ~/path or /path")


def render(job: JobSpec, renderer: Renderer) -> list[Artefact]:
    """slurm.sbatch, and what it sources on the first node and on all of them."""
    assert isinstance(job, SlurmJob)
    contained = job.environment.container is not None
    values = _values(job)
    script = renderer.render("slurm.sbatch.j2", values)
    artefacts = [Artefact("slurm.sbatch", script, "sbatch {bundle}/slurm.sbatch")]

    def add(name: str, template: str, lines: tuple[str, ...]) -> None:
        inside = {"activate": lines, "activation": "slurm.container.activate.sh", "script": name}
        text = renderer.render(template, {**values, **inside})
        artefacts.append(Artefact(name, text, executable=False))

    if values["activation"]:
        add("slurm.activate.sh", "activate.sh.j2", values["activation"])
    if job.setup:
        add("slurm.setup.sh", "setup.sh.j2", ())
    lines = (*slurm.activation(job), *job.python.activate)
    if contained and (lines or job.env):
        add("slurm.container.sh", "container.sh.j2", lines)
    if contained and lines:
        add("slurm.container.activate.sh", "activate.sh.j2", lines)
    return artefacts


def _values(job: SlurmJob) -> dict[str, Any]:
    least, most = job.nodes.least, int(job.nodes)
    nodes = f"{least} to {most}" if least < most else f"{most}"
    in_container = job.environment.container is not None
    return {
        "name": job.name,
        "directives": slurm.directives(job),
        "counted": f"{nodes} node(s), {job.procs_per_node} process(es) on each",
        "requeues": job.requeues,
        "saved": _saved(job),
        "env": exports(job),
        "activation": activation(job),
        "interpreter": interpreter(job),
        "batch_python": "python3" if in_container else interpreter(job),
        "supervise": command(job),
        "example": example(job),
        "setup": job.setup,
    }


def _saved(job: SlurmJob) -> Word:
    """The copy of the bundle that every start but the first one runs."""
    array = ("-", Var("SLURM_ARRAY_TASK_ID")) if job.array is not None else ()
    return Joined((*pieces(checkpoint_dir(job)), *array, "/bundle-", Var("SLURM_JOB_ID")))
