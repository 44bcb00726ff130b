"""The batch script from its first line to the supervisor that it becomes: bash is real, Slurm and Python are not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ddpgen.conftest import GPT, Run

# What it was started as, and with which environment.
PYTHON = """\
#!/usr/bin/env -S python3 -S
import json, os, signal, sys
told = {name: value for name, value in os.environ.items() if name.startswith(("DDPGEN_", "A_")) and name != "DDPGEN_TEST_ID"}
ignored = [s.name for s in (signal.SIGUSR1, signal.SIGTERM) if signal.getsignal(s) is signal.SIG_IGN]
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": told, "ignored": ignored, "pid": os.getpid()}))
"""
SCONTROL = """\
#!/bin/bash
# The first so many questions are not answered.
echo "$@" >>"$FAKE/asked"
[ "$(wc -l <"$FAKE/asked")" -gt "${SILENT:-0}" ] || exit 1
printf 'JobId=7\\n   Features=x\\n   Command=%s\\n   WorkDir=/\\n' "$COMMAND"
"""


class Batch:
    """A rendered job, and what Slurm would tell its script."""

    def __init__(self, place: Path, run: Run) -> None:
        self.place, self._run = place, run
        self.bundle = place / "build" / "gpt"
        programs = place / "bin"
        programs.mkdir()
        for name, text in (
            ("a-python", PYTHON),
            ("scontrol", SCONTROL),
            ("sleep", "#!/bin/bash\n"),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FAKE": str(place),
            "SLURM_JOB_ID": "7",
            "SLURM_SUBMIT_DIR": str(place),
        }

    def render(self, *activate: str, **slurm: Any) -> None:
        python = json.dumps({"interpreter": "a-python", "activate": activate})
        target = json.dumps({"slurm": slurm})
        (self.place / "job.yaml").write_text(f"{GPT}python: {python}\ntargets: {target}\n")
        outcome = self._run("render", "job.yaml", "--target", "slurm")
        assert outcome.code == 0, outcome.err

    def start(
        self, *arguments: str, command: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Slurm runs a copy of the script, which the job knows as `command`."""
        spool = self.place / "spool"
        if (self.bundle / "slurm.sbatch").exists():
            shutil.copy(self.bundle / "slurm.sbatch", spool)
        known = " ".join([command or f"{self.bundle}/slurm.sbatch", *arguments])
        return subprocess.run(
            ["bash", spool, *arguments], env={**self.env, "COMMAND": known, **env}, cwd="/",
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def begun(self, *arguments: str, **more: str) -> dict[str, Any]:
        """What the supervisor was started as."""
        done = self.start(*arguments, **more)
        assert (done.returncode, done.stderr) == (0, ""), done
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def batch(tmp_path: Path, run: Run) -> Batch:
    return Batch(tmp_path, run)


ODD = ["--steps=5", "it's", "$HOME $(touch x)", "", "--arg=a  b"]


def test_it_becomes_the_supervisor(batch: Batch) -> None:
    batch.render()
    begun = batch.begun(*ODD)
    assert begun["argv"][:4] == ["-m", "train", "supervise", "slurm"]
    assert begun["argv"][-len(ODD) - 1 :] == ["--", *ODD]
    assert begun["cwd"] == str(batch.bundle)
    assert begun["env"] == {}
    assert begun["ignored"] == ["SIGUSR1", "SIGTERM"]


@pytest.mark.parametrize(
    "lines",
    [
        ["snapshot=/shared/precious checkpoint_dir=/x bundle=/x saved=/x submitted=/x beside=/x"],
        ["nodes=9 head=x port=1 job=8 restart=5 me=x asked=TERM state=over"],
        ["set -- --steps=1", "shift", "exec </dev/null"],
        ['[ $# -eq 0 ] || exit 1 # "$@" is not for its eyes'],
        ["cd /", "unset CDPATH", "pause=1", "set +e +o pipefail"],
        ["say() { :; }", "die() { exit 0; }", "trap - USR1"],
    ],
)
def test_what_an_environment_sets_changes_nothing(batch: Batch, lines: list[str]) -> None:
    batch.render("export A_B=c")
    plain = batch.begun(*ODD)
    batch.render("export A_B=c", *lines)
    begun = batch.begun(*ODD)
    assert {**begun, "pid": 0} == {**plain, "pid": 0}
    assert begun["env"] == {"A_B": "c"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["true", "false", "true"], "1 slurm.activate.sh line 3: false"),
        (["module() { return 3; }", "module load x"], "3 slurm.activate.sh line 3: "),
        (["exit 5"], "5 slurm.activate.sh "),
        (["exit 0"], "0 slurm.activate.sh "),
        (['echo "open'], " slurm.activate.sh "),
        (["false | true"], "1 slurm.activate.sh line 2: "),
    ],
)
def test_an_environment_that_fails_is_the_supervisors_to_judge(
    batch: Batch, lines: list[str], said: str
) -> None:
    batch.render(*lines)
    done = batch.start(*ODD)
    begun = json.loads(done.stdout)
    assert said in begun["env"]["DDPGEN_FAILED"]
    assert begun["argv"][-len(ODD) - 1 :] == ["--", *ODD]
    assert begun["cwd"] == str(batch.bundle)


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_a_signal_that_comes_early_is_handed_on(batch: Batch, name: str) -> None:
    batch.render(f"kill -{name} $$")
    assert batch.begun()["env"] == {"DDPGEN_SIGNAL": name}
    batch.render("kill -TERM $$", "kill -USR1 $$")
    assert batch.begun()["env"] == {"DDPGEN_SIGNAL": "TERM"}


def test_a_signal_that_ends_what_the_environment_waits_for_is_handed_on(batch: Batch) -> None:
    fifo = batch.place / "fifo"
    os.mkfifo(fifo)
    batch.render(f"cat {fifo}")
    shutil.copy(batch.bundle / "slurm.sbatch", batch.place / "spool")
    script = subprocess.Popen(
        ["bash", batch.place / "spool"], env={**batch.env, "COMMAND": f"{batch.bundle}/slurm.sbatch"},
        stdout=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    with fifo.open("w"):  # opened by cat, too
        os.killpg(script.pid, signal.SIGTERM)
        out, _ = script.communicate(timeout=30)
    env = json.loads(out)["env"]
    assert env["DDPGEN_SIGNAL"] == "TERM"
    assert env["DDPGEN_FAILED"].startswith("143 slurm.activate.sh line 2: cat")
    assert json.loads(out)["pid"] == script.pid


Way = Callable[[Batch], dict[str, Any]]


def by_a_link(batch: Batch) -> dict[str, Any]:
    (batch.place / "link").symlink_to(batch.bundle / "slurm.sbatch")
    return batch.begun("--steps=5", "a b", command=f"{batch.place}/link")


def by_a_relative_path(batch: Batch) -> dict[str, Any]:
    return batch.begun(command="build/../build/gpt/slurm.sbatch")


def by_a_pipe(batch: Batch) -> dict[str, Any]:
    return batch.begun(command="(null)", SLURM_SUBMIT_DIR=str(batch.bundle))


def while_the_controller_starts(batch: Batch) -> dict[str, Any]:
    return batch.begun(SILENT="6")


@pytest.mark.parametrize(
    "way", [by_a_link, by_a_relative_path, by_a_pipe, while_the_controller_starts]
)
def test_the_bundle_is_found(batch: Batch, way: Way) -> None:
    batch.render()
    assert way(batch)["cwd"] == str(batch.bundle)


def test_a_later_start_runs_what_was_submitted(batch: Batch) -> None:
    batch.render()
    snapshot = batch.place / "build/checkpoints/gpt/bundle-7"
    shutil.copytree(batch.bundle, snapshot)
    assert batch.begun()["cwd"] == str(batch.bundle)  # of another job, that had this number
    assert batch.begun(SLURM_RESTART_COUNT="1")["cwd"] == str(snapshot)
    shutil.rmtree(batch.bundle)
    assert batch.begun(SLURM_RESTART_COUNT="1")["cwd"] == str(snapshot)


def test_what_is_missing_is_named(batch: Batch) -> None:
    batch.render()
    away = batch.start(command="/elsewhere/slurm.sbatch")
    assert away.returncode == 69
    assert "train/ is not beside /elsewhere/slurm.sbatch; sbatch the bundle's own" in away.stderr
    day = time.strftime("%Y-%m-%d ")
    assert away.stderr.startswith(f"ddpgen {day}")
    (batch.place / "bin/a-python").unlink()
    none = batch.start()
    assert none.returncode == 69
    assert "there is no Python called a-python (PATH=" in none.stderr
    by_hand = batch.start(SLURM_JOB_ID="")
    assert by_hand.returncode == 69
    assert "this is a batch script: sbatch " in by_hand.stderr
