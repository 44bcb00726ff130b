"""The user's Python in `code`: does it have the module or the function that the job names?

Reads no other file than the named one, and refuses only a name that is surely missing.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddpgen.bundle import code
from ddpgen.lint.calls import imported
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import Conflict

# A module with one of these words may define any name.
_DEFINES_ANY = re.compile(
    rb"\b(__dict__|__getattr__|eval|exec|globals|locals|setattr|vars)\b|\bsys\b.*\bmodules\b|\bimport[\s\\]*\*"
)
_SETS_PACKAGE = re.compile(rb"__(package|path|spec)__|__name__[^\w=]*=(?!=)")
# The types of values that fit an annotation, and these values in words.
_ANNOTATIONS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool, int), "true or false"),
    "str": ((str,), "a text"),
    "None": ((type(None),), "null"),
}
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def python_file(job: JobSpec, home: Path) -> Path | None:
    """Return the file of the job's script or workload in `code`; None without one. `home`: the spec's directory."""
    file = job.train.user_file
    return None if job.train.command or not file else code.find(job.code, home, file).get(file)


def parsed(path: Path, field: str) -> ast.Module | Conflict:
    """Return the source of a file as a tree, or a warning about the file that the spec names at `field`.

    It is no error, because the Python of the hosts may be newer than this one.
    """
    try:
        return _compiled(path)
    except _UNREADABLE as error:
        location = f"{path.name}:{getattr(error, 'lineno', None) or 1}"
        # The error's own text has a file <unknown>, and the line once more.
        words = error.msg if isinstance(error, SyntaxError) else error
        problem = f"{location}: this is no Python here: {words}"
        remedy = "correct it, unless the Python of the hosts is newer than the one here"
        return Conflict((field,), problem, remedy, fatal=False)


def _compiled(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_bytes())
        # Only the compiler finds a `return` outside a function, and a late `from __future__`.
        with suppress(RecursionError):
            compile(tree, path.name, "exec")
    return tree


def has_newer_python(job: JobSpec) -> bool:
    """True if the path of the job's Python names a newer version than the one here."""
    versions = re.findall(r"(?<![\d.])3\.(\d+)", job.python.interpreter)
    return any(int(minor) > sys.version_info.minor for minor in versions)


def relative_import(train: Train, path: Path, tree: ast.Module) -> Iterator[Conflict]:
    """Yield a warning about `from . import` in a file that is run by its path, and so is no part of a package."""
    first = next((n for n in tree.body if isinstance(n, ast.ImportFrom) and n.level), None)
    if first is None or _SETS_PACKAGE.search(path.read_bytes()):
        return
    dots = "." * first.level
    imported_names = f"from {dots}{first.module or ''} import {first.names[0].name}"
    problem = f"{path.name}:{first.lineno}: {imported_names} fails, because the file is run by its path, outside of a package"
    *folders, file = train.user_file.removesuffix(".py").split("/")
    remedy = "leave out the dots: the files beside it are found by their names"
    if train.script and len(folders) >= first.level and all(map(str.isidentifier, folders)):
        remedy = f"write script: module:{'.'.join((*folders, file))}"
    yield Conflict((f"train.{train.program_field}",), problem, remedy, fatal=False)


def is_closed(job: JobSpec, home: Path, pattern: re.Pattern[bytes], *harmless: str) -> bool:
    """True if all that the job's own Python does stands in its file, and the file does not match `pattern`.

    `harmless`: modules that it may import, as it may those of Python, torch and numpy.
    """
    path = python_file(job, home)
    tree = parsed(path, "") if path else None
    if path is None or not isinstance(tree, ast.Module):
        return False
    known = {*sys.stdlib_module_names, "numpy", "torch", *harmless}
    return imported(tree) <= known and not pattern.search(path.read_bytes())


def function(train: Train, path: Path, tree: ast.Module) -> Iterator[Conflict]:
    """Yield a conflict if the file has no FUNCTION, or if FUNCTION does not take the arguments of the spec.

    `path`: the file of the workload. `tree`: its source.
    """
    file, _, name = (train.workload or "").rpartition(":")
    try:
        text = path.read_bytes()
        names = _defined(symtable.symtable(text, path.name, "exec"))  # type: ignore[arg-type]
    except _UNREADABLE:
        return
    if _DEFINES_ANY.search(text):
        return
    if name not in names:
        remedy = did_you_mean(name, sorted(names), "define it there, or name another")
        yield Conflict(("train.workload",), f"{file} has no {name}", remedy)
        return
    definition, *others = (node for node in ast.walk(tree) if _binds(node, name))
    if others:
        return
    if bound := next(filter(None, (_not_a_function(n, definition) for n in tree.body)), ""):
        problem = f"{name} is {bound} {file}, and no function"
        yield Conflict(("train.workload",), problem, "name a function")
    elif isinstance(definition, ast.FunctionDef) and definition in tree.body:
        yield from _signature(definition, f"{file}:{definition.lineno}")
        yield from _arguments(train, definition, f"{file}:{definition.lineno}")


def _binds(node: ast.AST, name: str) -> bool:
    """True if the node gives the name a value."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.alias():
            return (node.asname or node.name.partition(".")[0]) == name
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return node.id == name
        case ast.MatchAs() | ast.MatchStar():
            return node.name == name
    return False


def _not_a_function(node: ast.stmt, definition: ast.AST) -> str:
    """Return the kind of value that the statement binds; "" if `definition` is not its name, or may be a function's."""
    match node:
        case ast.Import(names) if definition in names:
            return "a module imported by"
        case ast.Assign([target], ast.Constant()) | ast.AnnAssign(target, value=ast.Constant()):
            return "a constant of" if target is definition else ""
    return ""


def _signature(function: ast.FunctionDef, place: str) -> Iterator[Conflict]:
    """Yield a warning if the function takes no context, or surely returns nothing."""
    declared, problem = function.args, ""
    if function.decorator_list:
        return
    if not (declared.posonlyargs or declared.args or declared.vararg):
        problem = f"{function.name}() in {place} takes no argument, and gets the context"
        remedy = f"write def {function.name}(context)"
    elif not any(map(_gives_value, ast.walk(function))):
        problem = f"{function.name}() in {place} returns nothing, and has to return the workload"
        remedy = "write a return at its end"
    if problem:
        yield Conflict(("train.workload",), problem, remedy, fatal=False)


def _gives_value(node: ast.AST) -> bool:
    """True for a statement with which a function gives a value, or an inner one does, and for a `...` to be filled."""
    if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Raise)):
        return True
    if isinstance(node, ast.Constant) and node.value is ...:
        return True
    return isinstance(node, ast.Return) and node.value is not None


def _arguments(train: Train, function: ast.FunctionDef, place: str) -> Iterator[Conflict]:
    """Yield the arguments that the function does not take, and those that it needs. Its first one is the context."""
    given, declared = train.args, function.args
    positional = [*declared.posonlyargs, *declared.args]
    if function.decorator_list or not positional or not isinstance(given, Mapping):
        return
    defaults = [*[None] * (len(positional) - len(declared.defaults)), *declared.defaults]
    values = {a.arg: value for a, value in zip(positional, defaults, strict=True)}
    values |= {a.arg: v for a, v in zip(declared.kwonlyargs, declared.kw_defaults, strict=True)}
    del values[positional[0].arg]
    for name in given if declared.kwarg is None else ():
        if name not in values:
            remedy = did_you_mean(name, values) if values else "leave it out"
            problem = f"{function.name}() in {place} has no argument {name}"
            yield Conflict((f"train.args.{name}", "train.args"), problem, remedy)
    for name, default in values.items():
        if default is None and name not in given:
            problem = f"{function.name}() in {place} needs {name}"
            yield Conflict(("train.args", "train.workload"), problem, "add it to train.args")
    for argument in (*positional[1:], *declared.kwonlyargs):
        name, default = argument.arg, values[argument.arg]
        kinds = ast.unparse(argument.annotation).split(" | ") if argument.annotation else [""]
        if isinstance(default, ast.Constant) and default.value is None:
            kinds.append("None")
        if name in given and not _fits(given[name], kinds):
            problem = f"is {given[name]!r}, and {function.name}() in {place} declares {' or '.join(kinds)}"
            remedy = f"write {_ANNOTATIONS[kinds[0]][1]}"
            yield Conflict((f"train.args.{name}", "train.args"), problem, remedy, fatal=False)


def _fits(value: Any, annotations: Sequence[str]) -> bool:
    """False if the value is surely of none of the annotated types. Where a bool is wanted, 0 and 1 do."""
    if not set(annotations) <= _ANNOTATIONS.keys():
        return True
    types = tuple(kind for name in annotations for kind in _ANNOTATIONS[name][0])
    return isinstance(value, types) and ("bool" in annotations or not isinstance(value, bool))


def _defined(module: symtable.SymbolTable) -> set[str]:
    """Return the names that a module defines."""
    names = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    tables = [module]
    for table in tables:
        names.update(s.get_name() for s in table.get_symbols() if s.is_declared_global())
        tables += table.get_children()
    return names


def module(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a conflict if `module:NAME` names a part that a package in `code` does not have.

    A module that is not in `code` may be installed on the hosts, and an `__init__.py` with text may bring others.
    """
    script = job.train.script or ""
    if not script.startswith("module:"):
        return
    name = script.removeprefix("module:")
    first, *parts = name.split(".")
    files = code.find(job.code, home, first)
    packages = ["/".join((first, *parts[:i])) for i in range(len(parts) + 1)]
    starts = [files[file] for p in packages if (file := f"{p}/__init__.py") in files]
    if any(start.stat().st_size for start in starts):
        return
    wanted = f"{packages[-1]}.py" if parts else f"{first}/__main__.py"
    # Without an __init__.py, the hosts may have an installed package of this name, which Python takes instead.
    namespace = f"{first}/__init__.py" not in files
    if not namespace or any(file.endswith(".py") for file in files if file != first):
        stems = (f"{packages[-1]}/__main__.", *([f"{packages[-1]}."] if parts else []))
        there = any(file.startswith(stems) for file in files)
    else:
        there = not parts or f"{first}.py" not in code.find(job.code, home, f"{first}.py")
    if not there:
        problem = f"there is no module {name} in code ({', '.join(job.code)})"
        remedy = f"correct the name, or write {wanted}"
        if parts[-1:] == ["py"]:
            remedy = f"write script: {packages[-2]}.py"
        installed = namespace and bool(files)
        yield Conflict(("train.script",), problem, remedy, fatal=not installed)
