"""Values that a job may have, but that a user hardly means. Each gives a warning. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ddpgen.errors import Finding
from ddpgen.spec.fields import show
from ddpgen.spec.job import Checkpoint, JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.spec.secrets import exposes_secret

_DAY_S = 86400.0
_LEAST_MIB = 256  # of memory for each process, below which Python with torch does not start
# Directories that each node has for itself, and that it empties: at a boot, or file by file after some days.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_HIDE_GPUS = "hides GPUs from every process, and the job counts on those of gpus_per_node"
# Variable → its effect, and the remedy. A name that ends in _ stands for all variables that begin with it.
_VARIABLES: Mapping[str, tuple[str, str]] = {
    "CUDA_VISIBLE_DEVICES": (_HIDE_GPUS, "leave it out, and write gpus_per_node"),
    "HIP_VISIBLE_DEVICES": (_HIDE_GPUS, "leave it out, and write gpus_per_node"),
    "ROCR_VISIBLE_DEVICES": (_HIDE_GPUS, "leave it out, and write gpus_per_node"),
    "OMP_NUM_THREADS": ("takes the place of train.threads", "write train: {threads: N}"),
    "PYTHONSAFEPATH": ("is taken away: it hides the bundle's own train/", "leave it out"),
    "SLURM_": ("is set by Slurm, which may read it as an order", "use the field for it"),
    "TORCHELASTIC_": ("is set by torchrun for each process", "leave it out"),
}

# A line of bash with an effect that ends with its shell.
_OF_THE_SHELL = re.compile(
    r"\s*((export|ulimit|cd)\s[^;|&]*|(\.|source)\s+\S*activate|(conda|mamba|micromamba) activate\s[^;|&]*|#.*)?\s*"
)


def conflicts(job: JobSpec, locate: Callable[[Conflict], Finding]) -> Iterable[Conflict]:
    """Return the warnings that a job of any tier may get. `locate` finds the place of a warning in the layers of the spec."""
    return chain(
        environment(job.env, "env"),
        _name(job),
        _rendezvous(job),
        _proportions(job),
        _tokens(job),
        _setup(job),
        _shared(job),
        # Other layers than the spec are for several jobs.
        (each for each in _unused(job) if not locate(each).position.file),
    )


def environment(env: Mapping[str, str], field: str) -> Iterator[Conflict]:
    """Yield a warning for each variable that another program sets, or that harms the job. `field`: of the spec."""
    for name in env:
        for known, (effect, remedy) in _VARIABLES.items():
            if name == known or (known.endswith("_") and name.startswith(known)):
                yield _warning(f"{field}.{name}", effect, remedy)


def temporary(job: JobSpec, advice: str) -> Iterator[Conflict]:
    """Yield a warning if the checkpoints lie in a directory that no other node sees, and that the node empties."""
    path = posixpath.normpath(job.checkpoint.path or "x")
    if path.startswith(tuple(f"{place}/" for place in _TEMPORARY)) or path in _TEMPORARY:
        problem = f"{job.checkpoint.path} is a directory of each node's own, and is emptied"
        yield _warning("checkpoint.dir", problem, advice)


def memory(field: str, size: str, mib: float, procs: int, example: str) -> Iterator[Conflict]:
    """Yield a warning if no training starts in this memory of a node. 0 is all that a node has."""
    if 0 < mib < _LEAST_MIB * procs:
        problem = f"{size} is {mib / procs:g} MiB for each process, in which no training starts"
        yield _warning(field, problem, f"write a size with its unit, like {example}")


def no_effect(field: str, reason: str) -> Conflict:
    """Return the warning that a field has no effect."""
    return _warning(field, f"has no effect {reason}", "leave it out")


def _name(job: JobSpec) -> Iterator[Conflict]:
    if job.name in ("checkpoints", "logs"):
        problem = f"the bundle build/{job.name} would lie where jobs keep their {job.name}"
        yield _warning("name", problem, "call the job something else")


def _rendezvous(job: JobSpec) -> Iterator[Conflict]:
    port = job.rendezvous.port
    if port < 1024:
        problem = f"{port} is a port of the system: below 1024 only root may listen"
        yield _warning("rendezvous.port", problem, "write one from 1024, like 29500")
    elif port == 65535:
        problem = "65535 is the last port: where it is taken, there is none to go on to"
        yield _warning("rendezvous.port", problem, "write a lower one, like 29500")
    for name, least in (("timeout", 5.0), ("collective_timeout", 5.0)):
        value = getattr(job.rendezvous, name)
        if value < least:
            problem = f"{value:g} s are over before a busy host has answered"
            yield _warning(f"rendezvous.{name}", problem, "write a longer time, like 2min")
        elif value > _DAY_S:
            problem = f"{value / _DAY_S:g} days pass before a lost host is noticed"
            yield _warning(f"rendezvous.{name}", problem, "write a shorter time, like 10min")
    if job.train.stop.grace > 3600:
        problem = f"{job.train.stop.grace / 3600:g} hours are longer than any scheduler waits"
        yield _warning("train.stop.grace", problem, "write a shorter time, like 2min")


def _proportions(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if train.optimizer == "sgd" and train.momentum >= 1:
        problem = f"{train.momentum:g} adds up all gradients for ever, and the loss diverges"
        yield _warning("train.momentum", problem, "write a number below 1, like 0.9")
    if train.lr > 10:
        problem = f"{train.lr:g} moves each weight by more than its own size at every step"
        yield _warning("train.lr", problem, "write a smaller one, like 1e-3")
    if train.weight_decay > 10:
        problem = f"{train.weight_decay:g} pulls every weight to zero"
        yield _warning("train.weight_decay", problem, "write a smaller one, like 0.1")


def _tokens(job: JobSpec) -> Iterator[Conflict]:
    args = job.train.args
    lists = {"python.activate": job.python.activate, "setup": getattr(job, "setup", ())}
    texts: list[tuple[tuple[str, ...], str]] = []
    if isinstance(args, Mapping):
        texts += [((f"train.args.{name}",), str(value)) for name, value in args.items()]
    else:
        lists["train.args"] = args
    for field, lines in lists.items():
        texts += [((f"{field}[{i}]", field), str(line)) for i, line in enumerate(lines)]
    for fields, text in texts:
        if exposes_secret("", text):
            problem = "looks like a secret, and everybody who reads the bundle reads it"
            remedy = "write its name into secrets, and read the variable of this name"
            yield Conflict(fields, problem, remedy, fatal=False)


def _setup(job: JobSpec) -> Iterator[Conflict]:
    """Yield the lines of setup that neither the training nor a later line of setup notices."""
    setup: Sequence[str] = getattr(job, "setup", ())
    noticed = False
    for i, text in reversed([*enumerate(setup)]):
        fields = (f"setup[{i}]", "setup")
        noticed = noticed or not all(map(_OF_THE_SHELL.fullmatch, text.splitlines()))
        if text.lstrip().startswith("#SBATCH"):
            remedy = "write the field for it, or extra"
            yield Conflict(
                fields, "is a comment, because sbatch does not read setup", remedy, False
            )
        elif not noticed and not text.lstrip().startswith("#"):
            problem = "ends with setup, whose shell the training does not share"
            remedy = "write it in python.activate, or a variable in env"
            yield Conflict(fields, problem, remedy, False)


def _shared(job: JobSpec) -> Iterator[Conflict]:
    """Yield the patterns of a script's checkpoints that other jobs may write as well."""
    own = tuple(f"{path.rstrip('/')}/" for path in (job.checkpoint_path, job.train.workdir) if path)
    for pattern in job.train.resume.exists:
        if pattern.startswith(("/", "~")) and not pattern.startswith(own):
            problem = f"{show(pattern)} may be another job's, and this job would go on from it"
            remedy = "write a path in the working directory, or {checkpoint_dir}/NAME, if the script can save there"
            yield _warning("train.resume.exists", problem, remedy)


def _unused(job: JobSpec) -> Iterator[Conflict]:
    """Yield the settings of checkpoints that only a workload has."""
    if job.train.program_field != "workload":
        for name in ("every", "keep"):
            if getattr(job.checkpoint, name) != getattr(Checkpoint, name):
                reason = "on a script or command, which saves by itself"
                yield no_effect(f"checkpoint.{name}", reason)


def _warning(field: str, problem: str, remedy: str) -> Conflict:
    return Conflict((field,), problem, remedy, fatal=False)
