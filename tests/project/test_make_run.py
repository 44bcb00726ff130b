"""However `make run` is ended, the job it runs is asked to stop cleanly, and make waits for that."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

# A job that runs until it is asked to stop and then takes a moment, as a checkpoint does.
JOB = """\
stop=; trap 'stop=1' INT TERM
echo "job runs on $(command -v python3)"
until [[ $stop ]]; do sleep 0.05; done
echo "job stopped cleanly"; exit 75
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose set-up is done and whose `ddpgen render` writes the job above."""
    shutil.copy2(ROOT / "Makefile", tmp_path / "Makefile")
    shutil.copytree(ROOT / "train", tmp_path / "train")
    (tmp_path / "tools").mkdir()
    shutil.copy2(ROOT / "tools/run.py", tmp_path / "tools/run.py")
    (tmp_path / "job.sh").write_text(JOB)
    programs = {
        "tools/venv.sh": "",
        ".venv/bin/ddpgen": "mkdir -p build/gpt && cp job.sh build/gpt/local.sh",
        ".venv/bin/python": f'exec "{sys.executable}" "$@"',
        ".venv/bin/python3": f'exec "{sys.executable}" "$@"',
    }
    for name, script in programs.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
    return tmp_path


def make_run(checkout: Path) -> subprocess.Popen[str]:
    """`make run` in a process group of its own, as a terminal starts it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.Popen(
        ["make", "run"],
        cwd=checkout,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def running(checkout: Path) -> subprocess.Popen[str]:
    """`make run` with the job under way."""
    process = make_run(checkout)
    assert process.stdout is not None
    lines = [""]
    for line in process.stdout:
        lines.append(line)
        if line.startswith("job runs on"):
            break
    assert lines[-1] == f"job runs on {checkout}/.venv/bin/python3\n", "".join(lines)
    return process


@pytest.mark.parametrize(
    ("job", "make", "words"),
    [
        (0, 0, "the weights are the same.\n"),
        (75, 0, "ddpgen: `make run` resumes from there\n"),  # a stop that was asked for is no error
        (1, 2, "Error 1\n"),
    ],
)
def test_the_end_of_the_job_is_the_end_of_make(
    checkout: Path, job: int, make: int, words: str
) -> None:
    (checkout / "job.sh").write_text(f"exit {job}\n")
    process = make_run(checkout)
    output = process.communicate(timeout=20)[0]
    assert process.returncode == make, output
    assert output.endswith(words), output
    assert ("Error" in output) == bool(make), output
    assert ("\n  ddpgen status build/gpt  " in output) == (job == 0), output


@pytest.mark.parametrize("how", ["ctrl-c", "TERM", "KILL"])
def test_however_make_is_ended_the_job_stops_cleanly(
    running: subprocess.Popen[str], how: str
) -> None:
    if how == "KILL" and not sys.platform.startswith("linux"):
        pytest.skip("needs the parent-death signal")
    if how == "ctrl-c":
        os.killpg(running.pid, signal.SIGINT)
    else:
        running.send_signal(signal.Signals[f"SIG{how}"])
    output = running.communicate(timeout=20)[0]
    assert "job stopped cleanly" in output
    assert how != "ctrl-c" or "Error" not in output
