"""The GPUs that the processes of a training script take, and the group that they form, compared with the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ddpgen.lint import source
from ddpgen.lint.arguments import option_values
from ddpgen.lint.calls import Script, name_of, warning
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# A source with one of these may give each process another GPU.
_OTHER_GPU = re.compile(
    rb"VISIBLE_DEVICES|environ(?!\[[\"']|\.get\([\"'])|exec\(|subprocess|importlib|__import__|multiprocessing"
)
_ENVIRONMENT = re.compile(rb"environ|getenv|exec\(")
# A source with one of these may make the group of processes.
_MAKES_GROUP = re.compile(
    rb"init_process_group|is_initialized|init_device_mesh|DeviceMesh|init_rpc|exec\(|importlib|__import__|getattr|spawn"
)
# Functions with which a script chooses a device.
_CHOOSES = ("device", "set_device", "set_default_device", "to", "cuda")
_LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'
_MOST_NAMES = 5  # each the value of the one before


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script's devices and of its group. `home`: the spec's directory."""
    if source.is_closed(job, home, _MAKES_GROUP, "torchvision", "tqdm"):
        yield from _no_group(script)
    if not job.on_gpus:
        return
    if job.procs_per_node > 1 and source.is_closed(job, home, _OTHER_GPU, "torchvision", "tqdm"):
        knows_no_rank = source.is_closed(job, home, _ENVIRONMENT, "torchvision", "tqdm")
        yield from _one_gpu(job, script, knows_no_rank)
    if job.nodes > 1 and all(machine.gpus < job.world_size for machine in job.machines):
        yield from _gpu_of_another_node(job, script)


def _no_group(script: Script) -> Iterator[Conflict]:
    """Yield the call that needs the group of all processes, if nothing makes it."""
    wraps = {
        alias.asname or alias.name
        for node in script.nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "DistributedDataParallel"
    }
    for call in script.calls if "backward" in script.called else ():
        wraps_model = name_of(call.func) in {*wraps, "DistributedDataParallel"}
        if wraps_model and call not in script.at_times:
            problem = f"{script.location(call)} needs the group of processes, and {script.name} makes none"
            remedy = "call torch.distributed.init_process_group() before it"
            yield warning("train.script", problem, remedy)
            return


def _one_gpu(job: JobSpec, script: Script, knows_no_rank: bool) -> Iterator[Conflict]:
    """Yield the place at which all processes of a node take the first GPU, if the script takes no other."""
    given = option_values(job.train)
    known = "local_rank" not in given and "local_rank" not in script.changed
    default = script.defaults.get("local_rank") if known else None
    first, others = [], False
    functions = [node for node in script.nodes if isinstance(node, ast.FunctionDef)]
    # The devices of these are chosen where the source calls torch.
    own = {f.name for f in functions} | {n.arg for n in script.nodes if isinstance(n, ast.arg)}
    for call in script.calls:
        for value in _devices(call, script):
            if default and isinstance(value, ast.Attribute) and value.attr == "local_rank":
                value = default
            others = others or not _is_harmless(value, own)
            if isinstance(value, ast.Constant) and str(value.value) in ("0", "cuda:0"):
                first.append(call)
    for call in first:
        sure = name_of(call.func) == "set_device" and knows_no_rank
        if (sure or not others) and call not in script.on_condition:
            problem = (
                f"{script.location(call)}: all {job.procs_per_node} processes of a node take GPU 0"
            )
            yield warning("train.script", problem, f"write {_LOCAL_RANK} there")
            return


def _is_harmless(value: ast.expr, own: set[str]) -> bool:
    """True for a constant, the call of torch.device(), whose words are looked at apart, and a type of torch.

    `own`: the functions of the script, and their parameters.
    """
    match value:
        case ast.Name("device") | ast.Call(ast.Name()):
            return name_of(getattr(value, "func", value)) in own | {"device"}
        case ast.Constant(number):
            return str(number) in ("0", "cuda:0", "cuda", "cpu", "True", "False")
        case ast.Call(ast.Attribute(ast.Name("torch"), "device") | ast.Name("device")):
            return True
        case ast.Attribute(ast.Name("torch")):
            return True
    return False


def _gpu_of_another_node(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the call that takes the GPU with the number of the global rank, which only the first node has."""
    for node in script.nodes:
        match node:
            case ast.Assign([ast.Name("local_rank")], value) if _is_global_rank(value):
                problem = f"{script.location(value)}: local_rank is {ast.unparse(value)}, the rank among all nodes"
                yield warning("train.script", problem, f"write {_LOCAL_RANK} there")
                return
    for call in sorted(script.calls, key=lambda call: call.lineno):
        for value in _devices(call, script) if call not in script.on_condition else ():
            if isinstance(value, ast.JoinedStr):
                parts = [
                    part.value for part in value.values if isinstance(part, ast.FormattedValue)
                ]
                value = _followed(parts[0], script) if len(parts) == 1 else value
            if _is_global_rank(value):
                problem = f"{script.location(call)} takes GPU {ast.unparse(value)}, and only the first of {job.nodes} nodes has it"
                yield warning("train.script", problem, f"write {_LOCAL_RANK} there")
                return


def _devices(call: ast.Call, script: Script) -> Iterator[ast.expr]:
    """Yield the words with which a call chooses a device, as far as the source shows them."""
    if name_of(call.func) in _CHOOSES:
        named = (keyword.value for keyword in call.keywords if keyword.arg in ("device", "index"))
        for value in (*call.args, *named):
            yield from _branches(value, script)


def _branches(value: ast.expr, script: Script) -> Iterator[ast.expr]:
    value = _followed(value, script)
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body, script)
        yield from _branches(value.orelse, script)
    else:
        yield value


def _followed(value: ast.expr, script: Script) -> ast.expr:
    """Return the value of a name, also if that is another name."""
    for _ in range(_MOST_NAMES):
        before, value = value, script.value_of(value)
        if value is before:
            break
    return value


def _is_global_rank(value: ast.expr) -> bool:
    """True for dist.get_rank() and int(os.environ["RANK"])."""
    match value:
        case ast.Call(ast.Attribute(attr="get_rank"), [], []):
            return True
        case ast.Call(
            ast.Name("int"), [ast.Subscript(ast.Attribute(attr="environ"), ast.Constant("RANK"))]
        ):
            return True
    return False
