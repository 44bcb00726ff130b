"""The rules between fields of a spec. Each rule reads like the sentence it enforces. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import NamedTuple

from ddpgen.spec import places, secrets, ssh
from ddpgen.spec.fields import Refused, did_you_mean, show
from ddpgen.spec.job import JobSpec, Python, Train

# A job has at most one field of each set. If an overlay gives one, it replaces the field of the job.
EXCLUSIVE_FIELDS = (
    (("train", "steps"), ("train", "epochs")),
    (("train", "workload"), ("train", "script"), ("train", "command")),
)
_SCRIPT_FIELDS = ("workload", "script", "command", "args", "threads")
_SCRIPT_ONLY_FIELDS = ("args_style", "workdir", "resume", "guard", "stop")
MAX_PROCESSES = 1 << 20  # each has a row in the plan
MAX_PER_PROCESS = 4096  # threads, or processes that prepare its data
WORKLOADS = ("gpt", "mnist", "toy")
# The fields that decide how many processes a job has.
_PROCESSES = ("procs_per_node", "nodes")
# Words of a shell's command line that are no programs.
_BUILTINS = (".", "cd", "eval", "exec", "export", "for", "if", "set", "source", "ulimit", "while")
_OPERATORS = ("&", "&&", "|", "||", ">", ">>", "2>&1", "<", ";")

# Variables that bash or torchrun set. A value from the spec would be lost, or break the script.
_SET_BY_BASH = frozenset([
    "_", "BASHOPTS", "BASHPID", "BASH_ARGC", "BASH_ARGV", "BASH_COMMAND", "BASH_LINENO",
    "BASH_SOURCE", "BASH_SUBSHELL", "BASH_VERSINFO", "COMP_WORDBREAKS", "DIRSTACK",
    "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "IFS", "LINENO",
    "OLDPWD", "OPTARG", "OPTIND", "PIPESTATUS", "PPID", "PS4", "PWD", "RANDOM", "SECONDS",
    "SHELLOPTS", "SHLVL", "SRANDOM", "UID",
])  # fmt: skip
TORCHRUN_VARIABLES = frozenset([
    "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE",
])  # fmt: skip
# The supervisor sets these from `nic`. The preflight checks the interface of `nic`.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# A shell would fill these in: a variable, the output of a command, and ~ at the beginning of a path.
_UNFILLED = re.compile(
    r"(?<!\$)\$([A-Za-z_]\w*|\{[^}]*\}|\([^)]*\))|(?:^|(?<=:))~[\w.-]*(?=/)", re.ASCII
)
# Python libraries read these with expanduser().
_EXPANDED = re.compile(r"(HF|TORCH|TRANSFORMERS|XDG)_\w*(HOME|CACHE|DIR)")
_PORTABLE_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")


def _is_hash_seed(value: str) -> bool:
    return value in ("", "random") or (
        re.fullmatch("0*[0-9]{1,10}", value, re.ASCII) is not None and int(value) < 1 << 32
    )


def _is_encoding(value: str) -> bool:
    encoding = value.partition(":")[0]
    try:
        return not encoding or "".encode(encoding) is not None
    except (LookupError, ValueError):
        return False


# Variable → the program that ends at its start with any other value, the test of a value, and examples.
_VALUES: Mapping[str, tuple[str, Callable[[str], object], Sequence[str]]] = {
    "TORCH_DISTRIBUTED_DEBUG": ("torch", re.compile("OFF|INFO|DETAIL", re.IGNORECASE).fullmatch, ("OFF", "INFO", "DETAIL")),
    "PYTHONHASHSEED": ("Python", _is_hash_seed, ("random", "0")),
    "PYTHONIOENCODING": ("Python", _is_encoding, ("utf-8", "latin-1")),
    "PYTHONHOME": ("Python", re.compile("(/.*)?", re.DOTALL).fullmatch, ("/usr",)),
    "PYTHONUTF8": ("Python", re.compile("[01]?").fullmatch, ("0", "1")),
    "PYTHONTRACEMALLOC": ("Python", re.compile("0*([0-9]{0,4}|[1-6][0-9]{4})").fullmatch, ("1",)),
    "PYTHONINTMAXSTRDIGITS": ("Python", re.compile("0*([1-9][0-9]{3,9}|[7-9][0-9]{2}|6[4-9][0-9])?").fullmatch, ("0", "4300")),
    "PYTHONMALLOC": ("Python", re.compile("(default|(malloc|pymalloc|mimalloc)(_debug)?|debug)?").fullmatch, ("malloc", "pymalloc", "debug")),
}  # fmt: skip
RESERVED_VARIABLES = _SET_BY_BASH | TORCHRUN_VARIABLES
# A secret of these names would replace the host's own value, or a scheduler, torchrun or ddpgen would replace it.
_NO_SECRETS = RESERVED_VARIABLES | {
    "HOME", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER", "PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD",
}  # fmt: skip
# The login to a registry of images is a user's own.
_NO_SECRETS_PREFIXES = re.compile(
    "(DDPGEN|PET|SKYPILOT(?!_DOCKER_(USERNAME|PASSWORD|SERVER)$)|SLURM|TORCHELASTIC)_"
)


class Conflict(NamedTuple):
    """Fields that contradict each other. The finding points at the first of them that is in the file."""

    fields: tuple[str, ...]
    problem: str
    remedy: str
    fatal: bool = True


def conflicts(job: JobSpec) -> Iterable[Conflict]:
    """Return every conflict between the fields of `job`."""
    return chain(
        _program(job),
        _batches(job),
        _machines(job),
        _devices(job),
        _numerics(job),
        _evaluations(job.train),
        _paths(job),
    )


def _program(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    programs = [name for name in ("workload", "script", "command") if getattr(train, name)]
    if len(programs) > 1:
        problem = f"{programs[0]} and {programs[1]} are both given"
        yield Conflict(
            (f"train.{programs[1]}", f"train.{programs[0]}"), problem, "keep one of them"
        )
        return
    if not programs:
        problem = "nothing to train: there is no workload, script or command"
        places = ("train.command", "train.workload", "train.script", "train")
        remedy = "write workload: gpt, with steps, global_batch_size and micro_batch_size"
        yield Conflict(places, problem, remedy)
        return
    if train.command:
        yield from _command(train)
    if train.script or train.command:
        yield from _script(job)
        return
    yield from _script_only(train)
    if train.workload and ":" not in train.workload and train.workload not in WORKLOADS:
        problem = f"there is no built-in workload {train.workload}"
        remedy = f"write one of {', '.join(WORKLOADS)}, or FILE.py:FUNCTION for your own"
        yield Conflict(("train.workload",), problem, remedy)
    if train.steps and train.epochs:
        problem = "steps and epochs are both given"
        yield Conflict(("train.epochs", "train.steps"), problem, "keep one of them")
    if not train.steps and not train.epochs:
        problem = "says neither steps nor epochs, so it would never end"
        yield Conflict(("train", "train.steps", "train.epochs"), problem, "write steps: 1000")
    for name in ("global_batch_size", "micro_batch_size"):
        if getattr(train, name) is None:
            yield Conflict(("train", f"train.{name}"), f"{name} is missing", f"write {name}: 32")


def _is_default(train: Train, name: str) -> bool:
    value = getattr(train, name)
    default = type(value)() if name in ("resume", "stop") else None
    return bool(vars(value) == vars(default) if default is not None else not value)


def _script_only(train: Train) -> Iterator[Conflict]:
    """Yield a conflict for each field that only a script uses. The job has a workload."""
    for name in _SCRIPT_ONLY_FIELDS:
        if not _is_default(train, name):
            problem = "is for a script, and has no effect on a workload"
            yield Conflict((f"train.{name}",), problem, "take it out")
    if not isinstance(train.args, Mapping):
        problem = "is a list of words, and a workload takes names"
        yield Conflict(("train.args",), problem, "write a mapping, like args: {depth: 4}")


def _command(train: Train) -> Iterator[Conflict]:
    if not train.command[0]:
        problem = "names no program"
        yield Conflict(("train.command[0]", "train.command"), problem, "write one, like ./train.sh")
    yield from _shell_words(train.command)
    # A path may have spaces in it, but hardly an option.
    if re.search(r"\s" if len(train.command) == 1 else r"\s-", train.command[0]):
        remedy = 'write a list of words, like [./train.sh, --lr, "0.1"]'
        yield Conflict(("train.command",), "is one word with spaces in it", remedy)
    for name in ("args", "args_style"):
        if getattr(train, name):
            problem = "is for a script; a command has its arguments in it"
            yield Conflict((f"train.{name}",), problem, "move them to train.command")
    if train.resume.begin == "auto" and not train.resume.exists:
        problem = "what a command saves cannot be seen, and resume does not say how"
        remedy = "write resume: {exists: ckpt.pt, args: --resume=ckpt.pt}, by-itself or scratch"
        yield Conflict(("train.resume", "train.command"), problem, remedy)


def _shell_words(command: Sequence[str]) -> Iterator[Conflict]:
    """Yield a conflict for each word that only a shell understands, because no shell reads the command."""
    remedy = 'write a file, or [bash, -c, "…"] with the whole line in quotes'
    if variable := re.match(r"([A-Za-z_]\w*)=(.*)", command[0], re.DOTALL):
        problem, remedy = (
            f"{show(command[0])} is no program",
            f"write env: {{{variable[1]}: {variable[2]}}}",
        )
        yield Conflict(("train.command[0]", "train.command"), problem, remedy)
    for i, word in enumerate(command):
        if word in _OPERATORS or (i == 0 and word in _BUILTINS):
            problem = f"{show(word)} is for a shell, and no shell reads the command"
            yield Conflict((f"train.command[{i}]", "train.command"), problem, remedy, fatal=not i)


def _script(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if train.script and train.resume.begin == "by-itself":
        problem = "is for a command; a script that finds its checkpoint is seen to do so"
        yield Conflict(("train.resume.begin", "train.resume"), problem, "leave it out")
    for declared in fields(Train):
        allowed = declared.name in (*_SCRIPT_FIELDS, *_SCRIPT_ONLY_FIELDS)
        if not allowed and getattr(train, declared.name) != declared.default:
            problem = "has no effect on a script, which has its own loop"
            remedy = "leave it out; an option of the script's own goes into train.args"
            yield Conflict((f"train.{declared.name}",), problem, remedy)
    for name, value in train.args.items() if isinstance(train.args, Mapping) else ():
        unclear = [
            item
            for item in (value if isinstance(value, list) else [value])
            if item is None or item is False
        ]
        if train.args_style is None and unclear:
            written = "null" if unclear[0] is None else "false"
            problem = f"is {written}, which scripts take in different ways"
            no_prefix = "leaves it out" if unclear[0] is None else f"passes --no-{name}"
            remedy = (
                "set train.args_style: flags leaves it out, "
                f"equals passes --{name}={unclear[0]}, no-prefix {no_prefix}"
            )
            yield Conflict((f"train.args.{name}", "train.args"), problem, remedy)
    if train.resume.args and not train.resume.exists:
        problem = "says what to add, and not when"
        yield Conflict(("train.resume.args", "train.resume"), problem, 'write exists: "ckpt-*.pt"')
    if train.resume.begin != "auto" and train.resume.exists:
        problem = f"says when to resume, and so does begin: {train.resume.begin}"
        yield Conflict(("train.resume.exists", "train.resume"), problem, "keep one of them")
    if job.checkpoint.url:
        problem = "is a URL, and a script writes its checkpoints into a directory"
        remedy = "name a directory; on the tier sky, mount the bucket (bucket: s3://NAME)"
        yield Conflict(("checkpoint.dir", f"train.{train.program_field}"), problem, remedy)


def _batches(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if not train.global_batch_size or not train.micro_batch_size:
        return
    batch = ("train.global_batch_size", "train.micro_batch_size")
    if train.global_batch_size % train.micro_batch_size:
        sizes = f"{train.global_batch_size} is not a multiple of {train.micro_batch_size}"
        lower_multiple = train.global_batch_size - train.global_batch_size % train.micro_batch_size
        nearest = lower_multiple or train.micro_batch_size
        remedy = f"write global_batch_size: {nearest} or a micro_batch_size that divides it"
        yield Conflict(batch, f"{sizes} (micro_batch_size)", remedy)
    elif job.world_size > job.micro_batches:
        on = f" on {job.nodes} nodes" if job.nodes > 1 else ""
        problem = (
            f"{job.world_size} processes{on} share {job.micro_batches} micro-batches a step, so "
            f"{job.world_size - job.micro_batches} would have nothing to do"
        )
        remedy = f"start at most {job.micro_batches} processes, or make micro_batch_size smaller"
        yield Conflict((*_PROCESSES, *batch), problem, remedy)
    elif job.micro_batches % job.world_size and not job.weighted:
        largest_share = -(-job.micro_batches // job.world_size)
        problem = (
            f"{job.micro_batches} micro-batches do not divide evenly among {job.world_size} "
            f"processes: some do {largest_share}, the others wait for them"
        )
        remedy = "the result is the same; for speed let the process count divide them"
        if train.reduction == "tree":
            yield Conflict((*_PROCESSES, *batch), problem, remedy, fatal=False)
        else:
            remedy = "use reduction: tree, or a process count that divides them"
            yield Conflict((*_PROCESSES, "train.reduction", *batch), problem, remedy)
    if train.steps and train.profile and train.profile.steps.first > train.steps:
        problem = f"begins after the last of {train.steps} steps"
        remedy = f"write a range up to {train.steps}"
        yield Conflict(("train.profile.steps", "train.profile", "train.steps"), problem, remedy)
    if train.steps and train.warmup_steps >= train.steps:
        problem = f"{train.warmup_steps} steps of warm-up leave nothing of {train.steps} steps"
        remedy = f"write a number below {train.steps}"
        yield Conflict(("train.warmup_steps", "train.steps"), problem, remedy)


def _machines(job: JobSpec) -> Iterator[Conflict]:
    if job.world_size > MAX_PROCESSES:
        problem = f"{job.world_size} processes are more than ddpgen plans for"
        yield Conflict(("nodes", "procs_per_node"), problem, f"start at most {MAX_PROCESSES}")
    for name in ("threads", "data_workers"):
        if getattr(job.train, name) > MAX_PER_PROCESS:
            problem = f"{getattr(job.train, name)} for each process are more than a machine can run"
            yield Conflict((f"train.{name}",), problem, f"write {MAX_PER_PROCESS} or fewer")
    if job.nodes != 1 and job.nic in ("lo", "lo0") and job.uniform:
        problem = "loopback reaches only the machine itself"
        yield Conflict(("nic",), problem, "name the interface towards the others, or leave it out")
    if job.nodes.elastic and job.train.reduction != "tree":
        problem = "a job on a varying number of machines changes its bits with allreduce"
        yield Conflict(("nodes", "train.reduction"), problem, "write reduction: tree")


def _devices(job: JobSpec) -> Iterator[Conflict]:
    if not job.uniform:
        return
    gpus = job.gpus_per_node or 0
    if job.backend == "nccl" and not gpus:
        problem = "nccl talks between GPUs, and the job asks for none"
        remedy = f"write gpus_per_node: {job.procs_per_node}, or backend: gloo"
        yield Conflict(("backend", "gpus_per_node"), problem, remedy)
    if gpus and job.procs_per_node > gpus:
        problem = f"{job.procs_per_node} processes share {gpus} GPU{'s' * (gpus > 1)}; each needs one of its own"
        remedy = f"write procs_per_node: {gpus}"
        yield Conflict(("procs_per_node", "gpus_per_node"), problem, remedy)
    elif gpus > job.procs_per_node and not job.train.command:
        problem = f"{gpus - job.procs_per_node} of {gpus} GPUs on each node stay idle"
        remedy = f"write procs_per_node: {gpus}, one process per GPU"
        yield Conflict(("gpus_per_node", "procs_per_node"), problem, remedy, fatal=False)


def _numerics(job: JobSpec) -> Iterator[Conflict]:
    train = job.train
    if train.precision == "fp16" and not job.on_gpus:
        host_without_gpu = next((machine.name for machine in job.machines if not machine.gpus), "")
        user = f"{host_without_gpu} uses" if host_without_gpu else "the job asks for"
        problem = f"fp16 needs a GPU, and {user} none"
        remedy = f"write precision: bf16 or fp32, or gpus_per_node: {job.procs_per_node}"
        yield Conflict(("train.precision", "gpus_per_node"), problem, remedy)
    if train.comm_hook != "none" and train.reduction == "tree":
        problem = f"comm_hook {train.comm_hook} would replace the fixed-order tree"
        remedy = "write reduction: allreduce, or comm_hook: none"
        yield Conflict(("train.comm_hook", "train.reduction"), problem, remedy)
    if train.shard != "none" and train.reduction != "tree":
        problem = "the parts of the ranks fit together only if all ranks have the same gradients to the bit"
        remedy = "write reduction: tree, or leave shard out"
        yield Conflict(("train.shard", "train.reduction"), problem, remedy)
    if train.comm_hook in ("bf16", "powersgd") and (job.backend == "gloo" or not job.on_gpus):
        problem = f"comm_hook {train.comm_hook} needs nccl, and the job runs on gloo"
        remedy = "write comm_hook: none (on gloo compression only costs time)"
        yield Conflict(("train.comm_hook", "backend", "gpus_per_node"), problem, remedy)
    if train.momentum != Train.momentum and train.optimizer != "sgd":
        problem = f"momentum has no effect on {train.optimizer}"
        yield Conflict(
            ("train.momentum", "train.optimizer"),
            problem,
            "write optimizer: sgd, or leave it out",
            False,
        )


def _evaluations(train: Train) -> Iterator[Conflict]:
    best = train.best
    if train.early_stop and not best:
        problem = "does not say what is to get better"
        remedy = "write best: loss beside it, or best: {metric: accuracy, mode: max}"
        yield Conflict(("train.early_stop", "train.best"), problem, remedy)
    if best and best.metric != "loss" and best.mode is None:
        problem = f"does not say whether less {show(best.metric)} is better, or more"
        remedy = f"write best: {{metric: {best.metric}, mode: max}}, or mode: min"
        fields_of_best = ("train.best", "train.best.metric", "train.best.mode")
        yield Conflict(fields_of_best, problem, remedy)
    if best and train.workload and not train.eval_every:
        problem = "has one evaluation to choose from, at the end"
        yield Conflict(("train.best", "train.eval_every"), problem, "write eval_every: 100 steps")


def _paths(job: JobSpec) -> Iterator[Conflict]:
    yield from environment(job.env, "env", job.train)
    yield from _secrets(job)
    yield from interpreter(job.python, "python")
    train = job.train
    yield from _faults("checkpoint.dir", places.checkpoint_fault, job.checkpoint.dir)
    yield from _faults("train.workdir", places.directory_fault, train.workdir)
    if train.script and train.script.startswith(("/", "~")):
        yield from _faults("train.script", places.path_fault, train.script)
    yield from _faults("train.guard", places.guard_fault, *train.guard)
    yield from _faults("train.resume.exists", places.checkpoint_file_fault, *train.resume.exists)
    if train.user_file and not job.code:
        field = f"train.{train.program_field}"
        problem = f"{train.user_file} is a file of yours, but code is not given"
        yield Conflict((field, "code"), problem, "write code: with the directory that holds it")


def _faults(
    field: str, fault: Callable[[str], Refused | None], *texts: str | None
) -> Iterator[Conflict]:
    """Yield the fault of each text that the spec gives at `field`."""
    for text in filter(None, texts):
        if refused := fault(text):
            yield Conflict((field,), refused.problem, refused.remedy)


def environment(env: Mapping[str, str], field: str, train: Train) -> Iterator[Conflict]:
    """Check the job's environment variables, which the spec gives below `field`."""
    for name, value in env.items():
        if secrets.exposes_secret(name, value):
            problem = "looks like a secret, and everybody who reads the bundle reads it"
            remedy = f"leave it out, export it before the launch, and write secrets: [{name}]"
            yield Conflict((f"{field}.{name}",), problem, remedy, fatal=False)
        unfilled = _UNFILLED.search(value)
        if unfilled and not (unfilled[0] == "~" and _EXPANDED.fullmatch(name)):
            problem = f"is taken as it is written: {show(unfilled[0])} is not filled in"
            remedy = f"write the value itself, or a line of python.activate: export {name}=..."
            yield Conflict((f"{field}.{name}",), problem, remedy, fatal=False)
        if name in RESERVED_VARIABLES or name.startswith(("DDPGEN_", "PET_")):
            problem = (
                "is set by bash, torchrun or the launch script; the job would not see this value"
            )
            yield Conflict((f"{field}.{name}",), problem, "take another name")
        program, taken, examples = _VALUES.get(name, ("", lambda _: True, ()))
        if not taken(value):
            problem = f"{show(value)} ends {program} at its start"
            yield Conflict((f"{field}.{name}",), problem, did_you_mean(value, examples))
        if name in INTERFACE_VARIABLES:
            problem = "would go past the preflight, which checks the interface of nic alone"
            remedy = "write nic: with one exact name, like eth0, or remove nic, so that ddpgen chooses the interface"
            yield Conflict((f"{field}.{name}",), problem, remedy)
        if name in _PORTABLE_SETS and train.determinism == "portable":
            problem = "is set by determinism: portable; the job would not see this value"
            remedy = "leave it out, or write determinism: default"
            yield Conflict((f"{field}.{name}", "train.determinism"), problem, remedy)


def _secrets(job: JobSpec) -> Iterator[Conflict]:
    listed = set[str]()
    for i, (name, _) in enumerate(job.secrets):
        fields = (f"secrets[{i}]", f"secrets.{name}", "secrets")
        if name in listed:
            yield Conflict(fields, f"{name} is listed twice", "leave one of them out")
        elif name in job.env:
            yield Conflict(fields, f"{name} is in env as well", "leave one of them out")
        if name in _NO_SECRETS or _NO_SECRETS_PREFIXES.match(name):
            problem = f"{name} is set by bash, torchrun, a scheduler, the host or ddpgen"
            yield Conflict(fields, problem, "take another name")
        listed.add(name)


def ssh_options(words: Sequence[str]) -> Iterator[Conflict]:
    """Check the words for every ssh command of a tier."""
    for i, fault in ssh.options_faults(words):
        fields = (f"ssh_options[{i}]", "ssh_options")
        yield Conflict(fields, fault.problem, fault.remedy)


def interpreter(python: Python, field: str) -> Iterator[Conflict]:
    """Check the Python of the hosts, which the spec gives at `field`."""
    yield from _faults(f"{field}.interpreter", places.program_fault, python.interpreter)
