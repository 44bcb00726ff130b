"""The line between a driver and a host's script: what each word does, and what silence does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, TEST_ID

# Stands for a host's script: says which signal came, and ends with the second word.
SCRIPT = """
exec 8<&0 </dev/null
said() { echo "$1" >>said; }
trap 'said TERM' TERM
trap 'said HUP' HUP
trap 'said USR1; exit 0' USR1
"$1" -c "$2" $$ <&8 &
exec 8<&-
echo ready
while :; do sleep 0.05; done
"""
PROGRAM = (
    "import sys; from train import driven; "
    "driven.SILENCE_S = {silence}; sys.exit(driven.main(int(sys.argv[1]), {last}))"
)


class Line:
    """A script with a line to it; `said` is what has arrived."""

    def __init__(
        self, place: Path, silence: float = 60.0, last: float = 60.0, deaf: bool = False
    ) -> None:
        program = PROGRAM.format(silence=silence, last=last)
        self.place = place
        self.process = subprocess.Popen(
            ["bash", "-c", ("trap '' USR1\n" + SCRIPT.replace("trap 'said USR1; exit 0' USR1", "")
             if deaf else SCRIPT), "script", sys.executable, program],
            cwd=place,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", TEST_ID: os.environ[TEST_ID]},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def until_said(self, *words: str) -> None:
        deadline = time.monotonic() + 30
        while self.said() != list(words):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)  # another process writes the file

    def said(self) -> list[str]:
        path = self.place / "said"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    made: list[Line] = []
    yield made
    for line in made:
        line.process.kill()
        line.process.wait(30)
        for stream in (line.process.stdin, line.process.stdout, line.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def test_each_word_becomes_its_signal(tmp_path: Path, lines: list[Line]) -> None:
    lines.append(line := Line(tmp_path))
    line.say("beat\nbeat\nsto")
    line.say("p\nnonsense\n")
    line.until_said("TERM")
    line.say("kill\n")
    line.until_said("TERM", "USR1")
    assert line.process.wait(30) == 0


def test_the_end_of_the_line_asks_for_a_stop_and_later_kills(
    tmp_path: Path, lines: list[Line]
) -> None:
    lines.append(line := Line(tmp_path, last=0.5))
    assert line.process.stdin is not None
    line.process.stdin.close()
    line.until_said("HUP", "USR1")


def test_silence_is_the_end_of_the_line(tmp_path: Path, lines: list[Line]) -> None:
    lines.append(line := Line(tmp_path, silence=0.5))
    line.until_said("HUP")


def test_a_dead_line_is_acted_on_although_nobody_reads_the_message(
    tmp_path: Path, lines: list[Line]
) -> None:
    lines.append(line := Line(tmp_path))
    for stream in (line.process.stdout, line.process.stderr, line.process.stdin):
        assert stream is not None
        stream.close()
    line.until_said("HUP")


def test_it_ends_with_its_script(tmp_path: Path, lines: list[Line]) -> None:
    # That it does not stay is seen by tests/conftest.py after every test.
    lines.append(line := Line(tmp_path))
    line.process.send_signal(signal.SIGKILL)
    assert line.process.wait(30) == -signal.SIGKILL


def test_a_script_that_is_deaf_is_killed_itself(tmp_path: Path, lines: list[Line]) -> None:
    lines.append(line := Line(tmp_path, deaf=True))
    line.say("stop\nkill\n")
    assert line.process.wait(30) == -signal.SIGKILL
