"""The floors of train/: a package imports what lies below it, and five modules lie at the top."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A package, or a module at the top, may import itself and what stands below it. Read a floor as the packages that
# know nothing of each other.
FLOORS = [
    {"__main__"},
    {"tools"},
    {"worker"},
    {"trainer"},
    {"launch", "training"},
    {"preflight", "checkpoint", "script", "workloads"},
    {"distributed", "workload"},
    {"run"},
    {"health"},
    {"base"},
]


def modules() -> dict[str, Path]:
    """All modules by their dotted names, packages among them."""
    names = {}
    for path in sorted((ROOT / "train").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def room(module: str) -> str:
    """The package of a module, or the module itself at the top."""
    return [*module.split("."), "train"][1]


def imports(path: Path) -> set[str]:
    """The names that a module imports, those that it imports as text among them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: imports are absolute"
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A name for importlib, also the beginning of one in an f-string.
            text = node.value.removesuffix(".")
            if text.startswith("train.") and text.replace(".", "").isidentifier():
                names.add(text)
    return names & set(modules())


def arrows() -> dict[tuple[str, str], set[str]]:
    """From room to room, with the modules of the first that import one of the second."""
    found = defaultdict(set)
    for name, path in modules().items():
        for imported in imports(path) - {"train"}:
            if room(imported) != room(name):
                found[room(name), room(imported)].add(name)
    return found


ARROWS = arrows()


def test_every_room_has_its_floor() -> None:
    assert {room(name) for name in modules()} - {"train"} == set().union(*FLOORS)
    assert sum(map(len, FLOORS)) == len(set().union(*FLOORS))


@pytest.mark.parametrize("arrow", sorted(ARROWS), ids=" -> ".join)
def test_an_import_leads_downwards(arrow: tuple[str, str]) -> None:
    depth = {each: n for n, floor in enumerate(FLOORS) for each in floor}
    above, below = arrow
    assert depth[above] < depth[below], f"{sorted(ARROWS[arrow])} import {below}"


def test_the_top_and_the_arrows_stay_few() -> None:
    top = {path.stem for path in (ROOT / "train").glob("*.py")}
    assert top == {"__init__", "__main__", "worker", "trainer", "workload"}
    packages = {path.parent.name for path in (ROOT / "train").glob("*/__init__.py")}
    assert len([arrow for arrow in ARROWS if packages.issuperset(arrow)]) <= 40


def test_a_name_that_is_imported_as_text_counts() -> None:
    assert "train.workloads" in imports(ROOT / "train" / "training" / "builder.py")
    assert "train.launch.command" in imports(ROOT / "train" / "__main__.py")
