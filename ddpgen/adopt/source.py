"""The user's Python in `code` that a job names: whether it is Python, and has the module or function that is named.

Reads the named file alone, and refuses only what it is sure of.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# Syntax that the Python of a host may know and an older one here does not: generic functions, `type X = …`, `except*`,
# `except A, B:`, strings within f-strings, t-strings.
_NEWER = re.compile(
    r"\b(def|class) \w+\[|\btype \w+|\bexcept\s*\*|\bexcept\b.*,|\b(f|t|rf|fr|rt|tr)[\"']",
    re.IGNORECASE,
)
# A file that calls one of these may define any name.
_DEFINES_ANY = ("exec", "globals", "setattr", "vars")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def python_file(job: JobSpec, home: Path) -> Path | None:
    """Return the file of the job's script or workload in `code`; None without one. `home`: the spec's directory."""
    file = job.train.user_file
    if job.train.command or not file:
        return None
    for code in map(home.joinpath, job.code):
        path = code if code.name == file else code / file
        if path.is_file():
            return path
    return None


def parsed(path: Path, field: str) -> ast.Module | Conflict:
    """Return the source of a file as a tree, or the fault of the file that the spec names at `field`."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        location = f"{path.name}:{getattr(error, 'lineno', None) or 1}"
        # The error's own text has a file <unknown>, and the line once more.
        words = error.msg if isinstance(error, SyntaxError) else error
        problem = f"{location}: this is no Python here: {words}"
        sure = isinstance(error, (SyntaxError, ValueError))
        sure = sure and not _NEWER.search(getattr(error, "text", None) or "")
        return Conflict((field,), problem, "correct it", fatal=sure)


def function(workload: str, tree: ast.Module) -> Iterator[Conflict]:
    """Yield a conflict if the tree of FILE.py has no FUNCTION. `workload`: FILE.py:FUNCTION."""
    file, _, name = workload.rpartition(":")
    names = set(_names(tree))
    if names.isdisjoint({name, "*"}):
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        remedy = did_you_mean(name, functions, "define it there, or name another")
        yield Conflict(("train.workload",), f"{file} has no {name}", remedy)


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines; "*" if it may define any."""
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names):
                yield from names
            case ast.Call(func=ast.Name(id=name)) if name in _DEFINES_ANY:
                yield "*"
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
        if not isinstance(node, _SCOPES):
            nodes += ast.iter_child_nodes(node)


def module(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a conflict if `module:NAME` names a part that a package in `code` does not have.

    A module that is not in `code` may be installed on the hosts.
    """
    script = job.train.script or ""
    if not script.startswith("module:"):
        return
    first, *parts = script.removeprefix("module:").split(".")
    for name in job.code:
        code = home / name
        package = code / first
        if (package / "__init__.py").is_file():
            place = package.joinpath(*parts)
            files = [
                place / "__main__.py",
                *([place.with_name(f"{place.name}.py")] if parts else []),
            ]
            there = any(map(Path.is_file, files))
        elif code.name == f"{first}.py" or (code / f"{first}.py").is_file():
            there = not parts
        else:
            continue
        if not there:
            problem = f"there is no module {script.removeprefix('module:')} in {Path(name, first)}"
            wanted = f"{'/'.join((first, *parts))}.py" if parts else f"{first}/__main__.py"
            yield Conflict(("train.script",), problem, f"correct the name, or write {wanted}")
        return
