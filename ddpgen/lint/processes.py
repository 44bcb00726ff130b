"""The processes and nodes that a training script counts on, compared with those of the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ddpgen.lint import source
from ddpgen.lint.arguments import option_values
from ddpgen.lint.calls import PLAIN_MODULES, Script, constant, imported, name_of, warning
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# A source with one of these may divide the work, or know which process it is.
_DIVIDES = re.compile(
    rb"distributed|DataParallel|RANK|WORLD_SIZE|DDPGEN|SLURM|environ(?!\[[\"']|\.get\([\"'])|exec\(|subprocess|importlib|__import__|multiprocessing|socket"
)
_THIS_MACHINE = re.compile(r"(tcp://)?(localhost|127\.0\.0\.1)(:\d+)?")
_TRAINERS = ("Trainer", "Fabric")
# Functions that start processes, and their option for the number.
_STARTS = {"spawn": "nprocs", "notebook_launcher": "num_processes"}
_SPAWNING = ("ddp_spawn", "ddp_fork", "ddp_notebook")  # strategies of Lightning
# Names of what trains on several processes.
_PARALLEL = re.compile(
    r"Distributed|DDP|FSDP|fully_shard|deepspeed|horovod|hvd|accelerat|[Ff]abric"
)
# The number of a task of Slurm → names that a script reads where it is also started in another way.
_OF_TASKS = {
    "SLURM_PROCID": {"RANK", "OMPI_COMM_WORLD_RANK"},
    "SLURM_LOCALID": {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
}
# Arguments of init_process_group(), with their positions.
_OF_GROUP = {"backend": 0, "timeout": 2}
_BACKENDS = ["gloo", "nccl", "mpi", "ucc", "xccl"]
_OTHER_BACKEND = re.compile(r"\w*ccl\w*|fake|threaded|undefined|xla|smddp|openreg")
_NAMES = ("id", "attr", "name", "asname", "module")  # the fields of a syntax tree that hold names
_VARIABLES = frozenset([
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID",
])  # fmt: skip


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script on several processes or nodes. `home`: the spec's directory."""
    yield from _of_group(script)
    if job.procs_per_node > 1:
        yield from _spawns(script)
    trains = job.world_size > 1 and "backward" in script.called
    if trains and source.is_closed(job, home, _DIVIDES):
        problem = f"{script.name} uses no torch.distributed, so each of {job.world_size} processes trains alone"
        remedy = "wrap the model in DistributedDataParallel, or let the job have one process"
        yield warning("train.script", problem, remedy)
    yield from _counts_itself(job, script)
    if job.nodes > 1:
        yield from _meets_alone(job, script)


def _of_group(script: Script) -> Iterator[Conflict]:
    """Yield the constant arguments of init_process_group() that torch refuses."""
    own = {node.name for node in script.nodes if isinstance(node, ast.FunctionDef)}
    modules, tries = imported(script.tree), (n for n in script.nodes if isinstance(n, ast.Try))
    caught = script.below(n for n in tries if n.handlers)
    # Other modules may bring a backend.
    closed = modules <= PLAIN_MODULES and "register_backend" not in script.called
    for call in script.calls:
        is_group = name_of(call.func) == "init_process_group" and "init_process_group" not in own
        if not is_group or "torch" not in modules or call in caught:
            continue
        given: dict[str | None, ast.expr] = {
            keyword.arg: keyword.value for keyword in call.keywords
        }
        given |= {name: call.args[i] for name, i in _OF_GROUP.items() if i < len(call.args)}
        place, backend, timeout = script.location(call), given.get("backend"), given.get("timeout")
        if timeout and _is_number(script.value_of(timeout)):
            seconds = ast.unparse(timeout)
            problem = f"{place}: the timeout {seconds} is a number, and torch wants a timedelta"
            yield warning("train.script", problem, f"write timedelta(seconds={seconds})")
        words = [*_words(backend, script)] if backend and closed else []
        for word in words:
            if word not in _BACKENDS and not _OTHER_BACKEND.fullmatch(word):
                problem = f"{place}: torch has no backend {word}"
                yield warning("train.script", problem, did_you_mean(word, _BACKENDS))


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(int() | float()):
            return True
        case ast.BinOp(left, _, right):
            return _is_number(left) and _is_number(right)
    return False


def _words(backend: ast.expr, script: Script) -> Iterator[str]:
    """Yield the names in a constant backend, such as cpu:gloo,cuda:nccl, or in each one that a condition chooses."""
    value = script.value_of(backend)
    if isinstance(value, ast.IfExp):
        yield from (*_words(value.body, script), *_words(value.orelse, script))
    for part in filter(None, constant(value).lower().split(",")):
        yield part.rpartition(":")[2]


def _spawns(script: Script) -> Iterator[Conflict]:
    """Yield the call that starts several processes, unless the script knows of processes that a launcher starts."""
    if any(constant(n) in _VARIABLES for n in script.nodes if isinstance(n, ast.Constant)):
        return
    for call in script.calls:
        option = _STARTS.get(name_of(call.func))
        if option is None:
            continue
        value: ast.expr | None = next((k.value for k in call.keywords if k.arg == option), None)
        if isinstance(value, ast.Name):
            value = script.assigned.get(value.id)
        number = value.value if isinstance(value, ast.Constant) else 0
        waits = all(k.arg != "join" for k in call.keywords) and call not in script.at_times
        if isinstance(number, int) and number > 1 and waits:
            problem = f"{script.location(call)} starts {number} processes, and so does each process of the job"
            remedy = "call the function itself, or write procs_per_node: 1"
            yield warning("train.script", problem, remedy)
            return


def _counts_itself(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the settings with which each process would start others, wait for others or take all GPUs."""
    names = (getattr(n, part, "") for n in script.nodes for part in _NAMES)
    alone = not _PARALLEL.search(" ".join(map(str, names)))
    one_group = [name_of(call.func) for call in script.calls].count("init_process_group") == 1
    yield from _counts_on_slurm(job, script)
    for call in script.calls:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        name, location = name_of(call.func), script.location(call)
        size, strategy = keywords.get("world_size"), constant(keywords.get("strategy"))
        if call in script.at_times:
            continue
        if name == "init_process_group" and one_group:
            if problem := _group_fault(job, size, keywords.get("rank")):
                remedy = "leave init_method, world_size and rank out: torchrun sets them"
                yield warning("train.script", f"{location} {problem}", remedy)
        elif name in _TRAINERS and strategy in _SPAWNING and job.procs_per_node > 1:
            problem = (
                f"{location}: {strategy} starts processes of its own in each process of the job"
            )
            yield warning("train.script", problem, 'write strategy="ddp"')
        elif name == "DataParallel" and job.world_size > 1 and job.on_gpus and alone:
            problem = f"{location}: each of {job.world_size} processes trains alone on all GPUs of its machine"
            yield warning("train.script", problem, "write DistributedDataParallel there")


def _counts_on_slurm(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the number of a task of Slurm in place of a rank, and a number of processes that the job does not have."""
    words = {constant(n) for n in script.nodes if isinstance(n, ast.Constant)}
    for name, others in _OF_TASKS.items():
        if name in words and job.procs_per_node > 1 and not words & others:
            problem = (
                f"{script.name} reads {name}, and all processes of a node are in one task of Slurm"
            )
            yield warning("train.script", problem, "read RANK there, and LOCAL_RANK and WORLD_SIZE")
            break
    if option_values(job.train).get("launcher") == "slurm" and job.procs_per_node > 1:
        problem = "launcher slurm counts tasks of Slurm, and all processes of a node are in one"
        yield warning("train.args", problem, "write pytorch")
    for node in script.nodes:
        match node:
            case ast.Assert(ast.Compare(ast.Call(function), [ast.Eq()], [ast.Constant(int(size))])) if (
                name_of(function) == "get_world_size" and size != job.world_size and not job.nodes.elastic
            ):  # fmt: skip
                problem = f"{script.name}:{node.lineno} wants {size} processes, and the job has {job.world_size}"
                yield warning("train.script", problem, "make them equal")


def _group_fault(job: JobSpec, size: ast.expr | None, rank: ast.expr | None) -> str:
    """Return why a group of this size, and with this rank, is never complete; "" if it may be."""
    if isinstance(size, ast.Constant) and not job.nodes.elastic and size.value != job.world_size:
        return f"waits for {ast.unparse(size)} processes, and the job has {job.world_size}"
    if isinstance(rank, ast.Constant) and isinstance(rank.value, int) and job.world_size > 1:
        return f"gives all {job.world_size} processes the rank {rank.value}"
    return ""


def _meets_alone(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the address of the own machine, at which the processes of other nodes would wait."""
    places: list[ast.expr] = []
    for node in script.nodes:
        match node:
            case ast.Assign([ast.Subscript(value=of, slice=ast.Constant("MASTER_ADDR"))], value):
                places += (
                    [value] if name_of(of) == "environ" and node not in script.at_times else []
                )
    groups = [call for call in script.calls if name_of(call.func) == "init_process_group"]
    if len(groups) != 1:
        return
    places += [k.value for k in groups[0].keywords if k.arg == "init_method"]
    for value in places:
        if _THIS_MACHINE.fullmatch(constant(value)):
            problem = f"{script.location(value)}: {constant(value)} is another place on each of {job.nodes} nodes"
            remedy = "leave it out: torchrun sets MASTER_ADDR, and init_process_group() reads it"
            yield warning("train.script", problem, remedy)
            return
