"""A job for Slurm → the #SBATCH directives of its batch script, and its times. Pure.

Owns every option of sbatch that we write, with the reason for those that are not obvious. Source: sbatch(1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddpgen.tiers.slurm.fields import DIRECTIVES, SlurmJob

# Slurm checks the time limits every half minute, so its signal may come up to a minute early.
SLACK_S = 60.0
_WARNING_S = 300.0
LONGEST_WARNING_S = 65535.0  # --signal takes no more
_MIB = {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}
# Options that this tier writes → what to write for them. `extra` may not repeat one, because sbatch silently takes the
# last value.
WRITTEN_OPTIONS: Mapping[str, str] = {
    **{option: f"write {name}:" for option, name in DIRECTIVES.items()},
    "chdir": "leave it out: the job runs in its bundle",
    "container": "write environment: {container: IMAGE}",
    "cpus-per-gpu": "write cpus_per_proc:",
    "cpus-per-task": "write cpus_per_proc:",
    "error": "leave it out, so that ddpgen logs shows all; --output=/PATH/%x-%j.log moves the log",
    "exclusive": "write exclusive: true",
    "help": "leave it out: sbatch would submit nothing",
    "gpus-per-node": "write gpus_per_node:",
    "gpus-per-task": "write gpus_per_node: and gpu_request: gpus-per-task",
    "input": "leave it out: the job reads no input",
    "job-name": "write name:",
    "mail-type": "write mail_on:",
    "mail-user": "write mail_to:",
    "mem": "write mem:",
    "no-requeue": "write requeues: 0",
    "nodes": "write nodes:",
    "ntasks": "write nodes: and procs_per_node:",
    "tasks": "write nodes: and procs_per_node:",
    "ntasks-per-gpu": "write procs_per_node:",
    "ntasks-per-node": "write procs_per_node:",
    "tasks-per-node": "write procs_per_node:",
    "open-mode": "leave it out: every start appends to the log",
    "parsable": "leave it out",
    "quiet": "leave it out: ddpgen launch reads the id of the job",
    "requeue": "write requeues:",
    "signal": "write warning:",
    "test-only": "leave it out, and run sbatch --test-only",
    "time": "write time:",
    "usage": "leave it out: sbatch would submit nothing",
    "version": "leave it out: sbatch would submit nothing",
    "wait": "leave it out, and run sbatch --wait: ddpgen launch would wait for the end",
    "wrap": "leave it out: the job is a script",
}


class Gres(NamedTuple):
    """One item of --gres, such as gpu:a100:8."""

    text: str
    name: str
    kind: str
    number: int


def gres(job: SlurmJob) -> list[Gres]:
    """Return the items of --gres in `extra`."""
    return [item for value in option_values(job, "gres") for item in gres_items(value)]


def gres_items(value: str) -> list[Gres]:
    """Return the items of a value of --gres."""
    items = []
    for text in value.split(","):
        name, *rest = re.sub(r"^gres[:/]", "", text).split(":")
        number = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
        items.append(Gres(text, name, ":".join(rest), number))
    return items


def output(job: SlurmJob) -> str | None:
    """Return the pattern of the log in `extra`; None without one."""
    return next(iter(option_values(job, "output")), None)


def option_values(job: SlurmJob, option: str) -> list[str]:
    """Return the values of an option in `extra`."""
    words = [word.partition("=") for word in job.extra]
    return [value for name, _, value in words if name == f"--{option}"]


def cpus_per_task(job: SlurmJob) -> int:
    """Return the CPUs of one task, which is a node's torchrun with all its processes."""
    cpus = job.cpus_per_proc or job.train.threads + job.train.data_workers
    return cpus * job.procs_per_node


def warning_s(job: SlurmJob) -> float:
    """Return the seconds before the time limit at which Slurm signals the job."""
    if job.warning is not None:
        warning = job.warning
    elif job.step_time is not None or job.write_time is not None:
        warning = (job.step_time or 0.0) + (job.write_time or 0.0) + SLACK_S
    else:
        warning = _WARNING_S if job.time is None else min(_WARNING_S, job.time / 3)
    return min(float(math.ceil(warning)), LONGEST_WARNING_S)


def memory_mib(mem: str) -> float:
    """Return the MiB of a size. A number without a unit is in MiB."""
    size = mem.upper().rstrip("B")
    return float(size.rstrip("KMGT")) * _MIB.get(size[-1], 1)


def clock(seconds: float) -> str:
    """Return D-HH:MM:SS, a form of a time that sbatch cannot misread."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def directives(job: SlurmJob) -> Iterator[str]:
    """Yield the options of sbatch, in the order in which people look for them."""
    yield f"--job-name={job.name}"
    yield from _size(job)
    for option, name in DIRECTIVES.items():
        value = getattr(job, name)
        if value is not None:
            yield f"--{option}={value}"
    if job.points:
        yield f"--array={job.indices}"
    if job.exclusive:
        yield "--exclusive"
    if job.mail_to:
        yield f"--mail-user={','.join(job.mail_to)}"
        yield f"--mail-type={','.join(job.mail_on)}"
    # Every start appends to the log. The path is relative to the directory of the submission, because that exists.
    if output(job) is None:
        yield f"--output=%x-{'%A_%a' if job.indices else '%j'}.log"
    yield "--open-mode=append"
    yield "--requeue"
    # B: sends the signal only to the batch script. The signal would kill a training process that does not expect it.
    yield f"--signal=B:USR1@{int(warning_s(job))}"
    yield from (option for option in job.extra if not option.startswith("--gres="))


def _size(job: SlurmJob) -> Iterator[str]:
    maximum = int(job.nodes)
    yield f"--nodes={job.nodes.minimum}-{maximum}" if job.nodes.elastic else f"--nodes={maximum}"
    # One task a node: torchrun, which starts the node's processes. With a range of nodes this option makes
    # Slurm allocate the smallest number, always (22.05); srun gets the option in any case.
    if not job.nodes.elastic:
        yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={cpus_per_task(job)}"
    resources = gres(job)
    items = [item.text for item in resources]
    if job.gpus_per_node and job.gpu_request != "none" and "gpu" not in {r.name for r in resources}:
        kind = f"{job.gpu_type}:" if job.gpu_type else ""
        if job.gpu_request == "gres":  # a second --gres would replace the first
            items.insert(0, f"gpu:{kind}{job.gpus_per_node}")
        else:
            # Slurm 23.11 refuses GPUs of each task without the number of tasks.
            if job.gpu_request == "gpus-per-task":
                yield f"--ntasks={maximum}"
            yield f"--{job.gpu_request}={kind}{job.gpus_per_node}"
    if items:
        yield f"--gres={','.join(items)}"
    if job.mem is not None:
        yield f"--mem={job.mem}"
    if job.time is not None:
        yield f"--time={clock(job.time)}"
