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
        {"adopt", "api", "measure", "reproduce"},
        {"job"},
        {"lint"},
        {"tiers"},
        {"monitor", "render"},
        {"bundle"},
        {"guide", "programs"},
        {"site"},
        {"spec"},
        {"resources", "text"},
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
Arrows = dict[tuple[str, str], set[str]]


@pytest.fixture(scope="module")
def arrows_of() -> dict[str, Arrows]:
    """The arrows of each program. Not at the import, which each process of pytest-xdist does."""
    return {program: arrows(program) for program in FLOORS}


@pytest.mark.parametrize("program", FLOORS)
def test_every_room_has_its_floor(program: str) -> None:
    floors = FLOORS[program]
    assert {room(name) for name in modules(program)} - {""} == set().union(*floors)
    assert sum(map(len, floors)) == len(set().union(*floors))


@pytest.mark.parametrize("program", FLOORS)
def test_imports_lead_downwards(program: str, arrows_of: dict[str, Arrows]) -> None:
    depth = {each: n for n, floor in enumerate(FLOORS[program]) for each in floor}
    wrong = {
        f"{sorted(users)} import {below}"
        for (above, below), users in arrows_of[program].items()
        if depth[above] >= depth[below]
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_top_and_the_arrows_stay_few(arrows_of: dict[str, Arrows]) -> None:
    tops = {program: {path.stem for path in (ROOT / program).glob("*.py")} for program in FLOORS}
    assert tops["train"] == {"__init__", "__main__", "worker", "trainer", "workload"}
    assert len(tops["ddpgen"]) <= 9
    packages = {path.parent.name for path in (ROOT / "train").glob("*/__init__.py")}
    assert len([arrow for arrow in arrows_of["train"] if packages.issuperset(arrow)]) <= 40


def test_a_name_that_is_imported_as_text_counts() -> None:
    assert "train.workloads" in imports(ROOT / "train" / "training" / "builder.py")
    assert "train.launch.command" in imports(ROOT / "train" / "__main__.py")
