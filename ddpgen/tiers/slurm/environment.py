"""A job for Slurm → the lines of bash that make its Python usable on the nodes, its container, words of srun. Pure.

Owns every option of srun and of a container's runtime that we write. Sources: srun(1), apptainer(1), and pyxis for
its options of srun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpgen.text.shell import JoinedWord, Var, Word, expand_home, pieces, quote
from ddpgen.tiers.slurm.fields import SlurmJob

# Options of how a step runs, not of what the job gets. srun gets them as words: the supervisor removes the variables
# into which sbatch puts them (train/launch/slurm/job.py).
_STEP_OPTIONS = frozenset([
    "acctg-freq", "cpu-freq", "distribution", "gpu-bind", "gpu-freq", "hint", "mem-bind", "network",
    "profile", "threads-per-core",
])  # fmt: skip
# The bindings of --gpu-bind that leave each task some of the node's GPUs, with their number or the mask of the first
# task.
_GPU_BIND = re.compile(
    r"--gpu-bind=(?:(?:quiet|verbose|q|v),)?(?:single:|map_gpu:|per_task:(\d+)|mask_gpu:(?:0x)?([0-9A-Fa-f]+))"
)


def modules(job: SlurmJob) -> Iterator[str]:
    """Yield lines of bash that load the modules. They run on the node, even if the job runs in a container."""
    if job.environment.modules:
        # A batch script is not a login shell, so `module` may not be defined yet.
        yield (
            '[ "$(type -t module)" ] || . /etc/profile.d/lmod.sh 2>/dev/null || '
            '. /etc/profile.d/modules.sh 2>/dev/null || . "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash"'
        )
        for name in job.environment.modules:
            yield f"module {name}" if name.startswith("use ") else f"module load {name}"


def activation(job: SlurmJob) -> Iterator[str]:
    """Yield lines of bash that activate an environment. If the job has a container, they run in it."""
    environment = job.environment
    if environment.conda:
        yield '. "$(conda info --base)/etc/profile.d/conda.sh"'
        yield f"conda activate {quote(expand_home(environment.conda))}"
    if environment.venv:
        yield f". {quote(expand_home(environment.venv))}/bin/activate"
    if environment.uv:
        # All nodes run it, one at a time, because uv locks the environment that it makes.
        yield f"uv sync --frozen --quiet --project {quote(expand_home(environment.uv))}"
        yield f". {quote(expand_home(environment.uv))}/.venv/bin/activate"


def container_command(job: SlurmJob) -> Iterator[Word]:
    """Yield the words that run a command in the container on each node. The supervisor fills in {…}."""
    container = job.environment.container
    if container is None or container.runtime == "pyxis":
        return
    yield from ("apptainer", "exec")
    if job.gpus_per_node:
        yield "--nv"
    yield from ("--bind={bundle}", "--bind={checkpoint_dir}")
    for mount in container.mounts:
        yield JoinedWord(("--bind=", *pieces(expand_home(mount))))
    yield "--pwd={bundle}"
    yield from container.options
    yield expand_home(container.image)


def bound_gpus(option: str) -> int | None:
    """Return the number of GPUs to which an option of srun binds the one task of a node; None if to all."""
    binding = _GPU_BIND.match(option)
    if binding is None:
        return None
    number, mask = binding.groups()
    return int(mask, 16).bit_count() if mask else int(number or 1)


def step_options(job: SlurmJob) -> Iterator[Word]:
    """Yield options of srun: those of the spec for a step, and the container's, because pyxis is a plugin of srun."""
    yield from (option for option in job.extra if option[2:].partition("=")[0] in _STEP_OPTIONS)
    container = job.environment.container
    if container is None or container.runtime != "pyxis":
        return
    yield JoinedWord(("--container-image=", *pieces(expand_home(container.image))))
    mounts: list[str | Var] = [
        "--container-mounts={bundle}:{bundle},{checkpoint_dir}:{checkpoint_dir}"
    ]
    for mount in container.mounts:
        mounts += [",", *pieces(expand_home(mount))]
    yield JoinedWord(tuple(mounts))
    yield "--container-workdir={bundle}"
    yield from container.options
