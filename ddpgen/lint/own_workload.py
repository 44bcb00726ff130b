"""The usual faults in the source of a user's own workload: its returned value, its data and its metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ddpgen.lint.calls import Script, constant, name_of, warning
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import Train
from ddpgen.spec.rules import Conflict

_NO_WORKLOAD = {ast.Dict: "a dict", ast.Tuple: "a tuple", ast.List: "a list"}
_MADE_BY = {"dict": "a dict", "tuple": "a tuple", "list": "a list"}
# Classes that are known to be no workload.
_OTHER_BASES = {"object", "ABC", "Dataset", "IterableDataset", "LightningModule", "Module"}
# The parts that make any object a workload, and methods that make another object of a call.
_PARTS = {"model", "dataset", "loss"}
_MAKES_ANOTHER = {"__new__", "__getattr__", "__getattribute__"}


def check(train: Train, path: Path, tree: ast.Module) -> Iterator[Conflict]:
    """Yield the likely faults of the workload in the file `path`, whose source is `tree`."""
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}  # fmt: skip
    named = (train.workload or "").rpartition(":")[2]
    yield from _no_function(tree, named, path.name)
    function = defined.get(named)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return
    returns = list(_returns(function))
    kinds = [_kind(each.value) for each in returns]
    if returns and all(kinds):
        problem = f"{path.name}:{returns[0].lineno}: {function.name}() returns {kinds[0]}"
        remedy = "return a Workload(model=…, dataset=…, loss=…) of train.workload"
        yield warning("train.workload", problem, remedy)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if name_of(call.func) == "Workload"]
    starred = any(isinstance(each, ast.Starred) for call in made for each in call.args)
    if len(made) != 1 or starred or any(keyword.arg is None for keyword in made[0].keywords):
        return
    names = [
        getattr(node, "name", getattr(node, "id", ""))
        for node in ast.walk(tree)
        if not _reads(node)
    ]
    once = {name: node for name, node in defined.items() if names.count(name) == 1}
    parts = {keyword.arg: keyword.value for keyword in made[0].keywords}
    for part in ("dataset", "eval_dataset"):
        match parts.get(part):
            case ast.Call(ast.Name(name)) if _only_iterates(once.get(name)):
                problem = f"{path.name}:{once[name].lineno}: {name} has no [index], so the job could not resume at a position"
                yield warning("train.workload", problem, "define __len__ and __getitem__ there")
    known: set[str] | None = None
    match parts.get("metrics", ast.Constant(None)):
        case ast.Name(name):
            known = _keys(once.get(name))
        case ast.Constant(None):
            known = set()
    imports_class = any(
        isinstance(n, ast.ImportFrom) and n.module == "train.workload" for n in tree.body
    )
    may_change = Script("", tree).changed & {"metrics", "finish"} or "replace" in map(
        name_of, (c.func for c in calls)
    )
    if train.best is None or known is None or "finish" in parts or may_change or not imports_class:
        return
    if len(made[0].args) <= 3 and train.best.metric not in known | {"loss"}:
        problem = f"the workload in {path.name} has no metric {show(train.best.metric)}"
        remedy = did_you_mean(train.best.metric, sorted({*known, "loss"}))
        yield Conflict(("train.best.metric", "train.best"), problem, remedy, fatal=False)


def _no_function(tree: ast.Module, named: str, file: str) -> Iterator[Conflict]:
    """Yield a warning if the workload is an async function, or a class that makes no workload."""
    named_so = [n for n in tree.body if getattr(n, "name", "") == named]
    if len(named_so) != 1 or any(
        n for n in ast.walk(tree) if not _reads(n) and getattr(n, "id", "") == named
    ):
        return
    match named_so[0]:
        case ast.AsyncFunctionDef(decorator_list=[]):
            problem = "is a coroutine's function, which returns no workload"
            remedy = f"write def {named}(context) without async"
        case ast.ClassDef() as made if _is_no_workload(made, tree):
            problem = "is a class, and no workload"
            remedy = "name a function that returns a Workload"
        case _:
            return
    yield warning("train.workload", f"{file}:{named_so[0].lineno}: {named} {problem}", remedy)


def _is_no_workload(made: ast.ClassDef, tree: ast.Module) -> bool:
    """True if all bases of the class are known, and together with it they lack a part of a workload."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    waiting, names = [made.name], set[str]()
    while waiting:
        each = classes.pop(waiting.pop(), None)
        if each is None or each.keywords or each.decorator_list:
            return False
        waiting += [name_of(base) for base in each.bases if name_of(base) not in _OTHER_BASES]
        for node in ast.walk(each):
            names |= {
                str(getattr(node, part, "")) for part in ("name", "id", "attr", "arg", "value")
            }
    return not (names & _MAKES_ANOTHER or names >= _PARTS)


def _kind(value: ast.expr | None) -> str:
    """Return the kind of a returned value that is no workload; "" for others."""
    made = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    return _MADE_BY.get(made, "") or _NO_WORKLOAD.get(type(value), "")


def _reads(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """Yield the returns of the function itself."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _only_iterates(built: ast.AST | None) -> bool:
    """True for an IterableDataset that has no other way to its samples."""
    if not isinstance(built, ast.ClassDef):
        return False
    methods = {getattr(node, "name", getattr(node, "id", "")) for node in ast.walk(built)}
    is_iterable = [name_of(base) for base in built.bases] == ["IterableDataset"]
    return is_iterable and not methods & {"__getitem__", "batch", "__getattr__"}


def _keys(function: ast.AST | None) -> set[str] | None:
    """Return the keys of the dict that a function returns; None if the source does not show all of them."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    keys: set[str] = set()
    returns = list(_returns(function))
    for each in returns:
        if not isinstance(each.value, ast.Dict) or not all(map(constant, each.value.keys)):
            return None
        keys.update(map(constant, each.value.keys))
    return keys if returns else None
