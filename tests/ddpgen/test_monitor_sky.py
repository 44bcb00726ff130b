"""launch, status, logs and stop of a job that SkyPilot manages; its program and the bucket are fakes.

What the fake answers was taken from SkyPilot 0.14.1.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpgen.cli.shared import find_run
from ddpgen.tiers import commands
from ddpgen.tiers.sky import bucket, jobs, store
from tests.ddpgen.conftest import GPT, ROOT, Run, ddpgen, progress
from tests.ddpgen.programs import Programs, remembered

SKY = GPT + "targets:\n  sky: {bucket: s3://ours}\n"
SECRET = GPT + "targets:\n  sky: {bucket: s3://ours, secrets: [WANDB_API_KEY, HF_TOKEN]}\n"
LAUNCHED = """\
0
YAML to run: sky.yaml
\x1b[33mLaunching managed job 'gpt'...\x1b[0m

📋 Useful Commands
Managed Job ID: 7
├── To cancel the job:\t\t\x1b[1msky jobs cancel 7\x1b[0m
├── To stream job logs:\t\t\x1b[1msky jobs logs 7\x1b[0m
├── To stream controller logs:\t\x1b[1msky jobs logs --controller 7\x1b[0m
└── To view all managed jobs:\t\x1b[1msky jobs queue\x1b[0m
"""
SERVER_STARTS = (
    "\x1b[2mFailed to connect to SkyPilot API server at http://127.0.0.1:46580. Starting a local "
    "server.\x1b[0m\n\x1b[0m\x1b[32m✓ SkyPilot API server started. \x1b[0m\x1b[0m\n"
)
DOWN = (
    "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server at "
    "http://127.0.0.1:9. Please ensure that the server is running."
)
NO_CONTROLLER = "sky.exceptions.ClusterNotUpError: No in-progress managed jobs."
QUEUE = ["jobs", "queue", "--verbose", "--limit=300", "--output=json"]
CANCEL = ["jobs", "cancel", "--yes"]
BY_HAND = "create the object s3://ours/gpt/stop with the cloud's own tool (docs/sky.md)"
INSTALL = (
    "python3 -m venv ~/skypilot && ~/skypilot/bin/pip install 'skypilot[aws]==0.14.*', then "
    "DDPGEN_SKY=~/skypilot/bin/sky, or have it on PATH"
)
NOT_SHOWN = "SkyPilot does not show job 7 any more"
CONTROLLER_DOWN = (
    "SkyPilot's controller of jobs is not up, so none of its jobs runs; how the last ones ended: sky jobs "
    "queue --refresh"
)
NOT_READ = "s3://ours/gpt: not looked at: that takes pip install s3fs"
CODES = (
    "Job exited with exit code{} (user program failure). To see the details, run: sky jobs logs 7"
)

Spec = Callable[..., Path]


def row(number: int, status: str, **more: Any) -> dict[str, Any]:
    """What `sky jobs queue --verbose --output json` tells of a job, as far as it is read."""
    return {
        "job_id": number, "task_id": 0, "job_name": "gpt", "job_duration": 0.0, "status": status,
        "resources": "1x[CPU:1]", "cluster_resources": "-", "infra": "-", "recovery_count": 0,
        "details": None, "failure_reason": None, "submitted_at": 1795298075.585699, **more,
    }  # fmt: skip


class Sky(Programs):
    """SkyPilot's program."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        super().__init__(root, monkeypatch, "sky")
        self.answers("version", "0\nskypilot, version 0.14.1\n")
        self.answers("launch", LAUNCHED)
        self.has()

    def has(self, *rows: dict[str, Any], before: str = "") -> None:
        """These jobs are known."""
        self.answers("queue", f"0\n{before}{json.dumps(rows, indent=2)}\n")

    def asked(self, what: str) -> list[list[str]]:
        return [call for call in self.calls("sky") if call[1:2] == [what]]


class Objects:
    """A bucket as fsspec shows it: whole objects, and directories that are only in their names."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.opened: list[tuple[str, dict[str, Any]]] = []
        self.fault: Exception | None = None

    def url_to_fs(self, url: str, **options: Any) -> tuple[Objects, str]:
        self.opened.append((url, options))
        return self, url.partition("://")[2]

    def ls(self, path: str, detail: bool) -> list[str]:
        assert not detail
        if self.fault is not None:
            raise self.fault
        below = [name[len(path) + 1 :] for name in self.held if name.startswith(f"{path}/")]
        if not below:
            raise FileNotFoundError(path)
        return sorted({f"{path}/{name.partition('/')[0]}" for name in below})

    def exists(self, path: str) -> bool:
        return path in self.held

    def cat_file(self, path: str) -> bytes:
        if path not in self.held:
            raise FileNotFoundError(path)
        return self.held[path]

    def pipe_file(self, path: str, content: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.held[path] = content

    def began(self, place: str, status: str) -> None:
        """What a training has left there."""
        self.held[f"{place}/status"] = f"{status}\n".encode()
        for step in (50, 100):
            self.held[f"{place}/step-{step:09}/checkpoint.json"] = b"{}"
        self.held[f"{place}/step-000000150/model.pt"] = b"half"
        last, attempt = time.time() - 330, status.split()[1]
        steps = [
            {"kind": "step", "step": step, "attempt": attempt, "loss": 2.5, "time": last + (step - 120) / 2}
            for step in range(101, 121)
        ]  # fmt: skip
        self.held[f"{place}/progress.json"] = progress(steps, last_step=400).encode()


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sky:
    monkeypatch.delenv("DDPGEN_SKY", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    return Sky(tmp_path, monkeypatch)


@pytest.fixture
def objects(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """fsspec is installed, and reaches the bucket."""
    made = Objects()
    core = SimpleNamespace(url_to_fs=made.url_to_fs)
    monkeypatch.setitem(sys.modules, "fsspec", SimpleNamespace(core=core))
    return made


@pytest.fixture
def launched(run: Run, spec: Spec, sky: Sky) -> Sky:
    """Job 7 was launched from here."""
    assert run("launch", spec(SKY), "--target", "sky").code == 0
    sky.forget_calls()
    return sky


# --- launch -----------------------------------------------------------------------------------------


def test_launch_hands_over_a_copy_and_says_what_to_type_next(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    outcome = run("launch", spec(SKY), "--target", "sky", "--", "--steps=5", "--preflight")
    (copy,) = (tmp_path / "build" / ".submitted").iterdir()
    assert (outcome.code, outcome.out) == (0, "7\n"), outcome.err
    arguments = "--env=DDPGEN_ARGS=--steps=5 --preflight"
    words = ["jobs", "launch", "--yes", "--detach-run", "--name=gpt", arguments, "sky.yaml"]
    assert sky.calls("sky") == [["--version"], QUEUE, words]
    assert (sky.state / "launch.cwd").read_text() == f"{copy}\n"
    assert (copy / "sky.yaml").read_bytes() == (tmp_path / "build/gpt/sky.yaml").read_bytes()
    said = outcome.err.splitlines()
    assert said[1:4] == [
        (
            f"+ (cd build/.submitted/{copy.name} && sky jobs launch --yes --detach-run --name=gpt "
            "'--env=DDPGEN_ARGS=--steps=5 --preflight' sky.yaml)"
        ),
        "YAML to run: sky.yaml",
        "\x1b[33mLaunching managed job 'gpt'...\x1b[0m",
    ]
    assert said[-3:] == [
        f"next: ddpgen {command} {tmp_path / 'job.yaml'}"
        for command in ("status", "logs --follow", "stop")
    ]
    assert remembered(tmp_path, "sky") == {
        "tier": "sky",
        "job": "7",
        "cluster": "",
        "log": "",
        "login": "",
    }


@pytest.mark.parametrize("pattern", ["build/", "*.sh", "*.yaml", "train/"])
def test_a_gitignore_around_it_takes_nothing_out_of_what_is_sent(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, pattern: str
) -> None:
    """SkyPilot asks git what to leave out of the working directory, unless there is a .skyignore."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=60)
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    assert run("launch", spec(SKY), "--target", "sky").code == 0
    there = Path((sky.state / "launch.cwd").read_text().strip())
    kept = (there / ".skyignore").read_text()
    assert all(line.startswith("#") for line in kept.splitlines())
    assert json.loads((there / "bundle.json").read_text())["files"][".skyignore"]


def test_secrets_are_named_and_their_values_stay_where_they_are(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    monkeypatch.setenv("HF_TOKEN", "")
    outcome = run("launch", spec(SECRET), "--target", "sky")
    assert outcome.code == 69
    assert outcome.err.splitlines()[1:] == [
        "HF_TOKEN is not in your environment; export it, or take it out of targets.sky.secrets"
    ]
    assert sky.calls("sky") == []
    monkeypatch.setenv("HF_TOKEN", "hush")
    again = run("launch", "job.yaml", "--target", "sky")
    assert again.code == 0, again.err
    (words,) = sky.asked("launch")
    assert words[5:7] == ["--secret=WANDB_API_KEY", "--secret=HF_TOKEN"]
    assert "hush" not in again.err + again.out + (sky.state / "calls").read_text()
    written = [path for path in (tmp_path / "build").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"hush" in path.read_bytes()]


@pytest.mark.parametrize("argument", ["a b", "", "--note=a\tb", "x\n"])
def test_arguments_that_would_fall_apart_on_the_way_are_refused(
    run: Run, spec: Spec, sky: Sky, argument: str
) -> None:
    outcome = run("launch", spec(SKY), "--target", "sky", "--", "--steps=5", argument)
    assert outcome.code == 69
    assert outcome.err.splitlines()[1:] == [
        (
            f"{argument!r} cannot be handed to the machines: one word without spaces each; write it into "
            "the spec"
        )
    ]
    assert sky.calls("sky") == []


def test_without_skypilot_the_remedy_is_named(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(SKY)
    (sky.bin / "sky").unlink()
    monkeypatch.setenv("PATH", str(sky.bin))
    missing = f"cannot start sky: No such file or directory; {INSTALL}"
    launch = run("launch", "job.yaml", "--target=sky")
    assert (launch.code, launch.err.splitlines()[-1]) == (69, missing)
    assert run("status", "job.yaml") == (69, "", f"{missing}\n{NOT_READ}\n")
    assert run("logs", "job.yaml") == (69, "", f"{missing}\n")


def test_skypilot_in_an_environment_of_its_own_is_named_by_a_variable(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = sky.root / "it's aside" / "bin"
    aside.parent.mkdir()
    sky.bin.rename(aside)
    (aside.parent / "answers").symlink_to(sky.state)
    monkeypatch.setenv("HOME", str(sky.root))
    monkeypatch.setenv("DDPGEN_SKY", '"~/it\'s aside/bin/sky"')
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (0, "7\n"), outcome.err
    monkeypatch.setenv("DDPGEN_SKY", "'oops")
    broken = run("launch", "job.yaml", "--target", "sky")
    told = "DDPGEN_SKY: No closing quotation; write it as for a shell"
    assert (broken.code, broken.err.splitlines()[-1]) == (69, told)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("0\nskypilot, version 0.13.2\n", "'skypilot, version 0.13.2'"),
        ("0\nskypilot, version 1.0.0.dev20261101\n", "'skypilot, version 1.0.0.dev20261101'"),
        ("0\nskypilot, version 0.140.1\n", "'skypilot, version 0.140.1'"),
        ("0\nsky, version 0.14.1 (a game)\n", "'sky, version 0.14.1 (a game)'"),
        ("1\nTraceback (most …):\nModuleNotFoundError: no\n", "'ModuleNotFoundError: no'"),
        ("0\n", "'it said nothing'"),
    ],
)
def test_a_skypilot_that_was_never_tried_is_refused_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky, answer: str, told: str
) -> None:
    sky.answers("version", answer)
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        f"sky --version says {told}, and ddpgen is for SkyPilot 0.14; {INSTALL}",
    )
    assert sky.calls("sky") == [["--version"]]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            [row(9, "RECOVERING"), row(8, "FAILED"), row(6, "RUNNING"), row(5, "RUNNING", job_name="x")],
            ("there is a job called gpt already: 6 (running), 9 (recovering); ddpgen stop ends it "
             "cleanly, sky jobs cancel --yes 6 9 at once"),
        ),
        (
            f"1\n{DOWN}\n\nThe above exception was the direct cause of …:\n\n{DOWN}\n",
            f"{shlex.join(['sky', *QUEUE])}: {DOWN.removeprefix('sky.exceptions.')}",
        ),
    ],
)  # fmt: skip
def test_a_job_of_the_same_name_or_a_server_that_is_down_is_in_the_way(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, answer: str | list[dict[str, Any]], told: str
) -> None:
    sky.answers("queue", answer if isinstance(answer, str) else f"0\n{json.dumps(answer)}\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (69, told)
    assert sky.asked("launch") == []
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_a_launch_is_seen_while_it_runs_and_leaves_no_program_when_it_is_interrupted(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    spec(SKY)
    (sky.state / "launch.then").write_text('echo "pid $$" >&2\nexec tail -f /dev/null\n')
    launching = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "launch", "job.yaml", "--target=sky"], text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert launching.stderr is not None
        number = next(line for line in launching.stderr if line.startswith("pid ")).split()[1]
        launching.send_signal(signal.SIGINT)
        out, err = launching.communicate(timeout=60)
    finally:
        launching.kill()
        launching.communicate()
    assert (launching.returncode, out) == (130, "")
    assert list(filter(None, err.splitlines())) == [
        "whether it was launched all the same, sky jobs queue tells",
        "aborted",
    ]
    assert not Path("/proc", number).exists()
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_where_no_controller_is_up_there_is_no_job_in_the_way(
    run: Run, spec: Spec, sky: Sky
) -> None:
    sky.answers("queue", f"1\n{NO_CONTROLLER}\n")
    assert run("launch", spec(SKY), "--target", "sky").code == 0


@pytest.mark.parametrize(
    "answer",
    [
        "1\nYAML to run: sky.yaml\nsky.exceptions.NotSupportedError: no cloud storage is available.\n",
        "0\nYAML to run: sky.yaml\nJobs submitted with IDs: 7-9.\n",
    ],
)
def test_a_launch_that_tells_no_id_is_shown_as_it_is(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, answer: str
) -> None:
    sky.answers("launch", answer)
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (69, "")
    assert outcome.err.endswith(
        f"\n{answer[2:]}SkyPilot has named no job that it launched, see above; sky jobs queue tells what "
        "there is\n"
    )
    assert not (tmp_path / "build" / "gpt.launched.json").exists()
    quiet = run("launch", "job.yaml", "--target", "sky", "--quiet")
    assert (quiet.code, quiet.err) == (69, outcome.err[outcome.err.index(answer[2:]) :])


def test_a_quiet_launch_prints_the_id_alone(run: Run, spec: Spec, sky: Sky) -> None:
    assert run("launch", spec(SKY), "--target", "sky", "--quiet") == (0, "7\n", "")


# --- status -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (row(7, "PENDING", details="Waiting for other jobs to launch"),
         ["job  state   machines   why", "7    queued  1x[CPU:1]  Waiting for other jobs to launch"]),
        (row(7, "STARTING"), ["job  state     machines", "7    starting  1x[CPU:1]"]),
        (row(7, "RUNNING", recovery_count=2, job_duration=3723.4, infra="AWS (us-east-1a)",
             cluster_resources="2x[A100:8][Spot]"),
         ["job  state    came back  where             machines          ran",
          "7    running  2 times    AWS (us-east-1a)  2x[A100:8][Spot]  1:02:03"]),
        (row(7, "RECOVERING", recovery_count=1, details="Recovering: Cluster\n preempted or failed"),
         ["job  state       came back  machines   why",
          "7    recovering  once       1x[CPU:1]  Cluster preempted or failed"]),
        (row(7, "SUCCEEDED"), ["job  state  machines", "7    done   1x[CPU:1]"]),
        (row(7, "CANCELLED", details="Cancellation requested by user me (request ID: 1)"),
         ["job  state      machines   why",
          "7    cancelled  1x[CPU:1]  Cancellation requested by user me (request ID: 1)"]),
        (row(7, "FAILED", details=f"Failure: {CODES.format('s [1, 130]')}"),
         ["job  state    machines   why", "7    stopped  1x[CPU:1]  by the user"]),
        (row(7, "FAILED", failure_reason=CODES.format(" 69")),
         ["job  state   machines   why",
          f"7    failed  1x[CPU:1]  it could not start: {CODES.format(' 69')}"]),
        (row(7, "FAILED", details=f"Failure: {CODES.format(' 1')}"),
         ["job  state   machines   why", f"7    failed  1x[CPU:1]  {CODES.format(' 1')}"]),
        (row(7, "FAILED_NO_RESOURCE"),
         ["job  state               machines", "7    failed no resource  1x[CPU:1]"]),
        (row(7, "SOME_NEW_STATE"), ["job  state           machines", "7    some new state  1x[CPU:1]"]),
    ],
)  # fmt: skip
def test_status_says_a_state_in_words(
    run: Run, launched: Sky, told: dict[str, Any], lines: list[str]
) -> None:
    launched.has(told)
    outcome = run("status", "job.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [*lines, NOT_READ]
    assert launched.calls("sky") == [QUEUE]


def test_what_skypilot_says_before_its_answer_is_passed_over(run: Run, launched: Sky) -> None:
    launched.has(row(7, "RUNNING"), before=f"{SERVER_STARTS}[WARN] a line with a bracket\n")
    assert run("status", "job.yaml").out.splitlines()[1].split() == ["7", "running", "1x[CPU:1]"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (f"1\n{DOWN}\n", DOWN.removeprefix("sky.exceptions.")),
        ("0\nFetching managed job statuses...\nManaged jobs\n", "Managed jobs"),
        ("2\nError: No such option: --output\n", "Error: No such option: --output"),
        ('0\n["a", {}]\n', '["a", {}]'),
        ('0\n[{"job_id": 7,\n', '[{"job_id": 7,'),
        ("0\n", "it said nothing"),
    ],
)
def test_an_answer_that_is_none_is_told_and_nothing_is_guessed(
    run: Run, launched: Sky, answer: str, told: str
) -> None:
    launched.answers("queue", answer)
    said = f"{shlex.join(['sky', *QUEUE])}: {told}\n"
    assert run("status", "job.yaml") == (69, "", f"{said}{NOT_READ}\n")
    assert run("logs", "job.yaml") == (69, "", said)
    unseen = f"{said}{NOT_READ}\nfor a clean stop, if it runs, {BY_HAND}\n"
    assert run("stop", "job.yaml") == (69, "", unseen)
    assert run("stop", "job.yaml", "--now") == (69, "", unseen)


def test_a_program_that_hangs_is_given_up(
    run: Run, launched: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpgen.tiers.sky.skypilot.ANSWER_S", 0.5)
    (launched.state / "queue.then").write_text("exec tail -f /dev/null\n")
    outcome = run("status", "job.yaml")
    assert outcome.code == 69
    assert "no answer within 0 s; is SkyPilot's server up?" in outcome.err


def test_a_controller_that_sleeps_has_no_job(run: Run, launched: Sky) -> None:
    launched.answers("queue", f"1\n{NO_CONTROLLER}\n")
    assert run("status", "job.yaml").out.splitlines() == [CONTROLLER_DOWN, NOT_READ]
    unseen = f"{CONTROLLER_DOWN}\n{NOT_READ}\nfor a clean stop, if it runs, {BY_HAND}\n"
    assert run("stop", "job.yaml") == (69, "", unseen)
    assert run("stop", "job.yaml", "--now") == (69, "", unseen)


def test_of_the_jobs_of_this_name_those_that_live_are_meant(
    run: Run, launched: Sky, objects: Objects
) -> None:
    def shown() -> list[list[str]]:
        lines = run("status", "job.yaml").out.splitlines()
        return [line.split()[:2] for line in lines[1 : lines.index("s3://ours/gpt:")]]

    other = row(5, "RUNNING", job_name="x")
    launched.has(row(9, "RECOVERING"), row(8, "FAILED"), row(7, "RUNNING"), other)
    assert shown() == [["7", "running"], ["9", "recovering"]]
    assert run("stop", "job.yaml", "--now").out.splitlines() == [
        "7: cancelled; what it did since its newest checkpoint may be lost",
        "9: cancelled while it was recovering: nothing more is lost by that",
    ]
    assert launched.asked("cancel") == [[*CANCEL, "7"], [*CANCEL, "9"]]
    launched.has(row(8, "FAILED"), row(7, "SUCCEEDED"), other)
    assert shown() == [["7", "done"]]  # the one launched from here
    launched.has(row(7, "RUNNING", job_name="another"), row(3, "SUCCEEDED"), row(2, "FAILED"))
    assert shown() == [["3", "done"]]  # another server numbers its jobs anew
    launched.has(row(7, "RUNNING", job_name="another"))
    assert run("stop", "job.yaml", "--now").out == f"nothing to stop: {NOT_SHOWN}\n"
    assert len(launched.asked("cancel")) == 2


def test_status_reads_the_bucket_where_that_is_possible(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    spec(SKY.replace("s3://ours", "{url: s3://ours, prefix: some/where}"))
    sky.has(row(7, "RUNNING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[2:] == [
        "s3://ours/some/where:",
        "  the checkpoint directory is not there yet",
    ]
    objects.began("ours/some/where", "running sky.a.1 0")
    objects.held["ours/some/where/owner.json"] = json.dumps({"time": time.time() - 270}).encode()
    lines = run("status", "job.yaml", "--target=sky").out.splitlines()
    assert lines[2:] == [
        "s3://ours/some/where:",
        "  running",
        "  step:              120 of 400, 5 min ago",
        "  loss:              2.5000",
        "  speed:             2 steps/s",
        "  time left:         2:20",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
        "  last sign of life 4 min ago",
    ]
    sky.has(row(7, "RECOVERING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[3:] == [
        "  it was running when it was killed",
        "  step:              120 of 400",
        "  loss:              2.5000",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
        "  last sign of life 4 min ago",
    ]
    objects.began("ours/some/where", "stopped sky.a.1 130 user: ddpgen stop")
    objects.held["ours/some/where/stop"] = b"by hand\n"
    sky.has(row(7, "FAILED", details=f"Failure: {CODES.format(' 130')}"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[1:] == [
        "7    stopped  1x[CPU:1]  by the user",
        "s3://ours/some/where:",
        "  stopped at step 130: user: ddpgen stop",
        "  step:              130 of 400",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
    ]


@pytest.mark.parametrize(
    ("fault", "said", "refused"),
    [
        (PermissionError("Access Denied"), "Access Denied", True),
        (
            FileNotFoundError("The specified bucket does not exist"),
            "The specified bucket does not exist",
            True,
        ),
        (
            OSError("Forbidden: b/ours\nme@theirs does not have access"),
            "Forbidden: b/ours me@theirs does not have access",
            True,
        ),
        (OSError("Forbidden: Anonymous caller"), "Forbidden: Anonymous caller", False),
        (PermissionError(13, "Denied", "/etc/x"), "[Errno 13] Denied: '/etc/x'", False),
        (RuntimeError("no\ncredentials"), "RuntimeError: no credentials", False),
        (TimeoutError(), "TimeoutError", False),
    ],
)
def test_a_bucket_that_says_no_is_told_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky, objects: Objects, fault: Exception, said: str, refused: bool
) -> None:
    """What cannot be looked into from here is left to the machines."""
    objects.fault = fault
    outcome = run("launch", spec(SKY), "--target", "sky")
    remedy = "the bucket has to exist, and whoever launches to be allowed to list, read, write and"
    told = f"s3://ours/gpt: {said}; {remedy} delete there\n"
    assert (outcome.code, outcome.out) == ((69, "") if refused else (0, "7\n"))
    assert outcome.err.endswith(told) is refused
    assert (sky.asked("launch") == []) is refused
    sky.has(row(7, "RUNNING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[2:] == [
        f"s3://ours/gpt: not looked at: {said}"
    ]


def test_a_bucket_behind_a_silent_network_is_given_up(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched.has(row(7, "RUNNING"))
    monkeypatch.setattr(store, "ANSWER_S", 0.3)
    never = threading.Event()
    monkeypatch.setattr(objects, "ls", lambda *_, **__: never.wait())
    assert run("status", "job.yaml").out.splitlines()[2] == (
        "s3://ours/gpt: not looked at: no answer within 0 s"
    )
    never.set()


# --- stop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "options", "said", "cancelled", "asked"),
    [
        ("RUNNING", [], "7: asked for a clean stop, which it sees within some 10 s", 0, True),
        ("RUNNING", ["--now"], "7: cancelled; what it did since its newest checkpoint may be lost", 1, False),
        ("PENDING", [], "7: cancelled while it was queued: nothing more is lost by that", 1, False),
        ("RECOVERING", [], "7: cancelled while it was recovering: nothing more is lost by that", 1, False),
        ("CANCELLING", [], "7: it is being cancelled already", 0, False),
        ("SUCCEEDED", [], "nothing to stop: 7 (done)", 0, False),
        ("FAILED_SETUP", ["--now"], "nothing to stop: 7 (failed setup)", 0, False),
    ],
)  # fmt: skip
def test_what_runs_is_asked_through_the_bucket_and_what_waits_is_cancelled(
    run: Run, launched: Sky, objects: Objects, state: str, options: list[str], said: str,
    cancelled: int, asked: bool,
) -> None:  # fmt: skip
    launched.has(row(7, state))
    assert run("stop", "job.yaml", *options) == (0, f"{said}\n", "")
    assert launched.calls("sky") == [QUEUE, *[[*CANCEL, "7"]] * cancelled]
    assert objects.held == ({"ours/gpt/stop": b"ddpgen stop\n"} if asked else {})
    objects.began("ours/gpt", "running sky.a.1 0")
    assert ("  a stop has been asked for" in run("status", "job.yaml").out) is asked


def test_a_stop_that_cannot_be_asked_for_is_told_with_the_remedies(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe_file(*_: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(objects, "pipe_file", pipe_file)
    stamped(objects, 20)
    told = (
        f"s3://ours/gpt cannot be written from here: Access Denied\nfor a clean stop, {BY_HAND}\n"
    )
    at_once = "at once, without a checkpoint: sky jobs cancel --yes 7\n"
    launched.has()
    assert run("stop", "job.yaml") == (69, "", told)
    launched.has(row(7, "RUNNING"))
    assert run("stop", "job.yaml") == (69, "", told + at_once)
    launched.answers("cancel", f"1\n{DOWN}\n")
    refused = f"sky jobs cancel --yes 7: {DOWN.removeprefix('sky.exceptions.')}\n"
    assert run("stop", "job.yaml", "--now") == (69, "", refused)


def test_a_stop_at_once_is_no_business_of_the_other_tiers(run: Run, spec: Spec) -> None:
    outcome = run("stop", spec(), "--now")
    assert outcome.code == 1
    assert outcome.err == "--now is for sky; on local: press Ctrl-C twice where it runs\n"


# --- what this SkyPilot does not know ---------------------------------------------------------------

STRANGER = "something runs there that this SkyPilot does not know"
ASKED = "s3://ours/gpt: asked for a clean stop, which it sees within some 10 s"
LATER = "s3://ours/gpt: asked for a clean stop: should it come back, it ends at once"


def stamped(objects: Objects, ago_s: float, status: str = "running sky.a.1 0") -> None:
    """Rank 0 has renewed its time stamp so long ago."""
    objects.began("ours/gpt", status)
    owner = {"time": time.time() - ago_s}
    objects.held["ours/gpt/owner.json"] = json.dumps(owner).encode()


@pytest.mark.parametrize(
    ("answer", "known"), [("0\n[]\n", NOT_SHOWN), (f"1\n{NO_CONTROLLER}\n", CONTROLLER_DOWN)]
)
def test_what_another_skypilot_runs_is_seen_in_the_bucket_and_stopped_there(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch, answer: str,
    known: str,
) -> None:  # fmt: skip
    stamped(objects, 20)
    now = time.time()
    # It is told to the second, and these commands may take some.
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: now))
    launched.answers("queue", answer)
    assert run("status", "job.yaml").out.splitlines() == [
        known,
        "s3://ours/gpt:",
        "  running",
        "  step:              120 of 400, 5 min ago",
        "  loss:              2.5000",
        "  speed:             2 steps/s",
        "  time left:         2:20",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/gpt/step-000000100/model.pt",
        "  last sign of life 20 s ago",
        f"  {STRANGER}",
    ]
    at_once = run("stop", "job.yaml", "--now")
    assert at_once.code == 69
    assert at_once.err == (
        f"{known}\ns3://ours/gpt: it may run there, and --now cannot cancel what this SkyPilot does not "
        "know; ddpgen stop without it asks for a clean stop\n"
    )
    assert "ours/gpt/stop" not in objects.held
    assert run("stop", "job.yaml") == (0, f"{known}\n{ASKED}\n", "")
    assert objects.held["ours/gpt/stop"] == b"ddpgen stop\n"
    assert launched.asked("cancel") == []


@pytest.mark.parametrize(
    ("rows", "status", "ago_s", "told"),
    [
        ([row(7, "CANCELLED")], "running sky.a.1 0", 20, f"7 (cancelled)\n{ASKED}"),
        # Killed with its machines, and SkyPilot says that it does not come back.
        ([row(7, "CANCELLED")], "running sky.a.1 0", 600, "nothing to stop: 7 (cancelled)"),
        ([], "running sky.a.1 0", 600, f"{NOT_SHOWN}\n{LATER}"),
        ([], "stopped sky.a.1 9 preempted: by AWS", 600, f"{NOT_SHOWN}\n{LATER}"),
        ([], "stopped sky.a.1 9 signal: TERM", 600, f"{NOT_SHOWN}\n{LATER}"),
        ([], "done sky.a.1 300", 600, f"nothing to stop: {NOT_SHOWN}"),
        ([], "stopped sky.a.1 130 user: ddpgen stop", 600, f"nothing to stop: {NOT_SHOWN}"),
        ([], "", 600, f"nothing to stop: {NOT_SHOWN}"),
    ],
)
def test_the_bucket_decides_where_skypilot_knows_of_none_that_lives(
    run: Run, launched: Sky, objects: Objects, rows: list[dict[str, Any]], status: str, ago_s: float,
    told: str,
) -> None:  # fmt: skip
    launched.has(*rows)
    if status:
        stamped(objects, ago_s, status)
    following = find_run("job.yaml", "sky", None)
    ended = told.startswith("nothing to stop") and bool(status)
    assert commands.status(following).over is ended
    assert run("stop", "job.yaml") == (0, f"{told}\n", "")
    assert ("ours/gpt/stop" in objects.held) is not told.startswith("nothing to stop")


def test_without_skypilot_the_bucket_says_how_it_stands_and_takes_the_stop(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launched.bin / "sky").unlink()
    monkeypatch.setenv("PATH", str(launched.bin))
    stamped(objects, 3 * 3600)
    outcome = run("status", "job.yaml")
    assert outcome.code == 0
    first, *lines = outcome.out.splitlines()
    assert first.startswith("cannot start sky: ")
    assert lines[:2] == ["s3://ours/gpt:", "  running"]
    assert lines[-1] == "  last sign of life 3 h ago"
    stopped = run("stop", "job.yaml")
    assert (stopped.code, stopped.out.splitlines()[1:]) == (0, [LATER])
    objects.began("ours/gpt", "done sky.a.1 300")
    ended = run("stop", "job.yaml")
    assert (ended.code, ended.err.splitlines()[1:]) == (
        69,
        ["nothing runs that could be asked; what waits only SkyPilot can cancel"],
    )


# --- the bucket -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://me.blob.core.windows.net/box/some/gpt",
            ("abfs://box/some/gpt", {"account_name": "me"}, "adlfs"),
        ),
        ("gs://ours/gpt", ("gs://ours/gpt", {}, "gcsfs")),
        (
            "r2://ours/gpt",
            (
                "s3://ours/gpt",
                {"profile": "r2", "endpoint_url": "https://me.r2.cloudflarestorage.com"},
                "s3fs",
            ),
        ),
        ("vastdata://ours/gpt", ("s3://ours/gpt", {"profile": "vastdata"}, "s3fs")),
        ("oci://ours/gpt", None),
    ],
)
def test_fsspec_is_asked_in_its_own_terms(url: str, expected: object) -> None:
    assert bucket.Address(url).fsspec("me") == expected


CLOUD = "env: {AWS_ENDPOINT_URL: 'http://minio:9000', AWS_REGION: eu-1, AWS_CONFIG_FILE: /there, HOME: /no}\n"


@pytest.mark.parametrize(
    ("url", "added"),
    [
        ("s3://ours", {"AWS_ENDPOINT_URL": "http://minio:9000"}),
        # What SkyPilot has everybody set up for a relative of S3.
        ("r2://ours", {"AWS_SHARED_CREDENTIALS_FILE": "~/.cloudflare/r2.credentials"}),
    ],
)
def test_the_spec_and_skypilot_say_how_the_bucket_is_reached_unless_the_user_does(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch, url: str,
    added: dict[str, str],
) -> None:  # fmt: skip
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "mine")
    monkeypatch.setenv("HOME", str(sky.root))
    spec(f"{GPT}{CLOUD}targets:\n  sky: {{bucket: {url}}}\n")
    sky.has(row(7, "RUNNING"))
    account = sky.root / ".cloudflare" / "accountid"
    if url.startswith("r2"):
        told = run("status", "job.yaml", "--target=sky").out
        assert "not looked at: ~/.cloudflare/accountid: No such file or directory; " in told
        account.parent.mkdir()
        account.write_text("me\n")
        (account.parent / "r2.credentials").touch()
    before, during = dict(os.environ), dict[str, str]()

    def ls(path: str, detail: bool) -> list[str]:
        during.update(os.environ)
        return []

    monkeypatch.setattr(objects, "ls", ls)
    assert run("status", "job.yaml", "--target=sky").code == 0
    assert {name: value for name, value in during.items() if before.get(name) != value} == added
    assert dict(os.environ) == before


def test_checkpoints_at_a_url_of_their_own_are_found_there(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    spec(GPT + 'checkpoint: {dir: "gs://theirs/place/"}\ntargets:\n  sky: {}\n')
    sky.has(row(7, "RUNNING"))
    assert run("stop", "job.yaml", "--target=sky").code == 0
    assert objects.held == {"theirs/place/stop": b"ddpgen stop\n"}


# --- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["--no-follow", "--tail=100"]),
        (("--follow", "-n0"), ["--follow", "--tail=1"]),  # of SkyPilot's 0 all would come
    ],
)
def test_logs_are_skypilots_own(
    run: Run, launched: Sky, options: tuple[str, ...], words: list[str]
) -> None:
    launched.has(row(7, "RUNNING"), row(6, "FAILED"))
    launched.answers("logs", "100\n(gpt, pid=1) step 3\n")
    done = ddpgen("logs", "job.yaml", *options, cwd=launched.root)
    assert (done.returncode, done.stdout) == (100, "(gpt, pid=1) step 3\n")
    assert done.stderr == f"+ sky jobs logs {' '.join(words)} 7\n"
    assert launched.calls("sky") == [QUEUE, ["jobs", "logs", *words, "7"]]


def test_a_job_that_was_launched_by_hand_is_found_by_its_name(
    run: Run, spec: Spec, sky: Sky
) -> None:
    spec(SKY)
    unknown = "SkyPilot knows no job called gpt\n"
    assert run("status", "job.yaml", "--target=sky").out.startswith(unknown)
    assert run("logs", "job.yaml", "--target=sky") == (1, "", unknown)
    sky.has(row(4, "RUNNING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[1].split()[0] == "4"


# --- formats ----------------------------------------------------------------------------------------


def test_a_row_with_anything_in_it_does_no_harm() -> None:
    strange = {
        "job_id": 1,
        "status": None,
        "job_duration": "long",
        "details": "a\x1b[1mb\x1b[0m\x1b]0;x\x07\u202e",
    }
    said = json.dumps([strange, {"job_id": "2"}, {}])
    assert jobs.from_queue(said) == [jobs.Managed("1", "", "", why=r"ab\x1b]0;x\x07\u202e")]
    assert jobs.from_queue("[" * 100_000) is None
    assert jobs.from_queue("[]\nbye\n") == []
