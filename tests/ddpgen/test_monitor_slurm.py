"""launch, status, logs and stop on Slurm, here and through a login node; Slurm's programs are fakes.

test_monitor_states.py has the states themselves.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.monitor import watch
from ddpgen.tiers.slurm import jobs as slurm_jobs
from tests.clocks import give_time
from tests.ddpgen.answers import record
from tests.ddpgen.conftest import GPT, ROOT, Run, ddpgen, progress
from tests.ddpgen.programs import Programs, remembered
from train.launch.slurm import job

HERE = Path(__file__).parent
SLURM = GPT + "targets:\n  slurm: {}\n"
LOGIN = GPT + "targets:\n  slurm: {login: me@gate, dir: ~/my jobs}\n"
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel")
NO_ACCOUNTING = "1\nSlurm accounting storage is disabled\n"
FORGOTTEN = "1\nslurm_load_jobs error: Invalid job id specified\n"

Spec = Callable[..., Path]


class Cluster(Programs):
    """Slurm's programs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        super().__init__(root, monkeypatch, *PROGRAMS)
        self.answers("test", "0\nsbatch: Job 1 to start at 2026-01-01T00:00:00 on node1\n")
        self.answers("sbatch", "0\n4711\n")
        self.answers("sacct", NO_ACCOUNTING)
        self.answers("scontrol", FORGOTTEN)

    def has(self, *jobs: str) -> None:
        """These jobs are known, and in the queue: ID STATE [REASON]."""
        for path in self.state.glob("scontrol.*"):
            path.unlink()
        said: dict[str, str] = {}
        for name in jobs:
            number, state, *why = name.split()
            first, _, task = number.partition("_")
            array = {"ArrayJobId": first, "ArrayTaskId": task} if task else {}
            said[first] = said.get(first, "") + record(first, state, *why, **array)
        self.answers("squeue", "0\n" + "".join(f"{number}\n" for number in said))
        for number, lines in said.items():
            self.answers(f"scontrol.{number}", f"0\n{lines}")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


@pytest.fixture
def gate(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home on the login node."""
    home = cluster.root / "homes" / "me@gate"
    home.mkdir(parents=True)
    fake = shlex.join([sys.executable, "-SE", str(HERE / "driver" / "fake_ssh.py")])
    monkeypatch.setenv("DDPGEN_SSH", fake)
    monkeypatch.setenv("FAKE_HOMES", str(home.parent))
    return home


@pytest.fixture
def launched(run: Run, spec: Spec, cluster: Cluster) -> Path:
    """Job 4711 was submitted from here; its checkpoint directory."""
    assert run("launch", spec(SLURM), "--target", "slurm").code == 0
    return cluster.root / "build/checkpoints/gpt"


def began(directory: Path, status: str, **files: str) -> Path:
    """A checkpoint directory as a job leaves it."""
    directory.mkdir(parents=True)
    (directory / "status").write_text(status + "\n")
    for name, text in files.items():
        (directory / name.replace("_", "-")).write_text(text + "\n")
    for step in (50, 100):
        (directory / f"step-{step:09}").mkdir()
        (directory / f"step-{step:09}" / "checkpoint.json").write_text("{}")
    (directory / "step-000000150").mkdir()  # not finished
    return directory


def test_launch_submits_a_copy_and_says_what_to_type_next(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path
) -> None:
    outcome = run("launch", spec(SLURM), "--target", "slurm", "--", "--steps=5", "a 'b")
    (copy,) = (tmp_path / "build" / ".submitted").iterdir()
    assert (outcome.code, outcome.out) == (0, "4711\n")
    assert cluster.calls("sbatch") == [
        [option, "--output=../../logs/%x-%j.log", "slurm.sbatch", "--steps=5", "a 'b"]
        for option in ("--test-only", "--parsable")
    ]
    assert (cluster.state / "sbatch.cwd").read_text() == f"{copy}\n"
    where = f"+ (cd build/.submitted/{copy.name} && sbatch"
    words = "--output=../../logs/%x-%j.log slurm.sbatch --steps=5 'a '\"'\"'b')"
    assert f"{where} --test-only {words}\nsbatch: Job 1 to start at" in outcome.err
    assert f"{where} --parsable {words}\n" in outcome.err
    assert outcome.err.splitlines()[-3:] == [
        f"next: ddpgen {command} build/gpt" for command in ("status", "logs --follow", "stop")
    ]
    assert (tmp_path / "build" / "logs").is_dir()
    log = f"{tmp_path}/build/logs/gpt-4711.log"
    known = {"tier": "slurm", "job": "4711", "cluster": "", "log": log, "login": ""}
    assert remembered(tmp_path, "slurm") == known


def test_what_was_submitted_stays_as_it_was_and_an_edited_copy_is_made_anew(
    run: Run, spec: Spec, launched: Path, tmp_path: Path
) -> None:
    (first,) = (tmp_path / "build" / ".submitted").iterdir()
    script = first / "slurm.sbatch"
    before = script.read_bytes()
    assert (first / "bundle.json").read_bytes() == (tmp_path / "build/gpt/bundle.json").read_bytes()
    script.write_text("exit 3\n")
    assert run("launch", "job.yaml", "--target", "slurm").code == 0
    assert list((tmp_path / "build" / ".submitted").iterdir()) == [first]
    assert script.read_bytes() == before
    run("launch", spec(SLURM.replace("steps: 300", "steps: 301")), "--target", "slurm")
    assert len(list((tmp_path / "build" / ".submitted").iterdir())) == 2
    assert script.read_bytes() == before


@pytest.mark.parametrize("name", ["test", "sbatch"])
def test_a_refusal_of_sbatch_is_shown_as_it_is(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path, name: str
) -> None:
    cluster.answers(name, "1\nsbatch: error: AssocMaxSubmitJobLimit\n")
    outcome = run("launch", spec(SLURM), "--target", "slurm")
    assert (outcome.code, outcome.out) == (69, "")
    assert "\nsbatch: error: AssocMaxSubmitJobLimit\nsbatch " in outcome.err
    assert len(cluster.calls("sbatch")) == (1 if name == "test" else 2)
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_the_id_is_found_among_what_else_sbatch_says(
    run: Run, spec: Spec, cluster: Cluster
) -> None:
    cluster.answers("sbatch", "0\nsbatch: lua: 12 credits left\n17;blue\n")
    outcome = run("launch", spec(SLURM), "--target", "slurm")
    assert (outcome.code, outcome.out) == (0, "17\n")
    assert "\nsbatch: lua: 12 credits left\nnext: " in outcome.err
    cluster.has("17 RUNNING")
    run("status", "job.yaml")
    assert cluster.calls("scontrol")[0] == ["--clusters=blue", "show", "job", "17"]


HEAD = {"attempt": "a", "generation": 1}
ROWS = [
    {"kind": "start", "step": 0, "time": 0.0, **HEAD},
    *({"kind": "step", "step": step, "time": 10.0 + 2 * step, **HEAD} for step in range(1, 5)),
    {"kind": "eval", "step": 4, "time": 25.0, **HEAD},
    {"kind": "stopped", "step": 4, "time": 37.5, **HEAD},
]
MEASURED = progress(ROWS)


@pytest.mark.parametrize(
    ("top", "line", "signal_option"),
    [
        ("{time: 1h}", MEASURED, "--signal=B:USR1@80"),  # 7 s, 12.5 s, a minute of slack, upwards
        ("{time: 1h}", progress(ROWS[:-1]), None),
        ("{time: 2min}", MEASURED, None),
        ("{time: 1h, step_time: 3s}", MEASURED, None),
        ("{time: 1h, warning: 100s}", MEASURED, None),
        ("{time: 1h}", MEASURED[:-20], None),
        ("{time: 1h}", "", None),
    ],
)
def test_the_warning_comes_from_what_earlier_starts_have_measured(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path, top: str, line: str,
    signal_option: str | None,
) -> None:  # fmt: skip
    kept = tmp_path / "build" / "checkpoints" / "gpt"
    kept.mkdir(parents=True)
    (kept / "progress.json").write_text(line)
    run("launch", spec(GPT + f"targets:\n  slurm: {top}\n"), "--target", "slurm")
    options = [word for word in cluster.calls("sbatch")[1] if word.startswith("--signal")]
    assert options == ([signal_option] if signal_option else [])


@pytest.mark.parametrize(
    ("slurm", "name"),
    [
        ("extra: --output=PLACE/%x-%j.out", "gpt-4711.out"),
        ("array: 0-3, extra: --output=PLACE/%A_%a.out", "4711_*.out"),
    ],
)
def test_a_log_may_lie_where_the_spec_says(
    slurm: str, name: str, run: Run, spec: Spec, cluster: Cluster, tmp_path: Path
) -> None:
    tier = slurm.replace("PLACE", str(tmp_path / "mine"))
    run("launch", spec(GPT + f"targets:\n  slurm: {{{tier}}}\n"), "--target", "slurm")
    assert not [word for word in cluster.calls("sbatch")[1] if word.startswith("--output")]
    assert remembered(tmp_path, "slurm")["log"] == str(tmp_path / "mine" / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name.replace("*", "2")).write_text("one\n")
    assert ddpgen("logs", "job.yaml", cwd=tmp_path).stdout == "one\n"


def test_a_log_in_a_directory_that_slurm_names_is_asked_for(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path
) -> None:
    tier = f"extra: --output={tmp_path}/%u/%j.out"
    run("launch", spec(GPT + f"targets:\n  slurm: {{{tier}}}\n"), "--target", "slurm")
    assert remembered(tmp_path, "slurm")["log"] == ""


def test_an_array_has_a_log_and_a_directory_for_each_task(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path
) -> None:
    run("launch", spec(GPT + "targets:\n  slurm: {array: 0-3}\n"), "--target", "slurm")
    assert "--output=../../logs/%x-%A_%a.log" in cluster.calls("sbatch")[0]
    cluster.has("4711_2-3 PENDING", "4711_0 RUNNING", "4711_1 RUNNING")
    for task in (0, 1):
        began(tmp_path / f"build/checkpoints/gpt-{task}", f"running slurm.4711_{task}.0 0")
    told = run("status", "job.yaml")
    assert "build/checkpoints/gpt-0:\n  running\n" in told.out
    assert "build/checkpoints/gpt-1:\n" in told.out
    assert run("stop", "job.yaml").code == 0
    assert cluster.calls("scancel") == [["--state=PENDING", "4711"]]
    for task in (0, 1):
        assert (tmp_path / f"build/checkpoints/gpt-{task}/stop").read_text() == ""
        (tmp_path / f"build/logs/gpt-4711_{task}.log").write_text(f"task {task}\n")
    shown = ddpgen("logs", "job.yaml", cwd=tmp_path).stdout
    assert "task 0\n" in shown
    assert "task 1\n" in shown


def test_status_of_a_running_job(run: Run, cluster: Cluster, launched: Path) -> None:
    line = progress([{"kind": "step", "step": 120, "time": time.time() - 330, "loss": 2.5, "attempt": "slurm.4711.0", "generation": 1}])  # fmt: skip
    began(launched, "running slurm.4711.0 0", **{"progress.json": line, "slurm_job": "4711 0"})
    cluster.has("4711 RUNNING")
    outcome = run("status", "job.yaml")
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[1].split()[:2]) == (0, ["4711", "RUNNING"])
    shown = ["build/checkpoints/gpt:", "  running", "  step:              120, 5 min ago"]
    assert lines[2:5] == shown
    assert "  newest checkpoint: step 100" in lines  # step 150 is not finished
    assert lines[-1] == "log: build/logs/gpt-4711.log"
    assert cluster.calls("scontrol") == [["show", "job", "4711"]]
    assert cluster.calls("squeue") + cluster.calls("sacct") == []


@pytest.mark.parametrize(
    ("sacct", "told"),
    [("0\n4711|COMPLETED|0:0|node1|0:10|1:00\n", "COMPLETED"), (NO_ACCOUNTING, "does not know job 4711")],
)  # fmt: skip
def test_status_of_a_job_that_the_controller_has_forgotten(
    run: Run, cluster: Cluster, launched: Path, sacct: str, told: str
) -> None:
    cluster.answers("sacct", sacct)
    outcome = run("status", "job.yaml")
    assert outcome.code == 0
    assert told in outcome.out
    (cluster.bin / "sacct").unlink()
    assert "does not know job 4711" in run("status", "job.yaml").out


def test_the_watching_ends_with_the_last_of_the_jobs(
    run: Run, cluster: Cluster, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began(launched, "stopped slurm.4711.0 100 signal: USR1")
    at_each = iter(["4711 PENDING BeginTime", "4711 RUNNING", ""])
    cluster.has(next(at_each))

    def sleep(seconds: float) -> None:
        if job := next(at_each):
            cluster.has(job)
        else:
            (launched / "status").write_text("done slurm.4711.1 300\n")
            cluster.answers("scontrol.4711", FORGOTTEN)
            cluster.answers("sacct", "0\n4711|COMPLETED|0:0|node1|0:10|1:00\n")

    give_time(monkeypatch, watch, sleep=sleep)
    done = run("status", "job.yaml", "--watch")
    assert (done.code, done.err) == (0, "")
    told = [line.partition(" ")[2] for line in done.out.splitlines()]
    assert told[0] == "4711 PENDING (BeginTime)"
    assert told[1].startswith("build/checkpoints/gpt: stopped at step 100: ")
    assert told[2:4] == ["4711 RUNNING", "4711 COMPLETED"]
    assert told[4].startswith("build/checkpoints/gpt: done at step 300")


def test_a_second_submission_is_shown_beside_the_one_that_has_the_directory(
    run: Run, cluster: Cluster, launched: Path
) -> None:
    began(launched, "running slurm.4700.1 0", slurm_job="4700 1")
    cluster.has("4700 RUNNING", "4711 PENDING")
    outcome = run("status", "job.yaml")
    assert [line.split()[0] for line in outcome.out.splitlines()[1:3]] == ["4700", "4711"]
    assert "  running\n" in outcome.out  # the directory is the first one's


def test_what_was_submitted_by_hand_is_found_by_the_name_or_the_directory(
    run: Run, spec: Spec, cluster: Cluster, tmp_path: Path
) -> None:
    spec(SLURM)
    cluster.has("99 RUNNING")
    assert run("status", "job.yaml", "--target", "slurm").out.splitlines()[1].startswith("99 ")
    assert cluster.calls("squeue")[-1][1:3] == ["--me", "--name=gpt"]
    known = (cluster.state / "scontrol.99").read_text()
    cluster.answers("scontrol.99", f"{known}   StdOut={tmp_path / 'my log'}\n")
    (tmp_path / "my log").write_text("by hand\n")
    assert ddpgen("logs", "job.yaml", "--target", "slurm", cwd=tmp_path).stdout == "by hand\n"
    began(tmp_path / "build/checkpoints/gpt", "running slurm.98.0 0", slurm_job="98 0")
    run("status", "job.yaml", "--target", "slurm")
    assert cluster.calls("scontrol")[-1][-1] == "98"


def test_stop_asks_a_running_job_and_takes_a_waiting_one_out(
    run: Run, cluster: Cluster, launched: Path
) -> None:
    kept = began(launched, "running slurm.4711.0 0", slurm_job="4711 0")
    cluster.has("4711 RUNNING")
    asked = run("stop", "job.yaml")
    assert (asked.code, asked.err) == (0, "")
    assert "asked for a clean stop" in asked.out
    assert (kept / "stop").read_text() == ""
    assert cluster.calls("scancel") == []
    assert "  a stop has been asked for\n" in run("status", "job.yaml").out
    (kept / "stop").unlink()
    cluster.has("4711 PENDING")
    (cluster.state / "scancel.then").write_text('rm "$state/scontrol.4711"\n')
    assert run("stop", "job.yaml") == (0, "taken out of the queue: 4711\n", "")
    assert cluster.calls("scancel") == [["--state=PENDING", "4711"]]
    assert not (kept / "stop").exists()


def test_a_job_that_begins_while_it_is_taken_out_is_asked_to_stop(
    run: Run, cluster: Cluster, launched: Path
) -> None:
    kept = began(launched, "running slurm.4711.0 0")
    cluster.has("4711 PENDING")
    (cluster.state / "scancel.then").write_text(
        'sed -i "s/PENDING/RUNNING/" "$state/scontrol.4711"\n'
    )
    assert run("stop", "job.yaml").code == 0
    assert (kept / "stop").exists()


def test_stop_of_a_job_that_has_ended_or_whose_directory_cannot_be_seen(
    run: Run, cluster: Cluster, launched: Path
) -> None:
    cluster.has("4711 RUNNING")
    refused = run("stop", "job.yaml")
    assert (refused.code, refused.out) == (69, "")
    assert "can be seen, or kill the job: scancel 4711" in refused.err
    cluster.answers("scontrol.4711", FORGOTTEN)
    kept = began(launched, "done slurm.4711.0 300")
    cluster.answers("sacct", "0\n4711|COMPLETED|0:0|node1|0:10|1:00\n")
    nothing = run("stop", "job.yaml")
    assert (nothing.code, nothing.out.partition(":")[0]) == (0, "nothing to stop")
    assert not (kept / "stop").exists()


def test_a_controller_that_is_down_or_hangs_is_told_and_nothing_is_guessed(
    run: Run, cluster: Cluster, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    cluster.answers("scontrol", f"1\n{said}\n")
    assert run("status", "job.yaml") == (69, "", f"{said}\n")
    monkeypatch.setattr("ddpgen.monitor.places.Machine.run.__defaults__", (".", 0.5))
    (cluster.state / "scontrol.then").write_text("exec tail -f /dev/null\n")
    outcome = run("status", "job.yaml")
    assert outcome.code == 69
    assert "no answer within 0 s; is the cluster's controller up" in outcome.err


def test_logs_show_the_end_and_where_it_is(
    run: Run, cluster: Cluster, launched: Path, tmp_path: Path
) -> None:
    cluster.has("4711 PENDING Priority")
    missing = run("logs", "job.yaml")
    assert (missing.code, missing.out) == (66, "")
    assert "gpt-4711.log is not there yet: job 4711 is PENDING (Priority)" in missing.err
    (tmp_path / "build/logs/gpt-4711.log").write_text("one\ntwo\nthree\n")
    done = ddpgen("logs", "job.yaml", "-n", "2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "two\nthree\n")
    assert done.stderr == "+ tail -n 2 build/logs/gpt-4711.log\n"


# --- through a login node ---------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["", "login: me@gate, "])
def test_secrets_reach_sbatch_by_its_environment_alone(
    tier: str, run: Run, spec: Spec, cluster: Cluster, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cluster.root / "token"
    text = f"secrets: [A_TOKEN, B_TOKEN: 'file:{file}']\ntargets:\n  slurm: {{{tier}dir: ~/job}}\n"
    monkeypatch.delenv("A_TOKEN", raising=False)
    said = "the secret A_TOKEN is not in your environment, or is empty there; export it"
    refused = run("launch", spec(GPT + text), "--target", "slurm")
    assert (refused.code, said in refused.err, cluster.calls("sbatch")) == (69, True, [])
    monkeypatch.setenv("A_TOKEN", "it's 5ecret")
    for content, mode, word in (
        (None, 0, "cannot be read"), ("", 0o600, "is empty"), ("x\n", 0o640, "chmod 600"),
    ):  # fmt: skip
        if content is not None:
            file.write_text(content)
            file.chmod(mode)
        refused = run("launch", "job.yaml", "--target", "slurm")
        assert refused.code == 69
        assert word in refused.err
    assert cluster.calls("sbatch") == []
    file.write_text("f1le-secret\n")
    file.chmod(0o600)
    (cluster.state / "sbatch.then").write_text(f'printf %s "$A_TOKEN" >{cluster.root}/given\n')
    outcome = run("-v", "launch", "job.yaml", "--target", "slurm")
    assert outcome.code == 0, outcome.err
    assert (cluster.root / "given").read_text() == "it's 5ecret"
    (cluster.root / "given").unlink()
    file.unlink()
    assert "5ecret" not in outcome.err
    written = [path for path in cluster.root.rglob("*") if path.is_file()]
    assert not [path for path in written if b"5ecret" in path.read_bytes()]
    assert not [path for path in written if b"f1le-secret" in path.read_bytes()]


@pytest.mark.parametrize("tier", ["", "login: me@gate"])
def test_a_dry_run_shows_what_the_launch_then_does(
    tier: str, run: Run, spec: Spec, cluster: Cluster, gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("A_TOKEN", "5ecret")
    file = cluster.root / "token"
    file.write_text("x")
    file.chmod(0o600)
    spec(f"{GPT}secrets: [A_TOKEN, B: 'file:{file}']\ntargets:\n  slurm: {{{tier}}}\n")
    before = sorted(tmp_path.rglob("*"))
    shown = run("launch", "job.yaml", "--target", "slurm", "--dry-run", "--", "--steps=5", "a 'b")
    assert (shown.code, cluster.calls("sbatch")) == (0, []), shown.err
    assert sorted(tmp_path.rglob("*")) == before
    assert f"secret A_TOKEN: from your environment\nsecret B: from {file}\n" in shown.out
    assert "5ecret" not in shown.out + shown.err
    commands = [line for line in shown.out.splitlines() if line.startswith("+ ")]
    outcome = run("launch", "job.yaml", "--target", "slurm", "--", "--steps=5", "a 'b")
    assert commands == [line for line in outcome.err.splitlines() if line.startswith("+ ")]
    (copy,) = (tmp_path / "build/.submitted").iterdir()
    assert f"copy build/gpt to build/.submitted/{copy.name}\n" in shown.out
    sent = f"send build/.submitted/{copy.name} to me@gate:ddpgen/.submitted/{copy.name}\n"
    assert (sent in shown.out) == bool(tier)
    again = run("launch", "job.yaml", "--target", "slurm", "--dry-run", "--", "--steps=5", "a 'b")
    assert again.out == shown.out.replace("to be written", "as it is there")


def test_through_a_login_node_all_happens_there(
    run: Run, spec: Spec, cluster: Cluster, gate: Path
) -> None:
    outcome = run("launch", spec(LOGIN), "--target", "slurm", "--", "it's $HOME")
    assert (outcome.code, outcome.out) == (0, "4711\n"), outcome.err
    (copy,) = (gate / "my jobs" / ".submitted").iterdir()
    assert (copy / "slurm.sbatch").is_file()
    assert (copy / "train" / "__main__.py").is_file()
    assert (gate / "my jobs" / "logs").is_dir()
    assert cluster.calls("sbatch")[1] == [
        "--parsable", "--output=../../logs/%x-%j.log", "slurm.sbatch", "it's $HOME",
    ]  # fmt: skip
    assert (cluster.state / "sbatch.cwd").read_text() == f"{copy}\n"
    typed = next(line for line in outcome.err.splitlines() if "--parsable" in line)
    there = shlex.split(typed)[-1]
    assert there == (
        f"cd 'my jobs/.submitted/{copy.name}' && sbatch --parsable "
        "--output=../../logs/%x-%j.log slurm.sbatch 'it'\"'\"'s $HOME'"
    )
    kept = began(gate / "my jobs/checkpoints/gpt", "running slurm.4711.0 0", slurm_job="4711 0")
    cluster.has("4711 RUNNING")
    (gate / ".door").write_text("noisy")
    told = run("status", "job.yaml").out
    assert told.splitlines()[1].startswith("4711  RUNNING  ")
    assert "me@gate:my jobs/checkpoints/gpt:\n  running\n" in told
    assert told.endswith("log: me@gate:my jobs/logs/gpt-4711.log\n")
    assert run("stop", "job.yaml").code == 0
    assert (kept / "stop").exists()
    missing = run("logs", "job.yaml")
    assert missing.code == 66
    assert missing.err.endswith("gpt-4711.log is not there yet: job 4711 is RUNNING\n")
    (gate / "my jobs/logs/gpt-4711.log").write_text("one\ntwo\n")
    shown = run("logs", "job.yaml", "--lines=1")
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "two")
    assert shown.err == "me@gate:my jobs/logs/gpt-4711.log:\n"
    spec(SLURM)  # that record is another cluster's
    run("status", "job.yaml")
    assert cluster.calls("squeue")[-1][1:3] == ["--me", "--name=gpt"]


def test_a_log_followed_through_a_login_node_leaves_nothing_behind(
    run: Run, spec: Spec, cluster: Cluster, gate: Path, tmp_path: Path
) -> None:
    run("launch", spec(LOGIN), "--target", "slurm")
    log = gate / "my jobs/logs/gpt-4711.log"
    log.write_text("one\n")
    following = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "logs", "job.yaml", "--follow"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert following.stdout is not None
    assert following.stdout.readline() == "one\n"
    with open(log, "a") as file:
        file.write("two\n")
    assert following.stdout.readline() == "two\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(30) == 130
    shell = int((gate / ".sessions").read_text().split()[-1])
    deadline = time.monotonic() + 20
    while (left := _in_session(shell)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _in_session(leader: int) -> list[int]:
    """The processes that still live of what sshd started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] not in (b"Z", b"X"):
            found.append(int(process.name))
    return found


def test_a_login_node_that_lets_nobody_in_is_named_with_a_remedy(
    run: Run, spec: Spec, gate: Path
) -> None:
    spec(LOGIN)
    (gate / ".door").write_text("denied")
    for command in ("launch", "status", "stop", "logs"):
        outcome = run(command, "job.yaml", "--target", "slurm")
        assert (outcome.code, outcome.out) == (69, "")
        assert outcome.err.splitlines()[-1].startswith("me@gate: ")
        assert "install a key (ssh-copy-id me@gate)" in outcome.err


@pytest.mark.parametrize(("text", "where"), [(SLURM, "this machine"), (LOGIN, "me@gate")])
def test_where_there_is_no_sbatch_the_remedy_is_named(
    run: Run, spec: Spec, cluster: Cluster, gate: Path, monkeypatch: pytest.MonkeyPatch,
    text: str, where: str,
) -> None:  # fmt: skip
    tools = _without_slurm(cluster)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(gate))
    # A login shell is asked as well, and this one knows no more.
    (gate / ".bash_profile").write_text(f"PATH={tools}\n")
    outcome = run("launch", spec(text), "--target", "slurm")
    assert outcome.code == 69
    assert f"there is no sbatch on {where}; name the cluster's login node" in outcome.err


def _without_slurm(cluster: Cluster) -> Path:
    """A PATH with what the texts need, and no Slurm."""
    tools = cluster.root / "tools"
    tools.mkdir()
    for name in ("bash", "mkdir", "rsync", "cat", "tail", "tr", "grep", "date", "env"):
        places = (Path(place) / name for place in ("/usr/bin", "/bin"))
        (tools / name).symlink_to(next(path for path in places if path.exists()))
    return tools


def test_a_login_shell_may_know_where_sbatch_is(
    run: Run, spec: Spec, gate: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gate / ".bash_profile").write_text(f"echo hello\nPATH={cluster.bin}:$PATH\n")
    monkeypatch.setenv("PATH", str(_without_slurm(cluster)))
    outcome = run("launch", spec(LOGIN), "--target", "slurm")
    assert (outcome.code, outcome.out) == (0, "4711\n"), outcome.err


def test_a_task_and_a_log_are_found_in_what_scontrol_says() -> None:
    record = "JobId=12 ArrayJobId=11 ArrayTaskId=3 JobName=x ArrayTaskId=4\n   JobState=RUNNING\n"
    (job,) = slurm_jobs.from_scontrol(f"a note\n{record}   StdOut=/a b/c=d.log\n   Power=\n")
    assert (job.id, job.task, job.log) == ("11_3", "3", "/a b/c=d.log")
    (waiting,) = slurm_jobs.from_scontrol(
        "JobId=8 ArrayJobId=8 ArrayTaskId=1-3%2 JobName=gpt\n   JobState=PENDING\n"
    )
    assert (waiting.id, waiting.task, waiting.waiting) == ("8_1-3%2", "", True)


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (["59_0-7%2"], ["--state=PENDING", "59"]),
        (["59_3"], ["59_3"]),  # --state=PENDING would take all tasks that wait
        (["59_3", "60"], ["--state=PENDING", "59_3", "60"]),
    ],
)
def test_what_waits_is_named_to_scancel(waiting: list[str], words: list[str]) -> None:
    assert slurm_jobs.cancel_waiting(waiting, "") == ["scancel", *words]


def test_a_point_of_a_sweep_is_submitted_and_taken_out_alone(
    run: Run, spec: Spec, cluster: Cluster
) -> None:
    swept = spec(SLURM + "sweep: {train.seed: 0..2}\n")
    launched = run("launch", swept, "--target", "slurm", "--only", "seed=1")
    assert launched.code == 0, launched.err
    assert "--array=1" in cluster.calls("sbatch")[0]
    # Waiting tasks of an array share one record.
    shared = record("4711", "PENDING", ArrayJobId="4711", ArrayTaskId="1-2")
    cluster.answers("scontrol.4711_1", f"0\n{shared}")
    (cluster.state / "scancel.then").write_text('rm "$state/scontrol.4711_1"\n')
    assert run("stop", "job.yaml") == (0, "seed=1: taken out of the queue: 4711_1\n", "")
    assert cluster.calls("scancel") == [["4711_1"]]


def test_a_task_that_slurm_has_forgotten_is_not_an_error(
    run: Run, spec: Spec, cluster: Cluster
) -> None:
    run("launch", spec(SLURM + "sweep: {train.seed: 0..1}\n"), "--target", "slurm")
    cluster.answers("scontrol", "1\nJob 4711_0 not found\n")  # Slurm 22.05
    told = run("status", "job.yaml")
    assert told.code == 0, told.err
    assert "2 points: 2 not begun" in told.out


def test_every_state_is_known_once_and_the_runtime_agrees() -> None:
    groups = (slurm_jobs.WAITING, slurm_jobs.RUNNING, slurm_jobs.ENDED)
    assert sum(map(len, groups)) == len(frozenset().union(*groups)) == 29
    assert slurm_jobs.ENDED == job.OVER


def test_a_job_in_an_unknown_state_is_neither_over_nor_waited_for() -> None:
    job = slurm_jobs.QueuedJob("7", "NEWSTATE")
    assert (job.has_known_state, job.ended, job.live) == (False, False, False)
    lives = [slurm_jobs.QueuedJob("7", s).live for s in ("PENDING", "RUNNING", "LAUNCH_FAILED")]
    assert lives == [True, True, False]
