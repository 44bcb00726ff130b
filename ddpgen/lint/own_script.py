"""The GPUs and devices of a training script, compared with the spec; and its outline for a first spec."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ddpgen.lint import saves
from ddpgen.lint.arguments import given_words, option_values, reads_settings_file
from ddpgen.lint.calls import Script, constant, name_of, text_of, warning
from ddpgen.lint.parser import Option, Options, options_of
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.text.yamltext import scalar

# Words that ask for a GPU → the words for a machine without GPUs.
_CPU_WORDS = {"cuda": "cpu", "nccl": "gloo"}
_ASK_TORCH = "let the script ask torch.cuda.is_available()"
# The names of options that make a script go on from a checkpoint.
_RESUME_OPTION = re.compile(r"resume|continue|init[-_]from|load[-_]c", re.IGNORECASE)
# Those that give no other weights to begin with.
_GOES_ON = re.compile(r"(auto[-_]?)?(resume|continue)", re.IGNORECASE)
_TRAINERS = ("Trainer", "Fabric")
_ALL_PROCESSES = re.compile("(?<!LOCAL_)WORLD_SIZE|get_world_size")
# Functions whose "cuda" takes no GPU.
_NO_REQUEST = frozenset([
    "startswith", "endswith", "get", "option", "DEFINE_string", "DEFINE_enum", "field", "GradScaler", "autocast", "print",
])  # fmt: skip
# A call, its setting and the values that need a GPU; and those with which it uses none.
_WITH_GPU: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Trainer", "accelerator"): ("gpu", "cuda"),
    ("Fabric", "accelerator"): ("gpu", "cuda"),
    ("Trainer", "precision"): ("16-mixed", "16-true", "16"),
    ("Fabric", "precision"): ("16-mixed", "16-true", "16"),
    ("TrainingArguments", "fp16"): ("True",),
    ("Accelerator", "mixed_precision"): ("fp16",),
}
_WITHOUT_GPU: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Trainer", "accelerator"): ("cpu",),
    ("Fabric", "accelerator"): ("cpu",),
    ("TrainingArguments", "use_cpu"): ("True",),
    ("TrainingArguments", "no_cuda"): ("True",),
    ("Accelerator", "cpu"): ("True",),
}


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script. `home`: the spec's directory."""
    yield from _gpus(job, script)
    yield from _settings(job, script)
    yield from _devices(job, script)
    yield from saves.check(job, script, home)
    yield from _resume_option(job, script)


def _gpus(job: JobSpec, script: Script) -> Iterator[Conflict]:
    if any(machine.gpus for machine in job.machines):
        return
    values = option_values(job.train)
    request = next(_gpu_requests(script, values), None) or next(_moves(script, values), None)
    if request:
        node, value, remedy = request
        problem = f"{script.location(node)} asks for {value}, and the job has no GPUs"
        remedy = f"write gpus_per_node: {job.procs_per_node}, or {remedy}"
        yield warning("train.script", problem, remedy)


def _settings(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the constant settings of a trainer that need GPUs in a job without, and the other way round."""
    has_gpus = any(machine.gpus for machine in job.machines)
    problem, remedy = "the job has no GPUs", f"write gpus_per_node: {job.procs_per_node}"
    if has_gpus:
        problem, remedy = "the job's GPUs stay idle", "leave out gpus_per_node"
    given = option_values(job.train)
    for (name, setting), words in (_WITHOUT_GPU if has_gpus else _WITH_GPU).items():
        calls = [call for call in script.calls if name_of(call.func) == name]
        values = [k.value for call in calls for k in call.keywords if k.arg == setting]
        shown = [v for v in values if _setting(v, script, given) in words]
        if calls and len(calls) == len(shown) and script.at_times.isdisjoint(calls):
            location = f"{script.location(shown[0])}: {setting}={ast.unparse(shown[0])}"
            if not isinstance(shown[0], ast.Constant):
                location += f" is {_setting(shown[0], script, given)}"
            yield warning(
                "train.script", f"{location}, and {problem}", f"leave it out, or {remedy}"
            )


def _setting(value: ast.expr, script: Script, given: Mapping[str, str]) -> str:
    """Return a constant as text, or the value that the job gives the option that is read here; else ""."""
    match value:
        case ast.Constant():
            return text_of(value)
        case ast.Attribute(ast.Name() as parsed, name) if name not in script.changed:
            source = script.value_of(parsed)
            if isinstance(source, ast.Call) and name_of(source.func) == "parse_args":
                return given.get(name, "")
    return ""


def _gpu_requests(script: Script, values: Mapping[str, str]) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield each expression that asks for a GPU, its word, and the remedy. `values`: those of the job's arguments."""
    for name, value in script.settings.items():
        word = values.get(name, constant(value))
        if (
            word in _CPU_WORDS
            and not _may_use_cpu(script, name)
            and not reads_settings_file(values)
        ):
            yield value, word, f"set train.args.{name}: {_CPU_WORDS[word]}"
    names_gloo = any(constant(n) == "gloo" for n in script.nodes if isinstance(n, ast.Constant))
    asks_torch = "is_available" in script.called or "cpu" in values.values()
    for call in script.calls:
        function, option = name_of(call.func), ""
        if function in _NO_REQUEST or call in script.at_times:
            continue
        if asks_torch and (function != "init_process_group" or names_gloo):
            continue
        if function == "cuda" and isinstance(call.func, ast.Attribute):
            yield call, "cuda", _ASK_TORCH
        if function == "add_argument" and call.args:
            option = constant(call.args[-1]).lstrip("-").replace("-", "_")
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            word = constant(value)
            if word in _CPU_WORDS and values.get(option, word).partition(":")[0] in _CPU_WORDS:
                yield value, word, _ASK_TORCH


def _moves(script: Script, values: Mapping[str, str]) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield each call that moves something to a device that is a GPU under no condition, as `_gpu_requests` does."""
    conditions = (n for n in script.nodes if isinstance(n, ast.If))
    asked = [
        each
        for each in conditions
        for n in ast.walk(each.test)
        if isinstance(n, ast.expr) and "is_available" in ast.unparse(script.value_of(n))
    ]
    leaves = any(isinstance(n, (ast.Return, ast.Raise)) for each in asked for n in ast.walk(each))
    if leaves or "exit" in script.called or "cpu" in values.values():
        return
    for call in script.calls:
        match call:
            case ast.Call(ast.Attribute(attr="to"), [ast.Name() as name, *_]):
                device = script.value_of(name)
            case _:
                continue
        match device:
            case ast.Call(ast.Attribute(attr="device"), [ast.Constant(str(kind)), *_]):
                if kind.startswith("cuda") and script.at_times.isdisjoint((call, device)):
                    yield call, kind, _ASK_TORCH


def _may_use_cpu(script: Script, name: str) -> bool:
    """True if the script itself gives the global `name` a value for a machine without GPUs."""
    return any(
        isinstance(node, ast.Assign)
        and name in map(name_of, node.targets)
        and constant(node.value) in _CPU_WORDS.values()
        for node in script.nodes
    )


def _devices(job: JobSpec, script: Script) -> Iterator[Conflict]:
    for call in script.calls:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        devices, nodes = keywords.get("devices"), keywords.get("num_nodes", ast.Constant(1))
        if name_of(call.func) not in _TRAINERS or devices is None:
            continue
        if isinstance(devices, ast.Constant):
            yield from _other_devices(job, script, devices)
        elif "num_nodes" not in keywords or _ALL_PROCESSES.search(ast.unparse(devices)):
            continue
        if None in keywords or job.nodes.elastic or not isinstance(nodes, ast.Constant):
            continue
        if nodes.value != job.nodes:
            problem = (
                f"{script.location(call)}: num_nodes={nodes.value!r}, and nodes is {job.nodes}"
            )
            yield warning("nodes", problem, f"write num_nodes={job.nodes} there")


def _other_devices(job: JobSpec, script: Script, devices: ast.Constant) -> Iterator[Conflict]:
    if devices.value not in (job.procs_per_node, "auto", -1):
        problem = f"{script.location(devices)}: devices={devices.value!r}, and procs_per_node is {job.procs_per_node}"
        remedy = 'make them equal; int(os.environ["LOCAL_WORLD_SIZE"]) always is'
        yield warning("procs_per_node", problem, remedy)


def _resume_option(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the option without which the script loads no checkpoint, if the job does not give it."""
    train, options = job.train, options_of(script)
    asked = train.resume.begin == "auto" and not train.resume.exists
    if not asked or options is None or script.settings or not saves.writes(script):
        return
    words = [*given_words(train)]
    if "set_defaults" in script.called or any(re.match("-[A-Za-z]", str(w.value)) for w in words):
        return
    given = [options.named(word.option, abbreviated=True) for word in words if word.option]
    loads = {call for call in script.calls if saves.loads(call)}
    for name in filter(_GOES_ON.match, options.long):
        attribute, option = name.replace("-", "_"), options.long[name]
        default = script.defaults.get(attribute, ast.Constant(None))
        is_off = default is None or (isinstance(default, ast.Constant) and not default.value)
        if (
            not is_off
            or option.on
            or attribute in script.changed
            or any(g is option for g in given)
        ):
            continue
        asks = (n for n in script.nodes if isinstance(n, ast.If) and _asks(n.test, attribute))
        if loads and loads <= script.below(node for branch in asks for node in branch.body):
            told, first = outline_of(script), min(loads, key=lambda call: call.lineno)
            problem = f"{script.location(first)} loads a checkpoint only with --{name}, which the job does not give"
            remedy = f"write resume: {{exists: {scalar(told.saves)}, args: {scalar(told.resume)}}}"
            yield Conflict(("train.resume", "train.script"), problem, remedy, fatal=False)
            return


def _asks(test: ast.expr, attribute: str) -> bool:
    """True if a condition holds only if the argument of this name is given."""
    match test:
        case ast.Attribute(attr=name):
            return name == attribute
        case ast.Compare(ast.Attribute(attr=name), [ast.IsNot() | ast.NotEq()], [ast.Constant()]):
            return name == attribute
        case ast.BoolOp(ast.And(), values):
            return any(_asks(value, attribute) for value in values)
    return False


class Outline(NamedTuple):
    """The facts of a script for its first spec.

    `options`: its argparse options. `saves`: a pattern of its checkpoint's name. `resume`: the words with which it
    goes on from the checkpoint. Capitals stand for parts that the source does not show.
    """

    options: tuple[str, ...] = ()
    saves: str = "CHECKPOINT"
    resume: str = "--OPTION=CHECKPOINT"


def outline(file: Path) -> Outline:
    """Return the outline of a script, as far as its source shows it."""
    try:
        script = Script(file.name, ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Outline()
    return outline_of(script)


def outline_of(script: Script) -> Outline:
    """Return the outline of a script whose source is read."""
    names = (saves.saved_name(call, script) for call in script.calls)
    pattern = next((n for n in names if n and not n.startswith("*/")), Outline().saves)
    options = options_of(script) or Options({}, (), {})
    option = next((name for name in options.long if _RESUME_OPTION.search(name)), "OPTION")
    word = _word_to_resume(script, option)
    value = f"={word or ('{newest}' if '*' in pattern else pattern)}"
    value = "" if options.long.get(option, Option()).flag else value
    return Outline(tuple(options.long), pattern, f"--{option}{value}")


def _word_to_resume(script: Script, option: str) -> str:
    """Return the value of `option` with which the script goes on, as in `init_from == "resume"`; else ""."""
    for node in script.nodes:
        if isinstance(node, ast.Compare) and name_of(node.left) == option.replace("-", "_"):
            word = constant(node.comparators[0])
            if _RESUME_OPTION.search(word):
                return word
    return ""
