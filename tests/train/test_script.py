"""How a user's own script ends, as the launch script will read it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.errors import EXIT_FAILED
from train.lock import claim
from train.status import Status, read_status, write_status

ROOT = Path(__file__).parents[2]
ARGPARSE = """\
import argparse, train_of_mine
parser = argparse.ArgumentParser(prog="mine")
parser.add_argument("--depth", type=int)
parser.parse_args()
"""


class Script:
    """A user's script in a claimed directory, to be run as one rank of a job."""

    def __init__(self, home: Path) -> None:
        self.home, self.directory = home, home / "checkpoints"
        self.directory.mkdir()
        self.attempt = claim(self.directory, "mine", os.getpid())
        write_status(self.directory, Status("running", self.attempt, 7))

    def run(self, text: str, *arguments: str, **variables: str) -> tuple[int, Status | None, str]:
        code = self.home / "code"
        code.mkdir(exist_ok=True)
        (code / "mine.py").write_text(text)
        (code / "train_of_mine.py").write_text("")
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DDPGEN_CHECKPOINT_DIR": str(self.directory),
            "DDPGEN_ATTEMPT": self.attempt,
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-m", "train", "script", "code/mine.py", *arguments],
            cwd=self.home, env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, read_status(self.directory), done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.mark.parametrize(
    ("code", "exit_code", "word", "reason"),
    [
        (0, 0, "done", ""),
        (75, 0, "stopped", ""),
        (1, 1, "running", "rank 0: mine.py ended with exit code 1"),
    ],
)
def test_its_exit_code_is_the_status(
    script: Script, code: int, exit_code: int, word: str, reason: str
) -> None:
    text = f"raise SystemExit({code})"
    assert script.run(text)[:2] == (exit_code, Status(word, script.attempt, 7, reason))


def test_a_stopped_script_says_what_it_was_asked(script: Script) -> None:
    stop = script.home / "ask"
    stop.write_text("preempted: gcp takes this machine back\n")
    stopped = Status("stopped", script.attempt, 7, "preempted: gcp takes this machine back")
    ran = script.run("raise SystemExit(75)", DDPGEN_STOP_FILE=str(stop))
    assert ran[:2] == (0, stopped)
    # Who has ended by itself was asked by nobody.
    assert script.run("", DDPGEN_STOP_FILE=str(stop))[1] == Status("done", script.attempt, 7)


def test_where_machines_go_away_its_checkpoints_are_in_the_bucket(
    script: Script, tmp_path: Path
) -> None:
    text = "import os; open(os.environ['DDPGEN_CHECKPOINT_DIR'] + '/mine.pt', 'w').close()"
    store = tmp_path / "bucket" / "mine"
    script.run(text, DDPGEN_CHECKPOINT_STORE=str(store))
    assert os.listdir(store) == ["mine.pt"]
    status = read_status(script.directory)
    assert status is not None
    assert status.word == "done"


def test_only_rank_0_says_that_all_is_done(script: Script) -> None:
    assert script.run("", RANK="1", LOCAL_RANK="1")[:2] == (0, Status("running", script.attempt, 7))


def test_wrong_arguments_are_for_good(script: Script) -> None:
    reason = "mine.py refused its arguments (exit code 2); correct train.args"
    failed = Status("failed", script.attempt, 7, reason)
    code, status, said = script.run(ARGPARSE, "--dept=x", RANK="1")
    assert (code, status) == (EXIT_FAILED, failed)
    assert "invalid int value" in said
    assert f"ddpgen: {reason}\n" in said
    # torchrun starts all of them once more; they see that there is nothing to be done.
    assert script.run("raise SystemExit('ran')") == (0, failed, "")


def test_a_script_that_is_not_there_is_for_good(script: Script) -> None:
    (script.home / "mine.py").mkdir()
    code = subprocess.run(
        [sys.executable, "-m", "train", "script", str(script.home / "mine.py")],
        cwd=ROOT,
        env=os.environ
        | {"DDPGEN_CHECKPOINT_DIR": str(script.directory), "DDPGEN_ATTEMPT": script.attempt},
        timeout=60,
        check=False,
    ).returncode
    status = read_status(script.directory)
    assert (code, status and status.word) == (EXIT_FAILED, "failed")


def test_on_one_of_several_hosts_its_status_is_that_hosts(script: Script, tmp_path: Path) -> None:
    node = tmp_path / "checkpoints" / "nodes" / "laptop"
    node.mkdir(parents=True)
    attempt = claim(node, "mine", os.getpid())
    where = {"DDPGEN_NODE_DIR": str(node), "DDPGEN_ATTEMPT": attempt, "RANK": "3"}
    assert script.run("", **where, LOCAL_RANK="1")[0] == 0
    assert read_status(node) is None
    assert script.run("", **where, LOCAL_RANK="0")[0] == 0
    assert read_status(node) == Status("done", attempt, 0)
    assert read_status(script.directory) == Status("running", script.attempt, 7)


def test_a_replaced_attempt_ends_and_writes_nothing(script: Script) -> None:
    code, status, said = script.run("raise SystemExit(3)", DDPGEN_ATTEMPT="older")
    assert (code, status) == (0, Status("running", script.attempt, 7))
    assert "was replaced" in said


def test_an_exception_is_noted_with_its_line_and_may_be_tried_again(script: Script) -> None:
    text = "def boom():\n    raise ValueError('no\\nsuch')\n\nboom()\n"
    code, status, said = script.run(text, RANK="3")
    noted = "rank 3: ValueError: no such (mine.py:2 in boom)"
    assert (code, status) == (1, Status("running", script.attempt, 7, noted))
    assert "Traceback" in said
