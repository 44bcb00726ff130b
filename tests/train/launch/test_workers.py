"""What workers leave behind does not outlive their job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

# In a process of its own, which becomes the parent of every orphan below it.
PROGRAM = """
import os, subprocess, sys
from train.launch.workers import Workers
helper = subprocess.Popen(["sleep", "100"])  # of this process itself, as a notice's watcher is
workers = Workers([sys.executable, "-c", sys.argv[1]], os.environ)
_, status = os.waitpid(workers.pid, 0)
workers.ended(os.waitstatus_to_exitcode(status))
print(workers.end_leftovers(), helper.poll())
helper.kill()
"""
STARTS = """
import subprocess, sys
child = "import signal, time; {ignore}; print(flush=True); time.sleep(100)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, {how})
process.stdout.readline()
open({path!r}, "w").write(str(process.pid))
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["", "start_new_session=True"])
@pytest.mark.parametrize("ignore", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_workers_own_children_end_with_it(tmp_path: Path, how: str, ignore: str) -> None:
    left = STARTS.replace("{how}", how).replace("{ignore}", ignore or "0")
    left = left.replace("{path!r}", repr(str(tmp_path / "pid")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, left], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 None\n", done
    assert not is_there(int((tmp_path / "pid").read_text()))


def test_who_leaves_nothing_behind_is_not_waited_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0 None\n", done
