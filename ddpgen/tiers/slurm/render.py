"""The tier `slurm`: one batch script for sbatch.

Owns the rules for a job on Slurm, and the values of the script's template. directives.py and environment.py in
this folder have the options of sbatch and srun. Runs no program of Slurm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ddpgen import __version__
from ddpgen.render import Artefact, Renderer
from ddpgen.spec import rules, unwise
from ddpgen.spec.fields import show
from ddpgen.spec.job import Checkpoint, Stop
from ddpgen.spec.rules import Conflict
from ddpgen.spec.secrets import exposes_secret
from ddpgen.text.shell import JoinedWord, Var, pieces
from ddpgen.tiers.plan import Plan, values
from ddpgen.tiers.slurm import container, directives, environment, sbatch_options
from ddpgen.tiers.slurm.fields import SIZE, SlurmJob
from ddpgen.tiers.slurm.notation import node_names

# Options that ask for GPUs without a field. --gres has a rule of its own.
_GPUS = re.compile(r"--gpus(?:-per-socket)?=(?!(?:.*:)?0$)|--tres-per-task=(?:.*,)?gres[:/]gpu\b")


def check(job: SlurmJob) -> Iterator[Conflict]:
    """Yield the fields that Slurm would refuse or misread."""
    yield from _directives(job)
    yield from _times(job)
    yield from _environment(job)
    yield from _secrets(job)
    yield from rules.ssh_options(job.ssh_options)
    if job.limits is not None:
        from ddpgen.tiers.slurm import admission

        yield from admission.check(job, job.limits)
    yield from _unwise(job)
    yield from _without_effect(job)
    workdir = job.train.workdir or "/"
    if not workdir.startswith(("/", "~", "{checkpoint_dir}")):
        problem = (
            f"{show(workdir)} begins at the bundle's copy, which has another place in each job"
        )
        remedy = f"write {{checkpoint_dir}}/{workdir.removeprefix('./')}, or a path from / or ~/"
        yield Conflict(("train.workdir",), problem, remedy)
    if job.checkpoint.shared is False:
        problem = (
            "slurm starts the job on other nodes next time, and they have to find its checkpoints"
        )
        yield Conflict(
            ("checkpoint.shared",), problem, "leave it out, and name a directory all nodes see"
        )


def _directives(job: SlurmJob) -> Iterator[Conflict]:
    if job.points and job.array is not None:
        problem = "a sweep is an array of its own, with one task for each point"
        remedy = "leave array out; array_parallelism limits how many tasks run at once"
        yield Conflict(("array",), problem, remedy)
    yield from sbatch_options.check(job)
    yield from _gres(job)
    yield from _gpus(job)
    yield from _output(job)
    yield from _nodes(job)
    if job.gpu_type and not job.gpus_per_node:
        problem = "names a type of GPU, and the job asks for none"
        yield Conflict(("gpu_type",), problem, f"write gpus_per_node: {job.procs_per_node}")
    if job.gpu_type and len(job.gpu_type) < 3 and job.gpu_type.isdecimal():
        problem = f"{job.gpu_type} looks like a number of GPUs, and this is their type"
        remedy = f"write gpus_per_node: {job.gpu_type}, and a type like a100"
        yield Conflict(("gpu_type",), problem, remedy, False)
    if job.gpus_per_node and job.gpu_request == "gpus-per-task" and job.nodes.elastic:
        problem = "sbatch takes gpus-per-task only for a fixed number of nodes"
        yield Conflict(("gpu_request", "nodes"), problem, "write gpus-per-node or gres")
    if job.gpus_per_node and job.gpu_type and job.gpu_request == "none":
        problem = "is asked for nowhere with gpu_request: none"
        yield Conflict(("gpu_type", "gpu_request"), problem, "leave one of them out")


def _nodes(job: SlurmJob) -> Iterator[Conflict]:
    """Yield the faults of `nodelist`. To sbatch these are nodes that each start needs, all of them at once."""
    needed = node_names(job.nodelist or "")
    if len(needed) > job.nodes:
        problem = (
            f"lists {len(needed)} nodes, all of which each start needs, and nodes is {job.nodes}"
        )
        remedy = f"write nodes: {len(needed)}, or exclude: with the nodes to stay away from"
        yield Conflict(("nodelist", "nodes"), problem, remedy)
    if both := needed & node_names(job.exclude or ""):
        problem = f"{min(both)} is in nodelist as well"
        yield Conflict(("exclude", "nodelist"), problem, "leave it out of one of them")


def _gres(job: SlurmJob) -> Iterator[Conflict]:
    for item in directives.gres(job):
        if item.name != "gpu":
            continue
        if item.number != job.gpus_per_node or item.kind != (job.gpu_type or item.kind):
            kind = f" of type {job.gpu_type}" if job.gpu_type else ""
            problem = f"--gres={item.text}, and the job uses {job.gpus_per_node or 0} GPUs{kind} on each node"
            remedy = f"write gpus_per_node: {item.number}, procs_per_node: {item.number}"
            if item.kind:
                remedy += f", gpu_type: {item.kind}"
            yield Conflict(("extra", "gpus_per_node"), problem, remedy)


def _gpus(job: SlurmJob) -> Iterator[Conflict]:
    """Yield the options of `extra` that ask for GPUs which no process would use."""
    for i, option in enumerate(job.extra):
        fields = (f"extra[{i}]", "extra")
        if not job.gpus_per_node and _GPUS.match(option):
            problem = f"{option} asks for GPUs, and the job uses none"
            remedy = "write gpus_per_node: N and procs_per_node: N"
            yield Conflict((*fields, "gpus_per_node"), problem, remedy)
        asked = re.fullmatch(r"--gpus=((?:[^:,]+:)?\d+(?:,[^:,]+:\d+)*)", option)
        needed = (job.gpus_per_node or 0) * job.nodes.minimum
        if asked and sum(int(each.rpartition(":")[2]) for each in asked[1].split(",")) < needed:
            problem = f"{option} is for all nodes together, which need {needed}"
            yield Conflict(fields, problem, f"write --gpus={needed}, or gpu_request in its place")
        bound = environment.bound_gpus(option)
        if job.gpus_per_node and bound is not None and bound < job.procs_per_node:
            problem = f"{option} leaves the {job.procs_per_node} processes of a node {bound} GPU(s), because they are one task"
            yield Conflict(fields, problem, "leave it out, or write --gpu-bind=none", False)


def _output(job: SlurmJob) -> Iterator[Conflict]:
    pattern = directives.output(job)
    if pattern is None:
        return
    if not pattern.startswith("/"):
        problem = f"--output={pattern} starts at the directory of the submission, which is a copy that goes away"
        yield Conflict(("extra",), problem, "write /PATH/%x-%j.log, in a directory that exists")
    of_one, needed = ("tasks of the array", "a") if job.indices else ("jobs", "jJA")
    if not re.search(f"%[0-9]*[{needed}]", pattern):
        problem = f"--output={pattern} is one file for all {of_one}"
        yield Conflict(("extra",), problem, f"add %{needed[0]}", False)


def _times(job: SlurmJob) -> Iterator[Conflict]:
    if job.time is None:
        return
    warned = directives.warning_s(job)
    if warned >= job.time:
        problem = (
            f"the warning comes {warned:g} s before the end of {job.time:g} s: at once, every time"
        )
        fields = ("warning", "step_time", "write_time", "time")
        yield Conflict(fields, problem, "write a longer time, or a shorter warning")


def _unwise(job: SlurmJob) -> Iterator[Conflict]:
    """Yield a warning for each value that Slurm takes, and that is hardly meant."""
    boxed = job.environment.container
    others: dict[str, str | None] = {
        "dir": job.dir if job.login else None,
        "environment.container.image": boxed.image if boxed else None,
    }
    others |= {f"environment.{name}": path for name, path in _environments(job).items()}
    yield from unwise.temporary(job, "name a directory that all nodes see", others)
    for field, place in {
        "checkpoint.dir": job.checkpoint.path,
        "train.workdir": job.train.workdir,
    }.items():
        if place and place.startswith("/Users/"):
            problem = f"{place} is in the home of a Mac, and a node of Slurm has none"
            yield Conflict((field,), problem, "name a directory that all nodes see", False)
    yield from _memory(job)
    yield from _warning(job)
    every, saves = job.checkpoint.every, job.train.program_field == "workload"
    if saves and job.time and every != Checkpoint.every and (every.seconds or 0) >= job.time:
        problem = "is no shorter than the time limit, so only the warning saves"
        yield Conflict(("checkpoint.every", "time"), problem, "write a shorter period", False)
    if job.warning and job.warning > directives.LONGEST_WARNING_S:
        problem = f"Slurm warns at most {directives.LONGEST_WARNING_S:g} s before the end"
        yield Conflict(("warning",), problem, "write a shorter time, like 10min", False)
    if job.cpus_per_proc and job.cpus_per_proc < job.train.threads:
        problem = f"{job.train.threads} threads of each process share {job.cpus_per_proc} CPUs"
        yield Conflict(("cpus_per_proc", "train.threads"), problem, "write as many CPUs", False)


def _memory(job: SlurmJob) -> Iterator[Conflict]:
    cpus, gpus = directives.cpus_per_task(job), job.gpus_per_node or 0
    sizes = [("mem", "", job.mem or "0", 1)]
    for option, count in (("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        words = directives.option_values(job, option)
        sizes += [("extra", f"--{option}=", size, count) for size in words]
    for field, option, size, count in sizes:
        if re.fullmatch(SIZE.pattern, size):
            mib, example = directives.memory_mib(size) * count, f"{option}16G"
            yield from unwise.memory(field, f"{option}{size}", mib, job.procs_per_node, example)


def _warning(job: SlurmJob) -> Iterator[Conflict]:
    """Yield a warning if the time before a time limit is too short for a script's stop, or leaves no time to train."""
    warned, grace = directives.warning_s(job), job.train.stop.grace
    if grace != Stop.grace and grace > warned:
        problem = f"{grace:g} s are longer than the warning before the time limit, {warned:g} s"
        remedy = f"write warning: {grace + directives.SLACK_S:g}s, or a shorter grace"
        yield Conflict(("train.stop.grace", "warning", "time"), problem, remedy, False)
    if job.time is None or warned >= job.time:
        return
    if warned + directives.SLACK_S >= math.ceil(job.time / 60) * 60:  # Slurm rounds up to minutes
        problem = f"Slurm may warn a minute early, which is at the start of {job.time:g} s"
        yield Conflict(("time", "warning"), problem, "write a longer time", False)
    elif (job.warning or job.step_time or job.write_time) and warned > job.time / 2:
        problem = f"{warned:g} s before the end leave each start {job.time - warned:g} s to train"
        fields = ("warning", "step_time", "write_time", "time")
        yield Conflict(fields, problem, "write a shorter time, like 5min", False)


def _without_effect(job: SlurmJob) -> Iterator[Conflict]:
    """Yield a warning for each field that another one makes idle."""
    for name in ("step_time", "write_time"):
        if job.warning is not None and getattr(job, name) is not None:
            yield unwise.no_effect(name, "where warning is given")
    yield from _only_of_arrays(job)
    if not job.mail_to and job.mail_on != SlurmJob.mail_on:
        yield unwise.no_effect("mail_on", "without mail_to")
    if "NONE" in map(str.upper, job.mail_on) and len(job.mail_on) > 1:
        problem = "NONE is no mail at all, and other words ask for mail"
        yield Conflict(("mail_on",), problem, "leave NONE out, or write it alone", False)
    if not job.gpus_per_node and job.gpu_request != SlurmJob.gpu_request:
        yield unwise.no_effect("gpu_request", "without gpus_per_node")
    if not job.login and job.ssh_options:
        yield unwise.no_effect("ssh_options", "without login")
    if not job.login and job.dir != SlurmJob.dir:
        yield unwise.no_effect("dir", "without login")


def _only_of_arrays(job: SlurmJob) -> Iterator[Conflict]:
    if job.array_parallelism and not job.points:
        yield unwise.no_effect("array_parallelism", "without a sweep")
    if not job.indices and "ARRAY_TASKS" in map(str.upper, job.mail_on):
        yield unwise.no_effect("mail_on", "for ARRAY_TASKS without an array or a sweep")
    if not job.indices and "aftercorr:" in (job.dependency or "").lower():
        problem = "aftercorr waits for the same task of another array, and this job is no array"
        yield Conflict(("dependency",), problem, "write afterok:JOB", False)


def _environment(job: SlurmJob) -> Iterator[Conflict]:
    environment_fields = job.environment
    if environment_fields.container is not None:
        yield from container.check(environment_fields.container)
    environments, interpreter = _environments(job), job.python.interpreter
    chosen = [*environments]
    inside = any(
        interpreter.startswith(f"{path.rstrip('/')}/") or f"/{path}/" in interpreter
        for path in environments.values()
    )
    if chosen and interpreter.startswith(("/", "~")) and not inside:
        problem = f"{interpreter} is a Python of its own, and not that of environment.{chosen[0]}"
        fields = ("python.interpreter", "python", f"environment.{chosen[0]}")
        yield Conflict(fields, problem, "leave one of them out", False)
    if len(chosen) > 1:
        problem = f"{' and '.join(chosen)} are both given"
        yield Conflict((f"environment.{chosen[1]}",), problem, "keep one of them")
    for name in ("venv", "uv"):
        path = getattr(environment_fields, name)
        if path and not path.startswith(("/", "~")):
            problem = f'"{path}" is another place on every node'
            yield Conflict((f"environment.{name}",), problem, "write ~/path or /path")


def _environments(job: SlurmJob) -> Mapping[str, str]:
    """Return the environments that the spec gives, by the names of their fields."""
    paths = {name: getattr(job.environment, name) for name in ("conda", "venv", "uv")}
    return {name: path for name, path in paths.items() if path}


def _secrets(job: SlurmJob) -> Iterator[Conflict]:
    exports = [option for option in job.extra if option.startswith("--export=")]
    exported = exports[-1].partition("=")[2].split(",") if exports else ["ALL"]
    for name, _, value in (word.partition("=") for word in exported):
        if exposes_secret(name, value) or (
            value and name in {secret.name for secret in job.secrets}
        ):
            problem = (
                f"--export holds the value of {name}, and everybody who reads the bundle reads it"
            )
            yield Conflict(("extra",), problem, f"write secrets: [{name}], and --export=ALL")
    for i, (name, file) in enumerate(job.secrets):
        if not file and not {"ALL", name}.intersection(exported):
            problem = f"{name} does not get into the job with this --export"
            remedy = f"write {name}: file:~/PATH, the file being on the cluster with mode 600"
            yield Conflict((f"secrets[{i}]", "secrets", "extra"), problem, remedy)


def render(job: SlurmJob, plan: Plan, renderer: Renderer) -> list[Artefact]:
    """Return slurm.sbatch, and the files that are sourced on the first node and on all nodes."""
    template_values = {**values(job, plan, "slurm.activate.sh"), **_values(job, plan)}
    script = renderer.render("slurm.sbatch.j2", template_values)
    artefacts = [Artefact("slurm.sbatch", script, "sbatch {bundle}/slurm.sbatch")]
    artefacts += renderer.activation(template_values)

    def add(name: str, template: str, container_values: dict[str, Any]) -> None:
        text = renderer.render(template, {**container_values, "script": name})
        artefacts.append(Artefact(name, text, executable=False))

    if job.setup:
        add("slurm.setup.sh", "setup.sh.j2", template_values)
    lines = (*environment.activation(job), *job.python.activate)
    if job.environment.container and (lines or job.env):
        container_values = {
            **template_values,
            "activate": lines,
            "activation": "slurm.container.activate.sh",
        }
        add("slurm.container.sh", "container.sh.j2", container_values)
        artefacts += renderer.activation(container_values)
    return artefacts


def _values(job: SlurmJob, plan: Plan) -> dict[str, Any]:
    minimum, maximum = job.nodes.minimum, int(job.nodes)
    nodes = f"{minimum} to {maximum}" if minimum < maximum else f"{maximum}"
    directory = pieces(plan.checkpoint_dir)
    task = ("-", Var("SLURM_ARRAY_TASK_ID")) if job.array is not None else ()
    if job.points:
        task = ("/", Var("point"))
    # Every start after the first one runs this copy of the bundle (train/launch/slurm/directory.py).
    saved = JoinedWord((*directory, *task, "/slurm-bundle-", Var("SLURM_JOB_ID")))
    first = re.match("[0-9]+", job.indices or "")
    return {
        "directives": directives.directives(job),
        "counted": f"{nodes} node(s), {job.procs_per_node} process(es) on each",
        "version": __version__,
        "check_only": f"--array={first[0]} --time=5" if first else "--time=5",
        "requeues": job.requeues,
        "restarts": job.restarts,
        "elastic": job.nodes.elastic,
        "array": job.indices,
        "point_names": [[*job.points]],
        "relative": Var("beside") in directory,
        "saved": saved,
        "batch_python": "python3" if job.environment.container else plan.interpreter,
        "setup": job.setup,
    }
