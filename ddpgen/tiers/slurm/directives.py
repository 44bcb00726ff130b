"""A job for Slurm → the #SBATCH directives of its batch script, and its times. Pure.

Owns every option of sbatch that we write, with the reason for those that are not obvious. Source: sbatch(1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddpgen.tiers.slurm.fields import DIRECTIVES, SlurmJob

# Slurm checks the time limits every half minute, so its signal may come up to a minute early.
_SLACK_S = 60.0
_WARNING_S = 300.0
LONGEST_WARNING_S = 65535.0  # --signal takes no more
_MIB = {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}
# Options that this tier writes. `extra` may not repeat one, because sbatch silently takes the last value.
WRITTEN_OPTIONS = frozenset([
    *DIRECTIVES, "chdir", "cpus-per-task", "error", "exclusive", "gpus-per-node", "gpus-per-task", "gres", "input",
    "job-name", "mail-type", "mail-user", "mem", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output",
    "parsable", "requeue", "signal", "test-only", "time", "wrap",
])  # fmt: skip


def cpus_per_task(job: SlurmJob) -> int:
    """Return the CPUs of one task, which is a node's torchrun with all its processes."""
    cpus = job.cpus_per_proc or job.train.threads + job.train.data_workers
    return cpus * job.procs_per_node


def warning_s(job: SlurmJob) -> float:
    """Return the seconds before the time limit at which Slurm signals the job."""
    if job.warning is not None:
        warning = job.warning
    elif job.step_time is not None or job.write_time is not None:
        warning = (job.step_time or 0.0) + (job.write_time or 0.0) + _SLACK_S
    else:
        warning = _WARNING_S if job.time is None else min(_WARNING_S, job.time / 3)
    return min(float(math.ceil(warning)), LONGEST_WARNING_S)


def memory_mib(mem: str) -> float:
    """Return the MiB of a size. A number without a unit is in MiB."""
    return float(mem.rstrip("KMGTkmgt")) * _MIB.get(mem[-1].upper(), 1)


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
    # Every start appends to it. The path is relative to the directory of the submission, because that exists.
    yield f"--output=%x-{'%A_%a' if job.indices else '%j'}.log"
    yield "--open-mode=append"
    yield "--requeue"
    # B: sends the signal to the batch script alone. It would kill a training process that does not expect it.
    yield f"--signal=B:USR1@{int(warning_s(job))}"
    yield from job.extra


def _size(job: SlurmJob) -> Iterator[str]:
    maximum = int(job.nodes)
    yield f"--nodes={job.nodes.minimum}-{maximum}" if job.nodes.elastic else f"--nodes={maximum}"
    # One task a node: torchrun, which starts the node's processes. With a range of nodes this option makes
    # Slurm allocate the smallest number, always (22.05); srun gets the option in any case.
    if not job.nodes.elastic:
        yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={cpus_per_task(job)}"
    if job.gpus_per_node and job.gpu_request != "none":
        kind = f"{job.gpu_type}:" if job.gpu_type else ""
        form = f"gpu:{kind}" if job.gpu_request == "gres" else kind
        yield f"--{job.gpu_request}={form}{job.gpus_per_node}"
    if job.mem is not None:
        yield f"--mem={job.mem}"
    if job.time is not None:
        yield f"--time={clock(job.time)}"
