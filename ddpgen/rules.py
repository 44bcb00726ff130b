"""What fields of a spec may not say together. Each rule reads like the sentence it enforces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import chain
from typing import NamedTuple

from ddpgen.fields import show
from ddpgen.spec import JobSpec, Train

# A field of an overlay replaces its rival of the job: `steps` there takes the place of `epochs`.
RIVALS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("train", "steps"): ("train", "epochs"),
    ("train", "epochs"): ("train", "steps"),
    ("train", "workload"): ("train", "script"),
    ("train", "script"): ("train", "workload"),
}
_SCRIPT_MAY_SET = ("script", "args", "threads")
_BUILT_IN = ("gpt", "mnist", "toy")

# Variables that bash or torchrun own; a value given for them would be lost or break the script.
_BASH_OWNS = frozenset(
    [
        "_",
        "BASHOPTS",
        "BASHPID",
        "BASH_ARGC",
        "BASH_ARGV",
        "BASH_COMMAND",
        "BASH_LINENO",
        "BASH_SOURCE",
        "BASH_SUBSHELL",
        "BASH_VERSINFO",
        "COMP_WORDBREAKS",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "IFS",
        "LINENO",
        "OLDPWD",
        "OPTARG",
        "OPTIND",
        "PIPESTATUS",
        "PPID",
        "PS4",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "UID",
    ]
)
_TORCHRUN_OWNS = frozenset(
    [
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "WORLD_SIZE",
    ]
)
# Names the launch scripts use for themselves. A test compares them with the templates.
SCRIPT_OWNS = frozenset(
    [
        "activate",
        "again",
        "at",
        "attempt",
        "beside",
        "bundle",
        "checkpoint_dir",
        "launching",
        "link",
        "nic",
        "options",
        "python",
        "script",
        "stop_requests",
        "torchrun",
        "torchrun_rc",
        "verdict",
        "verdict_attempt",
        "verdict_reason",
        "verdict_step",
    ]
)
OWNED_NAMES = _BASH_OWNS | _TORCHRUN_OWNS | SCRIPT_OWNS

LARGEST_WORD = 1 << 17  # bytes; Linux starts no program with a longer argument or variable


class Conflict(NamedTuple):
    """Fields that disagree; the first one is where the user is pointed to."""

    about: tuple[str, ...]
    what: str
    remedy: str
    fatal: bool = True


def conflicts(job: JobSpec) -> Iterable[Conflict]:
    """Everything that is wrong between the fields of `job`."""
    return chain(_what_runs(job), _batches(job), _devices(job), _numerics(job), _places(job))


def _what_runs(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if train.workload and train.script:
        what = "workload and script are both given"
        yield Conflict(("train.script", "train.workload"), what, "keep one of them")
        return
    if not train.workload and not train.script:
        what = "nothing to train: workload and script are both missing"
        yield Conflict(("train", "train.workload", "train.script"), what, "write workload: gpt")
    if train.script:
        yield from _script(job)
        return
    if train.workload and ":" not in train.workload and train.workload not in _BUILT_IN:
        what = f"there is no built-in workload {train.workload}"
        remedy = f"write one of {', '.join(_BUILT_IN)}, or FILE.py:FUNCTION for your own"
        yield Conflict(("train.workload",), what, remedy)
    if train.steps and train.epochs:
        what = "steps and epochs are both given"
        yield Conflict(("train.epochs", "train.steps"), what, "keep one of them")
    if not train.steps and not train.epochs:
        what = "says neither steps nor epochs, so it would never end"
        yield Conflict(("train", "train.steps", "train.epochs"), what, "write steps: 1000")
    for name in ("global_batch_size", "micro_batch_size"):
        if getattr(train, name) is None:
            yield Conflict(("train", f"train.{name}"), f"{name} is missing", f"write {name}: 32")


def _script(job: JobSpec) -> Iterator[Conflict]:
    for declared in fields(Train):
        path = f"train.{declared.name}"
        value = getattr(job.train, declared.name)
        if (
            declared.name not in (*_SCRIPT_MAY_SET, "workload", "args")
            and value != declared.default
        ):
            what = "has no effect on a script, which has its own loop"
            yield Conflict((path,), what, f"move it to train.args as {declared.name}")


def _batches(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if not train.global_batch_size or not train.micro_batch_size:
        return
    batch = ("train.global_batch_size", "train.micro_batch_size")
    if train.global_batch_size % train.micro_batch_size:
        sizes = f"{train.global_batch_size} is not a multiple of {train.micro_batch_size}"
        below = train.global_batch_size - train.global_batch_size % train.micro_batch_size
        nearest = below or train.micro_batch_size
        remedy = f"write global_batch_size: {nearest} or a micro_batch_size that divides it"
        yield Conflict(batch, f"{sizes} (micro_batch_size)", remedy)
    elif job.world_size > job.micro_batches:
        what = (
            f"{job.world_size} processes share {job.micro_batches} micro-batches a step, so "
            f"{job.world_size - job.micro_batches} would have nothing to do"
        )
        remedy = f"start at most {job.micro_batches} processes, or make micro_batch_size smaller"
        yield Conflict(("procs_per_node", "nodes", *batch), what, remedy)
    elif job.micro_batches % job.world_size:
        most = -(-job.micro_batches // job.world_size)
        what = (
            f"{job.micro_batches} micro-batches do not divide evenly among {job.world_size} "
            f"processes: some do {most}, the others wait for them"
        )
        remedy = "the result is the same; for speed let the process count divide them"
        if train.reduction == "tree":
            yield Conflict(("procs_per_node", "nodes", *batch), what, remedy, fatal=False)
        else:
            remedy = "use reduction: tree, or a process count that divides them"
            yield Conflict(("procs_per_node", "nodes", "train.reduction", *batch), what, remedy)
    if train.steps and train.warmup_steps >= train.steps:
        what = f"{train.warmup_steps} steps of warm-up leave nothing of {train.steps} steps"
        remedy = f"write a number below {train.steps}"
        yield Conflict(("train.warmup_steps", "train.steps"), what, remedy)


def _devices(job: JobSpec) -> Iterator[Conflict]:
    gpus = job.gpus_per_node or 0
    if job.backend == "nccl" and not gpus:
        what = "nccl talks between GPUs, and the job asks for none"
        remedy = f"write gpus_per_node: {job.procs_per_node}, or backend: gloo"
        yield Conflict(("backend", "gpus_per_node"), what, remedy)
    if gpus and job.procs_per_node > gpus:
        what = f"{job.procs_per_node} processes on {gpus} GPUs; each needs one of its own"
        remedy = f"write procs_per_node: {gpus}"
        yield Conflict(("procs_per_node", "gpus_per_node"), what, remedy)
    elif gpus > job.procs_per_node:
        what = f"{gpus - job.procs_per_node} of {gpus} GPUs on each node stay idle"
        remedy = f"write procs_per_node: {gpus}, one process per GPU"
        yield Conflict(("gpus_per_node", "procs_per_node"), what, remedy, fatal=False)


def _numerics(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    on_cpu = not job.gpus_per_node
    if train.precision == "fp16" and on_cpu:
        what = "fp16 needs a GPU, and the job asks for none"
        remedy = f"write precision: bf16 or fp32, or gpus_per_node: {job.procs_per_node}"
        yield Conflict(("train.precision", "gpus_per_node"), what, remedy)
    if train.comm_hook != "none" and train.reduction == "tree":
        what = f"comm_hook {train.comm_hook} would replace the fixed-order tree"
        remedy = "write reduction: allreduce, or comm_hook: none"
        yield Conflict(("train.comm_hook", "train.reduction"), what, remedy)
    if train.comm_hook in ("bf16", "powersgd") and (job.backend == "gloo" or on_cpu):
        what = f"comm_hook {train.comm_hook} needs nccl, and the job runs on gloo"
        remedy = "write comm_hook: none (on gloo compression only costs time)"
        yield Conflict(("train.comm_hook", "backend", "gpus_per_node"), what, remedy)
    if train.momentum != Train.momentum and train.optimizer != "sgd":
        what = f"momentum has no effect on {train.optimizer}"
        yield Conflict(
            ("train.momentum", "train.optimizer"),
            what,
            "write optimizer: sgd, or leave it out",
            False,
        )


def _places(job: JobSpec) -> Iterator[Conflict]:
    for name in job.env:
        path = f"env.{name}"
        if name in OWNED_NAMES or name.startswith(("DDPGEN_", "PET_")):
            what = "is set by bash, torchrun or the launch script; the job would not see this value"
            yield Conflict((path,), what, "take another name")
        if len(f"{name}={job.env[name]}".encode()) >= LARGEST_WORD:
            what = "has more than 128 KiB, which no program can be passed"
            yield Conflict((path,), what, "put it in a file of code, and the file's name here")
    directory = job.checkpoint.dir or ""
    if directory.startswith("~") and not (directory + "/").startswith("~/"):
        what = f"{show(directory)} is the home of another user, which only a login shell finds"
        yield Conflict(("checkpoint.dir",), what, "write ~/path or /path")
    if any("DDPGEN_ACTIVATE" in line for line in job.python.activate):
        what = "holds DDPGEN_ACTIVATE, the word that ends these lines in the script"
        yield Conflict(("python.activate",), what, "take another word")
    interpreter = job.python.interpreter
    if "/" in interpreter and not interpreter.startswith(("/", "~/")):
        what = f'"{interpreter}" is another place on every host'
        remedy = "write a name on the PATH, ~/path or /path"
        yield Conflict(("python.interpreter",), what, remedy)
    wanted = job.train.script or (job.train.workload if ":" in (job.train.workload or "") else None)
    if wanted and not job.code:
        field = "train.script" if job.train.script else "train.workload"
        what = f"{wanted.rpartition(':')[0] or wanted} is a file of yours, but code is not given"
        yield Conflict((field, "code"), what, "write code: with the directory that holds it")
