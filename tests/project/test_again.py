"""What CI does with tests that have failed: real ones may pass alone, and are named then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

TESTS = """
import pathlib, pytest

def passes_the_second_time(name):
    before = pathlib.Path(name).exists()
    pathlib.Path(name).touch()
    assert before

@pytest.mark.real
def test_busy():
    passes_the_second_time("busy")

@pytest.mark.real
@pytest.mark.parametrize("broken", [False, True])
def test_teardown(request, broken):
    request.addfinalizer(lambda: passes_the_second_time("teardown"))
    assert not broken or BROKEN != "real"

def test_plain():
    if BROKEN == "plain":
        passes_the_second_time("plain")

def test_never_fails():
    pathlib.Path("never").open("a").write("x")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "code", "named", "last"),
    [
        ("", 0, ["test_it.py::test_busy", "test_it.py::test_teardown[False]"], "2 passed in"),
        ("real", 1, ["test_it.py::test_busy", "test_it.py::test_teardown[False]"], "1 failed, 2"),
        ("plain", 5, [], "no tests ran in"),
    ],
)
def test_only_real_tests_are_run_again_and_named(
    tmp_path: Path, broken: str, code: int, named: list[str], last: str
) -> None:
    (tmp_path / "test_it.py").write_text(f"BROKEN = {broken!r}\n{TESTS}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real\naddopts = -p no:xdist\n")
    run(tmp_path, "-m", "pytest")
    again = run(tmp_path, str(ROOT / "tools" / "again.py"))
    assert again.returncode == code, again.stdout
    lines = again.stdout.splitlines()
    shown = [line.removeprefix("passed only alone: ") for line in lines if "only alone" in line]
    assert shown == named
    assert last in lines[-1]
    assert (tmp_path / "never").read_text() == "x"


def test_a_failure_before_the_tests_stays_one(tmp_path: Path) -> None:
    assert run(tmp_path, str(ROOT / "tools" / "again.py")).returncode == 1


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=60
    )
