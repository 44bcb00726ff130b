"""What a job prints is in a file as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """\
import os, signal, subprocess, sys
from pathlib import Path
from train.launch.local import KeptOutput
kept = KeptOutput(Path(sys.argv[1]))
print("own")
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda *_: None)  # its child dies of them
subprocess.run("echo child; echo error >&2; read x; echo last", shell=True)
print("ends\\n", end="")  # in one piece, as "error" may come in between
kept.end()
print("after")
"""


def start(file: str, separate: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-uc", PROGRAM, file],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if separate else subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_it_is_printed_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "one.log"
    for _ in range(2):
        assert (
            start(str(file)).communicate("\n", timeout=20)[0]
            == "own\nchild\nerror\nlast\nends\nafter\n"
        )
    assert file.read_text() == "own\nchild\nerror\nlast\nends\n" * 2


def test_errors_stay_apart_where_they_go_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "one.log"
    out, error = start(str(file), separate=True).communicate("\n", timeout=20)
    assert (out, error) == ("own\nchild\nlast\nends\nafter\n", "error\n")
    assert sorted(file.read_text().splitlines()) == ["child", "ends", "error", "last", "own"]


def test_a_full_disk_does_not_end_the_job() -> None:
    out = start("/dev/full").communicate("\n", timeout=20)[0]
    assert [line for line in out.splitlines() if "No space left" not in line] == [
        "own", "child", "error", "last", "ends", "after",
    ]  # fmt: skip


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_terminals_processes_is_not_for_it(
    signum: signal.Signals, tmp_path: Path
) -> None:
    file = tmp_path / "one.log"
    process = start(str(file))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["own\n", "child\n", "error\n"]
    os.killpg(process.pid, signum)
    assert process.communicate(timeout=20)[0] == "ends\nafter\n"
    assert file.read_text() == "own\nchild\nerror\nends\n"
