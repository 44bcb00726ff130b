"""The two rules that tests/conftest.py enforces, seen from outside: break them and see."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST
from tests.project.tree import ROOT

LEAVES = """
import os, subprocess, time

def test_daemon_in_a_new_session():
    subprocess.run(["bash", "-c", "setsid sleep 1001 >/dev/null 2>&1 &"], check=True, timeout=10)

def test_child():
    subprocess.Popen(["sleep", "1002"])

def test_fork_without_exec():
    if os.fork() == 0:
        time.sleep(1003)
        os._exit(0)

def test_waits_for_its_child():
    subprocess.run(["true"], check=True, timeout=10)
"""

SKIPS = """
import pytest

@pytest.mark.real
def test_needs_an_engine():
    pytest.skip("no engine here")

def test_needs_nothing_real():
    pytest.skip("as it likes")
"""


def test_every_file_that_is_to_come_first_is_there() -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(LONGEST) <= names


def run_pytest(tmp_path: Path, tests: str, **env: str) -> str:
    """pytest's output over these tests under our conftest."""
    rules = (ROOT / "tests/conftest.py").read_text()
    assert "GRACE_S = 10.0" in rules
    (tmp_path / "conftest.py").write_text(rules.replace("GRACE_S = 10.0", "GRACE_S = 1.0"))
    (tmp_path / "test_it.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "CI"} | env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_process_left_behind_fails_its_test_and_is_named_and_killed(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, LEAVES)
    assert "4 passed, 3 errors" in said
    for name, line in {
        "test_daemon_in_a_new_session": "sleep 1001",
        "test_child": "sleep 1002",
        "test_fork_without_exec": "-m pytest",
    }.items():
        of_this_test = said.partition(f"ERROR at teardown of {name}")[2].partition("ERROR at")[0]
        assert line in of_this_test.split("short test summary")[0]
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            running.append((process / "cmdline").read_bytes())
    assert not [line for line in running if line in (b"sleep\x001001\0", b"sleep\x001002\0")]


@pytest.mark.slow
def test_skipped_real_test_is_a_failure_in_ci_and_only_there(tmp_path: Path) -> None:
    assert "2 skipped" in run_pytest(tmp_path, SKIPS)
    assert "1 failed, 1 skipped" in run_pytest(tmp_path, SKIPS, CI="true")
