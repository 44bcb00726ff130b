"""What a job's fields mean to Slurm: the directives of its batch script, its times, its environment.

Owns every option of sbatch and srun that is written down, with the reason beside what is not obvious.
Sources: sbatch(1), srun(1). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddpgen.shell import Joined, Var, Word, at_home, pieces, quote
from ddpgen.tiers.slurm.fields import DIRECTIVES, SlurmJob

# Slurm looks at the clock every half minute, and may be a minute early or late with a signal.
_SLACK_S = 60.0
_WARNING_S = 300.0
# What this tier says itself: a second time, sbatch would take the last one without a word.
OWNED = frozenset([
    *DIRECTIVES, "chdir", "cpus-per-task", "error", "exclusive", "gpus-per-node", "gpus-per-task", "gres", "input",
    "job-name", "mail-type", "mail-user", "mem", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output",
    "parsable", "requeue", "signal", "test-only", "time", "wrap",
])  # fmt: skip
# Options that say how a step runs, and not what the job gets. srun does not read what sbatch leaves of them in the
# environment (train/launch/slurm/job.py).
OF_STEPS = frozenset([
    "acctg-freq", "cpu-freq", "distribution", "gpu-bind", "gpu-freq", "hint", "mem-bind", "network",
    "profile", "threads-per-core",
])  # fmt: skip


def cpus_per_task(job: SlurmJob) -> int:
    """One task is a node's torchrun with all its processes."""
    each = job.cpus_per_proc or job.train.threads + job.train.data_workers
    return each * job.procs_per_node


def warning_s(job: SlurmJob) -> float:
    """How long before the time limit Slurm signals the job."""
    if job.warning is not None:
        wanted = job.warning
    elif job.step_time is not None or job.write_time is not None:
        wanted = (job.step_time or 0.0) + (job.write_time or 0.0) + _SLACK_S
    else:
        wanted = _WARNING_S if job.time is None else min(_WARNING_S, job.time / 3)
    return min(float(math.ceil(wanted)), 65535.0)  # the most that --signal takes


def clock(seconds: float) -> str:
    """D-HH:MM:SS, as sbatch reads it without doubt."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def directives(job: SlurmJob) -> Iterator[str]:
    """The options of sbatch, in the order in which people look for them."""
    yield f"--job-name={job.name}"
    yield from _size(job)
    for option, name in DIRECTIVES.items():
        value = getattr(job, name)
        if value is not None:
            yield f"--{option}={value}"
    if job.exclusive:
        yield "--exclusive"
    if job.mail_to:
        yield f"--mail-user={job.mail_to}"
        yield f"--mail-type={','.join(job.mail_on)}"
    # Appended to at every start; relative to where it was submitted, a directory that exists.
    yield f"--output=%x-{'%A_%a' if job.array else '%j'}.log"
    yield "--open-mode=append"
    yield "--requeue"
    # To the batch script alone (B:): sent to the training itself it would kill what does not expect it.
    yield f"--signal=B:USR1@{int(warning_s(job))}"
    yield from job.extra


def _size(job: SlurmJob) -> Iterator[str]:
    most = int(job.nodes)
    yield f"--nodes={job.nodes.least}-{most}" if job.nodes.elastic else f"--nodes={most}"
    # One task a node: torchrun, which starts the node's processes. Asked for beside a range of nodes, it
    # gets the smallest number of them, always (Slurm 22.05); srun says it, too.
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


def modules(job: SlurmJob) -> Iterator[str]:
    """Lines of bash that load the modules: of the node, also where the job runs in a container."""
    if job.environment.modules:
        # A batch script is no login shell: `module` may not be defined yet.
        yield (
            '[ "$(type -t module)" ] || . /etc/profile.d/lmod.sh 2>/dev/null || '
            '. /etc/profile.d/modules.sh 2>/dev/null || . "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash"'
        )
        yield from (f"module load {module}" for module in job.environment.modules)


def activation(job: SlurmJob) -> Iterator[str]:
    """Lines of bash that activate an environment: of the container's, where there is one."""
    given = job.environment
    if given.conda:
        yield '. "$(conda info --base)/etc/profile.d/conda.sh"'
        yield f"conda activate {quote(at_home(given.conda))}"
    if given.venv:
        yield f". {quote(at_home(given.venv))}/bin/activate"
    if given.uv:
        # All nodes do it, one at a time: uv locks the environment it makes.
        yield f"uv sync --frozen --quiet --project {quote(at_home(given.uv))}"
        yield f". {quote(at_home(given.uv))}/.venv/bin/activate"


def inside(job: SlurmJob) -> Iterator[Word]:
    """The words that take a command into the container, on each node. The supervisor fills in {…}."""
    container = job.environment.container
    if container is None or container.runtime == "pyxis":
        return
    yield from ("apptainer", "exec")
    if job.gpus_per_node:
        yield "--nv"
    yield from ("--bind={bundle}", "--bind={checkpoint_dir}")
    for mount in container.mounts:
        yield Joined(("--bind=", *pieces(at_home(mount))))
    yield "--pwd={bundle}"
    yield from container.options
    yield at_home(container.image)


def on_nodes(job: SlurmJob) -> Iterator[Word]:
    """srun's own words: the spec's for a step, and the container's, as pyxis is a plugin of srun."""
    yield from (option for option in job.extra if option[2:].partition("=")[0] in OF_STEPS)
    container = job.environment.container
    if container is None or container.runtime != "pyxis":
        return
    yield Joined(("--container-image=", *pieces(at_home(container.image))))
    mounts: list[str | Var] = [
        "--container-mounts={bundle}:{bundle},{checkpoint_dir}:{checkpoint_dir}"
    ]
    for mount in container.mounts:
        mounts += [",", *pieces(at_home(mount))]
    yield Joined(tuple(mounts))
    yield "--container-workdir={bundle}"
    yield from container.options
