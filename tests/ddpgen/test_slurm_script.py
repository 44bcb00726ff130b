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
ignored = [s.name for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_IGN]
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

    def begun(self, *arguments: str, waits: int = 0, **more: str) -> dict[str, Any]:
        """What the supervisor was started as; `waits`: how often scontrol has given no answer before."""
        done = self.start(*arguments, **more)
        said = done.stderr.splitlines()
        assert done.returncode == 0, done
        assert len(said) == waits, done
        assert all("scontrol does not answer" in line for line in said)
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
    assert begun["ignored"] == ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGHUP"]


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
        (["eval 'echo \"open'"], " slurm.activate.sh "),
        (["false | true"], "1 slurm.activate.sh line 2: ... | true"),
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


@pytest.mark.parametrize(
    ("name", "handed_on"),
    [
        ("USR1", {"DDPGEN_SIGNAL": "USR1"}),
        ("USR2", {"DDPGEN_SIGNAL": "USR1"}),  # what other launchers ask Slurm for
        ("TERM", {"DDPGEN_SIGNAL": "TERM"}),
        ("HUP", {}),
    ],
)
def test_a_signal_that_comes_early_is_handed_on(
    batch: Batch, name: str, handed_on: dict[str, str]
) -> None:
    batch.render(f"kill -{name} $$")
    assert batch.begun()["env"] == handed_on
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
    return batch.begun(SILENT="6", waits=6)


@pytest.mark.parametrize(
    "way", [by_a_link, by_a_relative_path, by_a_pipe, while_the_controller_starts]
)
def test_the_bundle_is_found(batch: Batch, way: Way) -> None:
    batch.render()
    assert way(batch)["cwd"] == str(batch.bundle)


def test_a_later_start_runs_what_was_submitted(batch: Batch) -> None:
    batch.render()
    snapshot = batch.place / "build/checkpoints/gpt/slurm-bundle-7"
    shutil.copytree(batch.bundle, snapshot)
    assert batch.begun()["cwd"] == str(batch.bundle)  # of another job, that had this number
    assert batch.begun(SLURM_RESTART_COUNT="1")["cwd"] == str(snapshot)
    piped = batch.begun(
        command="(null)", SLURM_SUBMIT_DIR=str(batch.bundle), SLURM_RESTART_COUNT="1"
    )
    assert piped["cwd"] == str(snapshot)
    shutil.rmtree(batch.bundle)
    assert batch.begun(SLURM_RESTART_COUNT="1")["cwd"] == str(snapshot)


def copied_into(batch: Batch, other: Path) -> dict[str, str]:
    """The script itself lies in the other bundle."""
    return {"command": f"{other}/copy.sbatch"}


def copied_elsewhere(batch: Batch, other: Path) -> dict[str, str]:
    return {"command": f"{batch.place}/copy.sbatch", "SLURM_SUBMIT_DIR": str(other)}


def piped(batch: Batch, other: Path) -> dict[str, str]:
    return {"command": "(null)", "SLURM_SUBMIT_DIR": str(other)}


def unknown(batch: Batch, other: Path) -> dict[str, str]:
    """There is no scontrol."""
    return {"PATH": without_scontrol(batch.place), **piped(batch, other)}


def without_scontrol(place: Path) -> str:
    (place / "few").mkdir()
    for name in ("bash", "cmp", "grep", "readlink", "sleep", "python3", "env"):
        (place / "few" / name).symlink_to(shutil.which(name) or name)
    (place / "few" / "a-python").symlink_to(place / "bin" / "a-python")
    return str(place / "few")


@pytest.mark.parametrize("way", [copied_into, copied_elsewhere, piped, unknown])
def test_another_jobs_bundle_is_refused(
    batch: Batch, way: Callable[[Batch, Path], dict[str, str]]
) -> None:
    batch.render("true")
    other = batch.place / "other"
    shutil.copytree(batch.bundle, other)
    listing = (other / "bundle.json").read_text()
    (other / "bundle.json").write_text(listing.replace('  "name": "gpt",', '  "name": "other",', 1))
    (other / "slurm.activate.sh").write_text(f"touch {batch.place}/ran\n")
    refused = batch.start(**way(batch, other))
    assert refused.returncode == 69
    assert " is not the bundle " in refused.stderr
    assert "null" not in refused.stderr
    assert not (batch.place / "ran").exists()


def test_another_bundle_of_the_same_job_is_refused_where_slurm_knows_no_path(batch: Batch) -> None:
    batch.render()
    other = batch.place / "other"
    shutil.copytree(batch.bundle, other)
    assert batch.begun(**piped(batch, other))["cwd"] == str(other)  # a copy is the same bundle
    with (other / "slurm.sbatch").open("a") as script:
        script.write("# of an earlier render\n")
    assert batch.start(**piped(batch, other)).returncode == 69
    # A script edited in its own bundle is the user's to run.
    assert batch.begun(command=f"{other}/slurm.sbatch")["cwd"] == str(other)


def test_a_controller_that_never_answers_leaves_the_directory_of_the_submission(
    batch: Batch,
) -> None:
    batch.render()
    here = {"SILENT": "99", "SLURM_SUBMIT_DIR": str(batch.bundle)}
    assert batch.begun(waits=7, **here)["cwd"] == str(batch.bundle)
    assert (batch.place / "asked").read_text().count("show job 7") == 7
    done = batch.start(**{**here, "PATH": without_scontrol(batch.place)})
    assert json.loads(done.stdout)["cwd"] == str(batch.bundle)
    assert done.stderr.count("scontrol: command not found") == 1
    elsewhere = batch.start(SILENT="99")
    assert elsewhere.returncode == 69
    assert f"{batch.place} is not the bundle " in elsewhere.stderr


def test_what_is_missing_is_named(batch: Batch) -> None:
    batch.render()
    away = batch.start(command="/elsewhere/slurm.sbatch")
    assert away.returncode == 69
    assert "/elsewhere is not the bundle " in away.stderr
    day = time.strftime("%Y-%m-%d ")
    assert away.stderr.startswith(f"ddpgen {day}")
    (batch.place / "bin/a-python").unlink()
    none = batch.start()
    assert none.returncode == 69
    assert "no Python called a-python (PATH=" in none.stderr
    by_hand = batch.start(SLURM_JOB_ID="")
    assert by_hand.returncode == 69
    assert " batch script: sbatch " in by_hand.stderr


def test_a_script_of_an_array_wants_an_index(batch: Batch) -> None:
    batch.render(array="5-7%2")
    refused = batch.start()
    assert refused.returncode == 69
    assert "no index: sbatch --array=5-7%2" in refused.stderr
    assert batch.begun(SLURM_ARRAY_TASK_ID="5")["cwd"] == str(batch.bundle)
    script = (batch.bundle / "slurm.sbatch").read_text()
    assert "#   sbatch --array=5 --time=5 slurm.sbatch --preflight " in script
