"""The floors of both programs: a package imports what lies below it, and little lies at the top."""

from __future__ import annotations

import pytest

from tests.project.floors import arrows, imports, modules, room
from tests.project.tree import ROOT

# A package, or a module at the top, may import itself and what stands below it. The packages of one floor know nothing
# of each other.
FLOORS = {
    "ddpgen": [
        {"__main__"},
        {"cli"},
        {"measure", "reproduce"},
        {"job"},
        {"adopt"},
        {"tiers"},
        {"monitor", "render"},
        {"bundle"},
        {"guide", "programs"},
        {"site"},
        {"spec"},
        {"resources", "shell", "yamltext"},
        {"errors"},
        # Copied into the bundle, where there is no ddpgen: nothing of it is below this line.
        {"driver"},
    ],
    "train": [
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
    ],
}
ARROWS = {program: arrows(program) for program in FLOORS}
EACH = [(program, *arrow) for program, found in ARROWS.items() for arrow in sorted(found)]


@pytest.mark.parametrize("program", FLOORS)
def test_every_room_has_its_floor(program: str) -> None:
    floors = FLOORS[program]
    assert {room(name) for name in modules(program)} - {""} == set().union(*floors)
    assert sum(map(len, floors)) == len(set().union(*floors))


@pytest.mark.parametrize(("program", "above", "below"), EACH, ids=lambda name: name)
def test_an_import_leads_downwards(program: str, above: str, below: str) -> None:
    depth = {each: n for n, floor in enumerate(FLOORS[program]) for each in floor}
    users = sorted(ARROWS[program][above, below])
    assert depth[above] < depth[below], f"{users} import {below}"


def test_the_top_and_the_arrows_stay_few() -> None:
    tops = {program: {path.stem for path in (ROOT / program).glob("*.py")} for program in FLOORS}
    assert tops["train"] == {"__init__", "__main__", "worker", "trainer", "workload"}
    assert len(tops["ddpgen"]) <= 10
    packages = {path.parent.name for path in (ROOT / "train").glob("*/__init__.py")}
    assert len([arrow for arrow in ARROWS["train"] if packages.issuperset(arrow)]) <= 40


def test_a_name_that_is_imported_as_text_counts() -> None:
    assert "train.workloads" in imports(ROOT / "train" / "training" / "builder.py")
    assert "train.launch.command" in imports(ROOT / "train" / "__main__.py")
