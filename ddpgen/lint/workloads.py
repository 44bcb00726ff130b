"""The arguments of the built-in workloads that they would refuse after the start, on machines that a job has waited for.

Reads the checks of each argument from the source of its workload, so that a range is written once. Owns the rules that
the source does not state as such a check, and the number of a model's parameters.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddpgen.bundle import code
from ddpgen.resources import resource
from ddpgen.spec import unwise
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import JobSpec
from ddpgen.spec.places import path_fault
from ddpgen.spec.rules import WORKLOADS, Conflict

MOST = 10**9  # the largest number of anything but bytes
_MOST_PARAMETERS = 10**12  # each process holds all of them
_LIBRARY_BYTES = 50_000_000  # the source of Python's standard library has fewer in every version
_MNIST_CLASSES = 10
_VOCABULARY = 256  # gpt's tokens are bytes
_PICTURE_SIDE = 28  # pixels, of mnist's pictures
_URL = re.compile(r"(https?|ftp|file|data):")
_PATHS = ("text", "data_dir")


class Argument(NamedTuple):
    """One argument of a workload: its default, the name of the check in train/workloads/arguments.py, and its bound."""

    default: Any
    check: str = ""
    bound: float = 1


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the arguments that the job's built-in workload does not take. `home`: the spec's directory."""
    name, args = job.train.workload, job.train.args
    if name not in WORKLOADS or not isinstance(args, Mapping):
        return
    best = job.train.best
    if best and best.metric not in (metrics := metrics_of(name)):
        problem = f"the workload {name} has no metric {show(best.metric)}"
        fields = ("train.best.metric", "train.best")
        yield Conflict(fields, problem, did_you_mean(best.metric, metrics))
    if not args:
        return
    declared = arguments_of(name)
    refused = False
    for argument, value in args.items():
        fields = (f"train.args.{argument}", "train.args")
        if argument not in declared:
            refused = True
            remedy = did_you_mean(argument, declared)
            yield Conflict(fields, f"{argument} is unknown to workload {name}", remedy)
        elif expected := _expected(argument, value, declared[argument]):
            refused = True
            yield Conflict(fields, f"is {value!r} in workload {name}", f"write {expected}")
        elif argument in _PATHS and (fault := path_fault(str(value))):
            refused = True
            yield Conflict(fields, fault.problem, fault.remedy)
        elif argument == "url" and not _URL.match(value):
            # Without missing files nothing is downloaded.
            problem = f"{show(value)} is no URL, and missing files could not be downloaded"
            remedy = (
                "write one like https://HOST/PATH" if ":" in value else f"write https://{value}"
            )
            yield Conflict(fields, problem, remedy, fatal=False)
    if not refused:
        values = {
            argument: args.get(argument, declaration.default)
            for argument, declaration in declared.items()
        }
        yield from _together(name, args, values, job, home)


@functools.cache
def arguments_of(workload: str) -> Mapping[str, Argument]:
    """Return the arguments of a built-in workload: those of its build() in the training module."""
    tree = ast.parse((resource("train") / "workloads" / f"{workload}.py").read_bytes())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    build = next(function for function in functions if function.name == "build")
    arguments = {
        argument.arg: Argument(default.value if isinstance(default, ast.Constant) else "")
        for argument, default in zip(build.args.kwonlyargs, build.args.kw_defaults, strict=True)
    }
    for call in ast.walk(build):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        match call.func.value, call.args:
            case ast.Name(id="arguments"), [ast.Constant(value=str(name)), *_]:
                bounds = [k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)]
                bound = next((value for value in bounds if isinstance(value, (int, float))), 1)
                arguments[name] = arguments[name]._replace(check=call.func.attr, bound=bound)
    return arguments


@functools.cache
def metrics_of(workload: str) -> tuple[str, ...]:
    """Return the metrics of a built-in workload: the keys that metrics() returns, in its module or in one that it imports."""
    for module in (workload, "labelled"):
        tree = ast.parse((resource("train") / "workloads" / f"{module}.py").read_bytes())
        for node in tree.body:
            match node:
                case ast.FunctionDef(name="metrics", body=[*_, ast.Return(ast.Dict(keys))]):
                    return tuple(key.value for key in keys if isinstance(key, ast.Constant))  # type: ignore[misc]
    return ()


def _expected(name: str, value: Any, argument: Argument) -> str:
    """Return the values that the argument may have, in words; "" if `value` is one of them."""
    if value is None and argument.default is None:
        return ""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    most = math.inf if name == "max_bytes" else MOST
    checks: Mapping[str, tuple[Callable[[], bool], str]] = {
        "whole_number": (
            lambda: number and isinstance(value, int) and argument.bound <= value <= most,
            f"a whole number from {argument.bound:g}" + (f" to {MOST}" if most == MOST else ""),
        ),
        "number": (lambda: number and value > argument.bound, f"a number above {argument.bound:g}"),
        "probability": (lambda: number and 0 <= value < 1, "a number from 0 to below 1"),
        "flag": (lambda: isinstance(value, bool), "true or false"),
        "text": (lambda: isinstance(value, str) and bool(value), "a text"),
        "": (lambda: isinstance(value, Mapping), "a mapping of names to values"),
    }
    fits, words = checks[argument.check]
    return "" if fits() else words


def _together(
    name: str, args: Mapping[str, Any], values: Mapping[str, Any], job: JobSpec, home: Path
) -> Iterator[Conflict]:
    """Yield the values that are valid alone and not together. `args`: the arguments that the spec gives."""
    count = counted(name, args)
    if count is not None and count > _MOST_PARAMETERS:
        problem = f"makes a model of {count:.1e} parameters, and each process holds all of them"
        yield Conflict(("train.args",), problem, "make it smaller")
    if name == "mnist" and values["classes"] < _MNIST_CLASSES and not values["sha256"]:
        problem = f"is {values['classes']}, and MNIST has {_MNIST_CLASSES} classes"
        remedy = "write 10, or name pictures of your own in data_dir and sha256"
        yield Conflict(("train.args.classes",), problem, remedy)
    if name == "toy" and values["batch_norm"] and job.train.micro_batch_size == 1:
        problem = "needs two samples for a variance, and micro_batch_size is 1"
        fields = ("train.args.batch_norm", "train.micro_batch_size")
        yield Conflict(fields, problem, "write micro_batch_size: 2, or more")
    if name == "mnist":
        yield from _of_mnist(values["sha256"] or {})
    if name == "gpt":
        yield from _of_gpt(values, job, home)


def _of_mnist(hashes: Mapping[str, Any]) -> Iterator[Conflict]:
    tree = ast.parse((resource("train") / "workloads" / "mnist.py").read_bytes())
    files: tuple[str, ...] = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STEMS"
    )
    known = [name for file in files for name in (file, f"{file}.gz")]
    for name, value in hashes.items():
        fields = (f"train.args.sha256.{name}", "train.args.sha256", "train.args")
        if name not in known:
            problem = f"{show(name)} is no file of this workload"
            yield Conflict(fields, problem, did_you_mean(name, known))
        elif value is not None and not re.fullmatch("[0-9a-fA-F]{64}", str(value)):
            problem = f"{show(str(value))} is no sha256"
            yield Conflict(fields, problem, "write 64 hexadecimal digits, or null for no check")


def _of_gpt(values: Mapping[str, Any], job: JobSpec, home: Path) -> Iterator[Conflict]:
    if job.train.best and not values["holdout"]:
        problem = "is 0, which leaves nothing to evaluate for train.best"
        remedy = "write a number above 0, or take train.best out"
        yield Conflict(("train.args.holdout",), problem, remedy)
    elif job.train.eval_every and not values["holdout"]:
        yield unwise.no_effect("train.eval_every", "with holdout: 0")
    if values["width"] % values["heads"]:
        problem = f"{values['width']} (width) is not a multiple of {values['heads']} heads"
        nearest = max(1, values["width"] // values["heads"]) * values["heads"]
        remedy = f"write width: {nearest}, or a number of heads that divides it"
        yield Conflict(("train.args.heads", "train.args.width"), problem, remedy)
    text = values["text"]
    size = _LIBRARY_BYTES if text is None else _bytes_of(text, job, home)
    if size is None:
        problem = f"{text} is not in code ({', '.join(job.code) or 'which is not given'})"
        remedy = "add it to code, or write the path that it has on the hosts"
        yield Conflict(("train.args.text", "code"), problem, remedy)
        return
    size, window = min(size, values["max_bytes"]), values["seq_len"] + 1
    held_out = max(math.ceil(size * values["holdout"]), window) if values["holdout"] else 0
    if size - held_out < window:
        problem = f"{size:g} bytes of text are too few for windows of seq_len: {window - 1}"
        fields = ("train.args.seq_len", "train.args.max_bytes", "train.args.holdout", "train.args")
        yield Conflict(fields, problem, "write a smaller seq_len, or give more text")


def _bytes_of(text: str, job: JobSpec, home: Path) -> float | None:
    """Return the bytes that a file or folder has at most: infinity if it is on the hosts. None if it is not in `code`."""
    if text.startswith(("/", "~")):
        return math.inf
    files = code.find(job.code, home, posixpath.normpath(text)).values()
    return sum(file.stat().st_size for file in files) if files else None


def counted(workload: str | None, args: Mapping[str, Any]) -> int | None:
    """Return the number of parameters of a built-in workload; None if the arguments do not determine it."""
    formula = _FORMULAS.get(workload or "")
    if workload is None or formula is None:
        return None
    if workload == "mnist" and "data_dir" in args:
        return None  # other pictures than MNIST's may have another size
    declared = arguments_of(workload)
    names = inspect.signature(formula).parameters
    values = {name: args.get(name, declared[name].default) for name in names}
    if any(_expected(name, value, declared[name]) for name, value in values.items()):
        return None  # the workload refuses it
    return formula(**values)


def _gpt_parameters(depth: int, width: int, seq_len: int, tie_weights: bool) -> int:
    norm = 2 * width
    block = 2 * norm + 4 * width**2 + 8 * width**2  # attention; an MLP of four times the width
    embeddings = (_VOCABULARY + seq_len) * width
    head = 0 if tie_weights else _VOCABULARY * width
    return embeddings + depth * block + norm + head


def _mnist_parameters(channels: int, hidden: int, classes: int, batch_norm: bool) -> int:
    side = -(-_PICTURE_SIDE // 4)
    norms = 2 * channels + 4 * channels if batch_norm else 0
    convolutions = (9 + 1) * channels + (9 * channels + 1) * 2 * channels
    layers = (2 * channels * side**2 + 1) * hidden + (hidden + 1) * classes
    return convolutions + norms + layers


def _toy_parameters(features: int, classes: int, hidden: int, batch_norm: bool) -> int:
    norm = 2 * hidden if batch_norm else 0
    return (features + 1) * hidden + norm + (hidden + 1) * classes


# The arguments of a formula decide a shape. A test builds the models and compares.
_FORMULAS: Mapping[str, Callable[..., int]] = {
    "gpt": _gpt_parameters,
    "mnist": _mnist_parameters,
    "toy": _toy_parameters,
}
