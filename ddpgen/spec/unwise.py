"""Values that a job may have, but that a user hardly means. Each gives a warning. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from ddpgen.errors import Finding
from ddpgen.spec import bashlines
from ddpgen.spec.fields import show
from ddpgen.spec.job import Checkpoint, JobSpec, Train
from ddpgen.spec.rules import WORKLOADS, Conflict
from ddpgen.spec.secrets import exposes_secret

_DAY_S = 86400.0
# Memory of a process. Python with torch does not start in less.
_LEAST_MIB = 256
_LARGEST_BUCKET_MB = 1e6

# Directories of each node. The node empties them, at a boot or file by file after some days.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run/user")
# Variable → its effect, and the remedy. A name that ends in _ stands for all variables that begin with it.
_VARIABLES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(bashlines.HIDING, bashlines.HIDES_GPUS),
    "OMP_NUM_THREADS": ("takes the place of train.threads", "write train: {threads: N}"),
    "PYTHONSAFEPATH": ("is taken away: it hides the bundle's own train/", "leave it out"),
    "SBATCH_": ("is for sbatch, which has run before the job", "use the field for it"),
    "SLURM_": ("is set by Slurm, which may read it as an order", "use the field for it"),
    "TORCHELASTIC_": ("is set by torchrun for each process", "leave it out"),
}
_NCCL_NUMBERS = "IB_DISABLE P2P_DISABLE SHM_DISABLE IB_TIMEOUT IB_RETRY_CNT NSOCKS_PERTHREAD SOCKET_NTHREADS BUFFSIZE MIN_NCHANNELS MAX_NCHANNELS IB_GID_INDEX"
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# A setting of the allocator of torch 2.4 to 2.14.
_SETTING = (
    r"\s*(max_split_size_mb\s*:\s*(2[1-9]|[3-9][0-9]|[0-9]{3,})|garbage_collection_threshold\s*:\s*0?\.[0-9]+|backend\s*:\s*\w+"
    r"|(expandable_segments|release_lock_on_cudamalloc|pinned_use_(background_threads|cuda_host_register))\s*:\s*(True|False)"
    r"|(max_non_split_rounding_mb|pinned_(num_register_threads|reserve_segment_size_mb))\s*:\s*[0-9]+|roundup_power2_divisions\s*:\s*(\[[^]]*\]|[0-9]+)"
    r"|(per_process_memory_fraction|graph_capture_record_stream_reuse)\s*:\s*[\w.]+)\s*"
)
# Variable → the values that have an effect, the fate of another one, and an example.
_TAKEN: Mapping[str, tuple[re.Pattern[str], str, str]] = {
    **dict.fromkeys((f"NCCL_{name}" for name in _NCCL_NUMBERS.split()),
                    (re.compile(r"\s*-?(0x[0-9a-fA-F]+|[0-9]+)"), "is no number, which NCCL takes for 0", "1")),
    **dict.fromkeys(_ALLOCATORS, (re.compile(f"{_SETTING}(,{_SETTING})*,?"),
                                  "has a setting that torch refuses at its first use of a GPU", "expandable_segments:True")),
    "CUDA_LAUNCH_BLOCKING": (re.compile("0"), "has the host wait for each kernel, which is for debugging", "0"),
    "TORCH_CPP_LOG_LEVEL": (re.compile("INFO|WARNING|ERROR|FATAL|[0-3]", re.IGNORECASE), "is no level of torch's", "INFO"),
    "CUDA_DEVICE_ORDER": (re.compile("FASTEST_FIRST|PCI_BUS_ID"), "is no order of CUDA's", "PCI_BUS_ID"),
    "MKL_NUM_THREADS": (re.compile("[0-9]+"), "is no number, so MKL leaves it out", "8"),
    "NCCL_DEBUG": (re.compile("VERSION|WARN|INFO|ABORT|TRACE|NONE", re.IGNORECASE), "is no level of NCCL's", "INFO"),
    **dict.fromkeys(("PATH", "PYTHONPATH"), (re.compile("[^;]*"), "has a ; in it, which separates no directories here", "/a:/b")),
}  # fmt: skip
# A variable that a line of bash sets.
_GIVEN = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=[\"']?([^\s\"';&$`]+)")
# Interfaces of containers, which lead to no other machine.
_OF_CONTAINERS = re.compile(r"docker\d+|veth.*|cni\d+")
_COMMAND = re.compile(r"\$\([^)]+\)|`[^`]+`")
# A metric that is better when smaller, or when greater. A prefix like val_ may stand before it.
_METRIC = re.compile(r"(?:(?:train|val|valid|eval|test)[_/])?(?:(?P<min>loss|perplexity|ppl|bits_per_byte|error|wer|cer|mse|rmse|mae)|(?P<max>accuracy|acc|auc|auroc|f1|bleu|iou|miou|psnr|ssim))")  # fmt: skip
# The options that a sweep gives a place of its own for each point.
_SAVES_TO = re.compile(r"^--?(out(put)?|save)([_-]?(dir|path|to))?(?=[=\s]|$)", re.MULTILINE)
# Words of a program that name a place of its own. A path in the working directory and a seed do not count.
_OWN_PLACE = re.compile(
    r"\{checkpoint_dir\}|^--?(run|exp)|^--?(out|save[_-](dir|path|to))[\w.-]*([=\n][/~${]|.*://)"
    r"|^(?!--?([\w-]*[_-])?seed=).*(?<!seed\n)\{array_index\}",
    re.MULTILINE,
)


def conflicts(job: JobSpec, locate: Callable[[Conflict], Finding]) -> Iterable[Conflict]:
    """Return the warnings that a job of any tier may get. `locate` finds the place of a warning in the layers of the spec."""
    return chain(
        environment(job.env, "env", max((machine.gpus for machine in job.machines), default=0)),
        _name(job),
        _rendezvous(job),
        _backend(job),
        _proportions(job),
        _tokens(job),
        _evaluations(job),
        _too_late(job, locate),
        bashlines.conflicts(job),
        _shared(job),
        _workdir(job),
        _unfilled(job),
        # Other layers than the spec are for several jobs.
        (each for each in _unused(job) if not locate(each).position.file),
    )


def environment(env: Mapping[str, str], field: str, gpus: int) -> Iterator[Conflict]:
    """Yield a warning for each variable that another program sets, or that harms the job.

    `field`: of the spec. `gpus`: the most that one machine uses.
    """
    for name, value in env.items():
        if name == "PATH" and bashlines.OTHER_PATH.fullmatch(value):
            remedy = f"write a line of python.activate: export PATH={value}:$PATH"
            yield _warning(f"{field}.PATH", bashlines.LOSES_PROGRAMS, remedy)
        if value and name in _TAKEN:
            taken, fate, example = _TAKEN[name]
            if not taken.fullmatch(value):
                problem = f"{show(value)} {fate}"
                yield _warning(f"{field}.{name}", problem, f"write one like {example}")
        for known, (effect, remedy) in _VARIABLES.items():
            if known in bashlines.HIDING and bashlines.shown(value) >= gpus:
                continue
            if name == known or (known.endswith("_") and name.startswith(known)):
                yield _warning(f"{field}.{name}", effect, remedy)


def temporary(
    job: JobSpec, advice: str, others: Mapping[str, str | None] | None = None
) -> Iterator[Conflict]:
    """Yield a warning for each directory that no other node sees, and that the node empties.

    `others`: paths of the tier that all nodes need, by their fields.
    """
    workdir = None if _saves_elsewhere(job) else job.train.workdir
    places = {"checkpoint.dir": job.checkpoint.path, "train.workdir": workdir}
    interpreter = {"python.interpreter": job.python.interpreter}
    for field, place in {**places, **interpreter, **(others or {})}.items():
        path = posixpath.normpath(place or "x")
        if path.startswith(tuple(f"{each}/" for each in _TEMPORARY)) or path in _TEMPORARY:
            problem = f"{place} lies in a directory of each node's own, which is emptied"
            yield _warning(field, problem, advice)


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
    if re.fullmatch(r"mlx\d+_\d+(:\d+)?", job.nic or ""):
        problem = f"{job.nic} is a device of InfiniBand, and no network interface"
        yield _warning("nic", problem, "write the interface on it, like ib0, or leave nic out")
    if job.nodes > 1 and _OF_CONTAINERS.fullmatch(job.nic or ""):
        problem = f"{job.nic} is for the containers of one machine, and leads to no other"
        yield _warning("nic", problem, "write the interface of the network, like eth0")
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


def _backend(job: JobSpec) -> Iterator[Conflict]:
    trains = job.train.program_field == "workload" and job.world_size > 1
    if job.backend == "gloo" and job.on_gpus and trains:
        problem = "gloo adds up the gradients of the GPUs in the memory of their hosts"
        yield _warning("backend", problem, "leave it out: auto takes nccl, which is faster")


def _proportions(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if train.optimizer == "sgd" and train.momentum >= 1:
        problem = f"{train.momentum:g} adds up all gradients for ever, and the loss diverges"
        yield _warning("train.momentum", problem, "write a number below 1, like 0.9")
    if train.lr > 10:
        problem = f"{train.lr:g} moves each weight by more than its own size at every step"
        yield _warning("train.lr", problem, "write a smaller one, like 1e-3")
    if train.bucket_cap_mb > _LARGEST_BUCKET_MB:
        problem = f"{train.bucket_cap_mb:g} MB are more than the gradients of any model, so that nothing overlaps"
        yield _warning("train.bucket_cap_mb", problem, "write a smaller one, like 25")
    if train.weight_decay > 10:
        problem = f"{train.weight_decay:g} pulls every weight to zero"
        yield _warning("train.weight_decay", problem, "write a smaller one, like 0.1")


def _evaluations(job: JobSpec) -> Iterator[Conflict]:
    train, best, stop = job.train, job.train.best, job.train.early_stop
    better = best and best.mode and _METRIC.fullmatch(best.metric)
    if best and better and better.lastgroup != best.mode:
        most = {"max": "greatest", "min": "least"}[best.mode or ""]
        problem = f"chooses the {most} {best.metric}, which is the worst evaluation"
        yield _warning("train.best.mode", problem, f"write mode: {better.lastgroup}")
    if best and train.steps and train.eval_every >= train.steps:
        problem = f"comes once in {train.steps} steps, so there is nothing to choose from"
        yield _warning("train.eval_every", problem, "write a smaller number")
    accuracy = best and best.metric == "accuracy" and train.workload in WORKLOADS
    if accuracy and stop and stop.min_delta >= 1:
        problem = f"{stop.min_delta:g} is more than accuracy can grow, because it ends at 1"
        yield _warning("train.early_stop.min_delta", problem, "write a part of 1, like 0.001")


def _too_late(job: JobSpec, locate: Callable[[Conflict], Finding]) -> Iterator[Conflict]:
    """Yield what comes after the last step. An overlay or an option may have fewer steps, for a short try."""
    train, stop = job.train, job.train.early_stop
    given = locate(_warning("train.steps", "", ""))
    if not train.steps or given.position.file or given.path.startswith("targets."):
        return
    if (job.checkpoint.every.steps or 0) > train.steps:
        problem = f"comes after the last of {train.steps} steps, so only the end is saved"
        yield _warning("checkpoint.every", problem, "write a smaller number")
    if train.log_every > max(train.steps, Train.log_every):
        problem = f"comes after the last of {train.steps} steps, so nothing is logged"
        yield _warning("train.log_every", problem, "write a smaller number")
    if train.eval_every > train.steps and not train.best:
        problem = f"comes after the last of {train.steps} steps, so only the end is evaluated"
        yield _warning(
            "train.eval_every", problem, "write a smaller number, or 0 for the end alone"
        )
    if stop and train.steps > train.eval_every >= train.steps / stop.patience:
        problem = f"{stop.patience} evaluations after the first do not fit into {train.steps} steps"
        yield _warning("train.early_stop.patience", problem, "write a smaller number")


def _tokens(job: JobSpec) -> Iterator[Conflict]:
    args = job.train.args
    lists = bashlines.lists_of(job)
    texts: list[tuple[tuple[str, ...], str]] = []
    if isinstance(args, Mapping):
        texts += [((f"train.args.{name}",), str(value)) for name, value in args.items()]
    else:
        lists["train.args"] = args
    for field, lines in lists.items():
        texts += [((f"{field}[{i}]", field), str(line)) for i, line in enumerate(lines)]
    for fields, text in texts:
        given = [] if fields[0].startswith("train.") else _GIVEN.findall(text)
        if exposes_secret("", text) or any(exposes_secret(*each) for each in given):
            problem = "looks like a secret, and everybody who reads the bundle reads it"
            remedy = "write its name into secrets, and read the variable of this name"
            yield Conflict(fields, problem, remedy, fatal=False)


def _shared(job: JobSpec) -> Iterator[Conflict]:
    """Yield the patterns of a script's checkpoints that other jobs may write as well."""
    own = tuple(f"{path.rstrip('/')}/" for path in (job.checkpoint_path, job.train.workdir) if path)
    for pattern in job.train.resume.exists:
        if pattern.startswith(("/", "~")) and not pattern.startswith(own):
            problem = f"{show(pattern)} may be another job's, and this job would go on from it"
            remedy = "write a path in the working directory, or {checkpoint_dir}/NAME, if the script can save there"
            yield _warning("train.resume.exists", problem, remedy)


def _workdir(job: JobSpec) -> Iterator[Conflict]:
    """Yield a working directory that several trainings share, unless they save elsewhere."""
    workdir, array = job.train.workdir or "", getattr(job, "indices", None) and not job.points
    tasks = "tasks of the array" if array else "points of the sweep"
    shared = workdir and (array or job.points) and job.persists(workdir)
    if shared and "{array_index}" not in workdir and not _saves_elsewhere(job):
        problem = f"{workdir} is one directory for all {tasks}, which take each other's checkpoints"
        remedy = "leave it out, so that each has its own, or save to {checkpoint_dir}"
        yield _warning("train.workdir", problem, remedy)


def _saves_elsewhere(job: JobSpec) -> bool:
    """True if the words of a script or command name a place of their own."""
    train = job.train
    args = train.args.items() if isinstance(train.args, Mapping) else (("", a) for a in train.args)
    words = [f"--{name}={value}" if name else str(value) for name, value in args]
    swept = "\n".join(word for point in job.points.values() for word in point.args)
    return bool(_SAVES_TO.search(swept)) or bool(
        _OWN_PLACE.search("\n".join([*words, *train.command, *train.resume.exists]))
    )


def _unfilled(job: JobSpec) -> Iterator[Conflict]:
    """Yield the paths with a command in them, whose output only a shell would fill in."""
    for field, path in {
        "checkpoint.dir": job.checkpoint.dir,
        "train.workdir": job.train.workdir,
        "python.interpreter": job.python.interpreter,
        "dir": getattr(job, "dir", None),
    }.items():
        if command := _COMMAND.search(path or ""):
            problem = f"is taken as it is written: {show(command[0])} is not filled in"
            yield _warning(field, problem, "write the path itself")


def _unused(job: JobSpec) -> Iterator[Conflict]:
    """Yield the settings that have no effect on this job."""
    if job.preflight.ignore and not job.preflight.enabled:
        yield no_effect("preflight.ignore", "with enabled: false")
    if job.train.program_field != "workload":
        for name in ("every", "keep"):
            if getattr(job.checkpoint, name) != getattr(Checkpoint, name):
                reason = "on a script or command, which saves by itself"
                yield no_effect(f"checkpoint.{name}", reason)


def _warning(field: str, problem: str, remedy: str) -> Conflict:
    return Conflict((field,), problem, remedy, fatal=False)
