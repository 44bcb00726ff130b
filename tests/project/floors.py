"""The modules of a program, and which of them import which."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.project.tree import ROOT


def modules(program: str) -> dict[str, Path]:
    """All modules of `ddpgen` or `train` by their dotted names, packages among them."""
    names = {}
    for path in sorted((ROOT / program).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def room(module: str) -> str:
    """The package of a module, or the module itself at the top; "" for the program."""
    return module.partition(".")[2].partition(".")[0]


def imports(path: Path) -> set[str]:
    """The absolute names in a module's imports, and the names of ours that it has as text, for importlib."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # Only the driver's are relative: its name in a bundle is another.
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join(filter(None, [*above, node.module]))
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.removesuffix(".")  # maybe the beginning of an f-string
            if text.startswith(("ddpgen.", "train.")) and text.replace(".", "").isidentifier():
                names.add(text)
    return names


def arrows(program: str) -> dict[tuple[str, str], set[str]]:
    """From room to room, with the modules of the first that import one of the second.

    The program's own __init__.py stands above all rooms.
    """
    known = modules(program)
    found = defaultdict(set)
    for name, path in known.items():
        for imported in imports(path) & set(known) - {program}:
            if room(name) and room(imported) != room(name):
                found[room(name), room(imported)].add(name)
    return found
