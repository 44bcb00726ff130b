"""The usual faults in the source of a user's own workload: its returned value, its data and its metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ddpgen.adopt.calls import constant, name_of, warning
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import Train
from ddpgen.spec.rules import Conflict

_NO_WORKLOAD = {ast.Dict: "a dict", ast.Tuple: "a tuple", ast.List: "a list"}


def check(train: Train, path: Path, tree: ast.Module) -> Iterator[Conflict]:
    """Yield the likely faults of the workload in the file `path`, whose source is `tree`."""
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}  # fmt: skip
    function = defined.get((train.workload or "").rpartition(":")[2])
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return
    returns = list(_returns(function))
    kinds = [_NO_WORKLOAD.get(type(each.value), "") for each in returns]
    if returns and all(kinds):
        problem = f"{path.name}:{returns[0].lineno}: {function.name}() returns {kinds[0]}"
        remedy = "return a Workload(model=…, dataset=…, loss=…) of train.workload"
        yield warning("train.workload", problem, remedy)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if name_of(call.func) == "Workload"]
    if len(made) != 1 or any(keyword.arg is None for keyword in made[0].keywords):
        return
    parts = {keyword.arg: keyword.value for keyword in made[0].keywords}
    for part in ("dataset", "eval_dataset"):
        value = parts.get(part)
        built = defined.get(name_of(value.func)) if isinstance(value, ast.Call) else None
        if isinstance(built, ast.ClassDef) and _only_iterates(built):
            problem = f"{path.name}:{built.lineno}: {built.name} has no [index], so the job could not resume at a position"
            yield warning("train.workload", problem, "define __len__ and __getitem__ there")
    metrics = defined.get(name_of(parts["metrics"])) if "metrics" in parts else None
    if train.best and "finish" not in parts and len(made[0].args) <= 3:
        known = _keys(metrics) if metrics else set() if "metrics" not in parts else None
        if known is not None and train.best.metric not in known | {"loss"}:
            problem = f"the workload in {path.name} has no metric {show(train.best.metric)}"
            remedy = did_you_mean(train.best.metric, sorted({*known, "loss"}))
            yield Conflict(("train.best.metric", "train.best"), problem, remedy, fatal=False)


def _returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """Yield the returns of the function itself."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _only_iterates(built: ast.ClassDef) -> bool:
    """True for an IterableDataset that has no other way to its samples."""
    methods = {node.name for node in built.body if isinstance(node, ast.FunctionDef)}
    is_iterable = [name_of(base) for base in built.bases] == ["IterableDataset"]
    return is_iterable and not methods & {"__getitem__", "batch", "__getattr__"}


def _keys(function: ast.AST) -> set[str] | None:
    """Return the keys of the dict that a function returns; None if the source does not show all of them."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    found: set[str] = set()
    returns = list(_returns(function))
    for each in returns:
        if not isinstance(each.value, ast.Dict) or not all(map(constant, each.value.keys)):
            return None
        found.update(map(constant, each.value.keys))
    return found if returns else None
