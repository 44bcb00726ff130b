"""launch, status, logs and stop of a job that SkyPilot manages; its program and the bucket are fakes.

The answers of the fake were taken from SkyPilot 0.14.1. test_monitor_states.py has the states themselves.
"""

from __future__ import annotations

import json
import os
import re
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

from ddpgen.tiers.sky import bucket, jobs, store
from tests.ddpgen.answers import answer, managed
from tests.ddpgen.conftest import GPT, ROOT, Run, ddpgen, progress
from tests.ddpgen.programs import Programs, remembered

SKY = GPT + "targets:\n  sky: {bucket: s3://ours, python: /opt/python}\n"
SECRET = (
    GPT
    + "targets:\n  sky: {bucket: s3://ours, python: /opt/python, secrets: [WANDB_API_KEY, HF_TOKEN]}\n"
)
LAUNCHED = """\
0
YAML to run: sky.yaml
\x1b[33mLaunching managed job 'gpt'...\x1b[0m
Managed Job ID: 7
├── To cancel the job:\t\t\x1b[1msky jobs cancel 7\x1b[0m
"""
DOWN = "1\nsky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server\n"
NO_CONTROLLER = "1\nsky.exceptions.ClusterNotUpError: No in-progress managed jobs.\n"
QUEUE = ["jobs", "queue", "--verbose", "--limit=300", "--output=json"]
CANCEL = ["jobs", "cancel", "--yes"]
BY_HAND = "create the object s3://ours/gpt/stop with the cloud's own tool"
NOT_READ = "s3://ours/gpt: not looked at: that takes pip install s3fs"

Spec = Callable[..., Path]


class Sky(Programs):
    """SkyPilot's program."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        super().__init__(root, monkeypatch, "sky")
        self.answers("version", "0\nskypilot, version 0.14.1\n")
        self.answers("launch", LAUNCHED)
        self.has()

    def has(self, *rows: dict[str, Any]) -> None:
        """These jobs are known."""
        self.answers("queue", answer(*rows))

    def asked(self, what: str) -> list[list[str]]:
        return [call for call in self.calls("sky") if call[1:2] == [what]]


class Objects:
    """A bucket as fsspec shows it: whole objects, and directories that are only in their names."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.fault: Exception | None = None

    def url_to_fs(self, url: str, **options: Any) -> tuple[Objects, str]:
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

    def began(self, status: str, ago_s: float = 20, place: str = "ours/gpt") -> None:
        """A training has left this there, and rank 0 has renewed its time stamp so long ago."""
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
        self.held[f"{place}/owner.json"] = json.dumps({"time": time.time() - ago_s}).encode()


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
    assert "\x1b[33mLaunching managed job 'gpt'...\x1b[0m\n" in outcome.err
    assert f"+ (cd build/.submitted/{copy.name} && sky jobs launch " in outcome.err
    assert outcome.err.splitlines()[-3:] == [
        f"next: ddpgen {command} build/gpt" for command in ("status", "logs --follow", "stop")
    ]
    known = {"tier": "sky", "job": "7", "cluster": "", "log": "", "login": ""}
    assert remembered(tmp_path, "sky") == known


def test_each_point_of_a_sweep_is_a_managed_job_with_a_name_of_its_own(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    spec(SKY + "sweep: {train.lr: [1e-2, 1e-3]}\n")
    outcome = run("launch", "job.yaml", "--target", "sky", "--", "--steps=5")
    assert (outcome.code, outcome.out) == (0, "7, 7\n"), outcome.err
    launches = [words for words in sky.calls("sky") if words[:2] == ["jobs", "launch"]]
    assert [words[4:6] for words in launches] == [
        [f"--name=gpt-lr-{rate}", f"--env=DDPGEN_ARGS=--point=lr={rate} --steps=5"]
        for rate in ("1e-2", "1e-3")
    ]
    record = json.loads((tmp_path / "build/gpt.launched.json").read_text())
    assert record["sky"]["points"] == {"lr=1e-2": "7", "lr=1e-3": "7"}
    one = run("launch", "job.yaml", "--target", "sky", "--only", "lr=.01")
    assert (one.code, one.out) == (0, "7\n"), one.err


def test_a_dry_run_shows_what_the_launch_then_does(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "5ecret")
    spec(SECRET)
    shown = run("launch", "job.yaml", "--target", "sky", "--dry-run", "--", "--steps=5")
    assert (shown.code, sky.calls("sky"), [*tmp_path.glob("build")]) == (0, [], []), shown.err
    assert "secret HF_TOKEN: from your environment\n" in shown.out
    assert "5ecret" not in shown.out + shown.err
    assert "look into s3://ours/gpt\n" in shown.out
    commands = [line[2:] for line in shown.out.splitlines() if line.startswith("+ ")]
    outcome = run("launch", "job.yaml", "--target", "sky", "--", "--steps=5")
    assert f"+ {commands.pop()}\n" in outcome.err
    assert [shlex.split(line)[1:] for line in commands] == sky.calls("sky")[:-1]


def test_a_gitignore_around_it_takes_nothing_out_of_what_is_sent(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    """SkyPilot asks git what to leave out of the working directory, unless there is a .skyignore."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=60)
    (tmp_path / ".gitignore").write_text("build/\n*.sh\n*.yaml\ntrain/\n")
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
    assert [line.split()[2] for line in outcome.err.splitlines()[1:]] == ["HF_TOKEN"]
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


def test_a_secret_in_a_file_gets_into_the_environment_of_skypilot(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("sh-from-a-file\n")
    text = SECRET.replace("WANDB_API_KEY, HF_TOKEN", f"HF_TOKEN: file:{file}")
    monkeypatch.setenv("HF_TOKEN", "stale")
    refused = run("launch", spec(text), "--target", "sky")
    assert refused.code == 69
    assert f"chmod 600 {file}" in refused.err
    file.chmod(0o600)
    (sky.state / "launch.then").write_text(f'printf %s "$HF_TOKEN" >{tmp_path}/given\n')
    outcome = run("launch", "job.yaml", "--target", "sky")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "given").read_text() == "sh-from-a-file"
    assert "sh-from-a-file" not in outcome.err + outcome.out + (sky.state / "calls").read_text()
    rendered = run("render", "job.yaml", "--target", "sky")
    next_line = (
        f'(cd build/gpt && HF_TOKEN="$(cat {file})" sky jobs launch --secret HF_TOKEN sky.yaml)'
    )
    assert f"next: {next_line}\n" in rendered.err


def test_arguments_that_would_fall_apart_on_the_way_are_refused(
    run: Run, spec: Spec, sky: Sky
) -> None:
    apart = ["a b", "", "--note=a\tb", "x\n"]
    outcome = run("launch", spec(SKY), "--target", "sky", "--", "--steps=5", *apart)
    assert outcome.code == 69
    refused = [line.partition(" cannot be handed")[0] for line in outcome.err.splitlines()[1:]]
    assert refused == [repr(argument) for argument in apart]
    assert sky.calls("sky") == []


@pytest.mark.parametrize("missing", [True, False])
def test_without_an_answer_of_skypilot_nothing_is_guessed(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    spec(SKY)
    sky.answers("queue", DOWN)
    if missing:
        (sky.bin / "sky").unlink()
        monkeypatch.setenv("PATH", str(sky.bin))
    for command in (["launch"], ["status"], ["logs"], ["stop"], ["stop", "--now"]):
        refused = run(*command, "job.yaml", "--target=sky")
        assert (refused.code, refused.out) == (69, "")
        told = "install it: python3 -m venv" if missing else "output=json: ApiServerConnectionError"
        assert told in refused.err
        assert (NOT_READ in refused.err) == (command[0] in ("status", "stop"))
        assert (BY_HAND in refused.err) == (command[0] == "stop")
    assert sky.asked("launch") + sky.asked("cancel") == []


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
    assert broken.code == 69
    assert "DDPGEN_SKY: No closing quotation" in broken.err


def test_a_skypilot_that_was_never_tried_is_refused_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky
) -> None:
    sky.answers("version", "0\nskypilot, version 0.13.2\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert outcome.code == 69
    assert "'skypilot, version 0.13.2', and ddpgen is for SkyPilot 0.14; " in outcome.err
    assert sky.calls("sky") == [["--version"]]
    assert jobs.is_supported("skypilot, version 0.14.3\n")
    others = ("1.0.0.dev20261101", "0.140.1")
    strange = [f"skypilot, version {other}" for other in others] + ["sky, version 0.14.1", ""]
    assert not any(map(jobs.is_supported, strange))
    broken = "Traceback (most …):\nModuleNotFoundError: no\n"
    assert jobs.complaint(broken) == "ModuleNotFoundError: no"


@pytest.mark.parametrize(
    ("queue", "code", "told"),
    [
        (answer(managed(9, "RECOVERING"), managed(8, "FAILED"), managed(6, "RUNNING"), managed(5, "RUNNING", job_name="x")),
         69, "6 (running), 9 (recovering); ddpgen stop ends it cleanly, sky jobs cancel --yes 6 9"),
        (NO_CONTROLLER, 0, "next:"),
    ],
)  # fmt: skip
def test_a_job_of_the_same_name_that_lives_is_in_the_way(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path, queue: str, code: int, told: str
) -> None:
    sky.answers("queue", queue)
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert outcome.code == code
    assert told in outcome.err
    assert (sky.asked("launch") == []) is (code == 69)
    assert (tmp_path / "build" / "gpt.launched.json").exists() is (code == 0)


@pytest.mark.slow
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
    assert "sky jobs queue tells" in err
    assert not Path("/proc", number).exists()
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_a_launch_that_tells_no_id_is_shown_as_it_is(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    for code, said in ((1, "sky.exceptions.NotSupportedError: no."), (0, "Jobs submitted: 7-9.")):
        sky.answers("launch", f"{code}\nYAML to run: sky.yaml\n{said}\n")
        outcome = run("launch", spec(SKY), "--target", "sky")
        assert (outcome.code, outcome.out) == (69, "")
        assert f"{said}\nSkyPilot has named no job" in outcome.err
    assert not (tmp_path / "build" / "gpt.launched.json").exists()
    quiet = run("launch", "job.yaml", "--target", "sky", "--quiet")
    assert (quiet.code, quiet.err) == (69, outcome.err[outcome.err.index("YAML to run") :])


def test_a_quiet_launch_prints_the_id_alone(run: Run, spec: Spec, sky: Sky) -> None:
    assert run("launch", spec(SKY), "--target", "sky", "--quiet") == (0, "7\n", "")


# --- status -----------------------------------------------------------------------------------------


def test_status_of_a_running_job(run: Run, launched: Sky, objects: Objects) -> None:
    launched.has(managed(7, "RUNNING"))
    objects.began("running sky.a.1 0", ago_s=270)
    outcome = run("status", "job.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[1].split()[:2] == ["7", "running"]
    assert lines[2:5] == [
        "s3://ours/gpt:",
        "  running",
        "  step:              120 of 400, 5 min ago",
    ]
    assert "  newest checkpoint: step 100" in lines  # step 150 is half there
    assert lines[-1] == "  last sign of life 4 min ago"
    assert launched.calls("sky") == [QUEUE]


def test_a_program_that_hangs_is_given_up(
    run: Run, launched: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpgen.tiers.sky.skypilot.ANSWER_S", 0.5)
    (launched.state / "queue.then").write_text("exec tail -f /dev/null\n")
    outcome = run("status", "job.yaml")
    assert outcome.code == 69
    assert "no answer within 0 s" in outcome.err


def test_the_bucket_is_where_the_spec_says(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    spec(SKY.replace("s3://ours", "{url: s3://ours, prefix: some/where}"))
    sky.has(managed(7, "RUNNING"))
    objects.began("running sky.a.1 0", place="ours/some/where")
    assert "s3://ours/some/where:\n  running\n" in run("status", "job.yaml", "--target=sky").out
    spec(GPT + 'checkpoint: {dir: "gs://theirs/place/"}\ntargets:\n  sky: {}\n')
    assert run("stop", "job.yaml", "--target=sky").code == 0
    assert objects.held["theirs/place/stop"] == b"ddpgen stop\n"


GONE, FOREIGN = (
    "The specified bucket does not exist",
    "Forbidden: b/ours me@theirs does not have access",
)


@pytest.mark.parametrize(
    ("fault", "said", "refused"),
    [
        (PermissionError("Access Denied"), "Access Denied", True),
        (FileNotFoundError(GONE), GONE, True),
        (OSError(FOREIGN.replace(" me@", "\nme@")), FOREIGN, True),
        (OSError("Forbidden: Anonymous caller"), "Forbidden: Anonymous caller", False),
        (PermissionError(13, "Denied", "/etc/x"), "[Errno 13] Denied: '/etc/x'", False),
        (RuntimeError("no\ncredentials"), "RuntimeError: no credentials", False),
        (TimeoutError(), "TimeoutError", False),
    ],
)
def test_a_bucket_that_says_no_is_told_from_one_that_cannot_be_reached(
    sky: Sky, objects: Objects, fault: Exception, said: str, refused: bool
) -> None:
    """What cannot be looked into from here is left to the machines."""
    objects.fault = fault
    at = bucket.Address("s3://ours/gpt")
    assert store.refusal(at) == (said if refused else "")
    with pytest.raises(store.UnreachableError, match=f"^{re.escape(said)}$"):
        store.read_facts(at)


def test_a_bucket_that_says_no_is_told_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    objects.fault = PermissionError("Access Denied")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, sky.asked("launch")) == (69, [])
    assert "s3://ours/gpt: Access Denied; the bucket has to exist" in outcome.err
    sky.has(managed(7, "RUNNING"))
    told = run("status", "job.yaml", "--target=sky").out
    assert told.endswith("s3://ours/gpt: not looked at: Access Denied\n")
    objects.fault = RuntimeError("no credentials")
    assert "(running)" in run("launch", "job.yaml", "--target=sky").err
    sky.has()
    assert run("launch", "job.yaml", "--target", "sky").code == 0


def test_a_bucket_behind_a_silent_network_is_given_up(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched.has(managed(7, "RUNNING"))
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
        ("RUNNING", [], "asked for a clean stop", 0, True),
        ("RUNNING", ["--now"], "7: cancelled; what it did", 1, False),
        ("PENDING", [], "cancelled while it was queued", 1, False),
        ("RECOVERING", [], "cancelled while it was recovering", 1, False),
        ("CANCELLING", [], "being cancelled already", 0, False),
        ("SUCCEEDED", [], "nothing to stop: 7 (done)", 0, False),
        ("FAILED_SETUP", ["--now"], "nothing to stop: 7 (failed setup)", 0, False),
    ],
)  # fmt: skip
def test_what_runs_is_asked_through_the_bucket_and_what_waits_is_cancelled(
    run: Run, launched: Sky, objects: Objects, state: str, options: list[str], said: str,
    cancelled: int, asked: bool,
) -> None:  # fmt: skip
    launched.has(managed(7, state))
    outcome = run("stop", "job.yaml", *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert said in outcome.out
    assert launched.calls("sky") == [QUEUE, *[[*CANCEL, "7"]] * cancelled]
    assert objects.held == ({"ours/gpt/stop": b"ddpgen stop\n"} if asked else {})


def test_every_job_of_the_name_that_lives_is_stopped(run: Run, launched: Sky) -> None:
    other = managed(5, "RUNNING", job_name="x")
    launched.has(managed(9, "RECOVERING"), managed(8, "FAILED"), managed(7, "RUNNING"), other)
    assert run("stop", "job.yaml", "--now").code == 0
    assert launched.asked("cancel") == [[*CANCEL, "7"], [*CANCEL, "9"]]


def test_a_stop_that_cannot_be_asked_for_is_told_with_the_remedies(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe_file(*_: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(objects, "pipe_file", pipe_file)
    objects.began("running sky.a.1 0")
    launched.has()
    unseen = run("stop", "job.yaml")
    launched.has(managed(7, "RUNNING"))
    seen = run("stop", "job.yaml")
    for refused in (unseen, seen):
        assert (refused.code, refused.out) == (69, "")
        assert "cannot be written from here: Access Denied" in refused.err
        assert BY_HAND in refused.err
    assert "sky jobs cancel" not in unseen.err
    assert seen.err.endswith("sky jobs cancel --yes 7\n")
    launched.answers("cancel", DOWN)
    refused = run("stop", "job.yaml", "--now")
    assert (refused.code, refused.out) == (69, "")
    assert "sky jobs cancel --yes 7: ApiServerConnectionError" in refused.err


def test_what_another_skypilot_runs_is_seen_in_the_bucket_and_stopped_there(
    run: Run, launched: Sky, objects: Objects
) -> None:
    objects.began("running sky.a.1 0")
    outcome = run("status", "job.yaml")
    assert (outcome.code, outcome.out.splitlines()[:2]) == (
        0,
        ["SkyPilot does not show job 7 any more", "s3://ours/gpt:"],
    )
    at_once = run("stop", "job.yaml", "--now")
    assert (at_once.code, at_once.out) == (69, "")
    assert "--now cannot cancel" in at_once.err
    assert "ours/gpt/stop" not in objects.held
    assert run("stop", "job.yaml").code == 0
    assert objects.held["ours/gpt/stop"] == b"ddpgen stop\n"
    assert launched.asked("cancel") == []
    assert "a stop has been asked for" in run("status", "job.yaml").out


def test_without_skypilot_the_bucket_says_how_it_stands_and_takes_the_stop(
    run: Run, launched: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launched.bin / "sky").unlink()
    monkeypatch.setenv("PATH", str(launched.bin))
    objects.began("running sky.a.1 0", ago_s=3 * 3600)
    outcome = run("status", "job.yaml")
    assert outcome.code == 0
    assert outcome.out.startswith("cannot start sky: ")
    assert outcome.out.endswith("  last sign of life 3 h ago\n")
    assert run("stop", "job.yaml").code == 0
    assert "ours/gpt/stop" in objects.held


# --- the bucket -------------------------------------------------------------------------------------


R2 = {"profile": "r2", "endpoint_url": "https://me.r2.cloudflarestorage.com"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me.blob.core.windows.net/box/some/gpt", ("abfs://box/some/gpt", {"account_name": "me"}, "adlfs")),
        ("gs://ours/gpt", ("gs://ours/gpt", {}, "gcsfs")),
        ("r2://ours/gpt", ("s3://ours/gpt", R2, "s3fs")),
        ("vastdata://ours/gpt", ("s3://ours/gpt", {"profile": "vastdata"}, "s3fs")),
        ("oci://ours/gpt", None),
    ],
)  # fmt: skip
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
    sky.has(managed(7, "RUNNING"))
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
    launched.has(managed(7, "RUNNING"), managed(6, "FAILED"))
    launched.answers("logs", "100\n(gpt, pid=1) step 3\n")
    done = ddpgen("logs", "job.yaml", *options, cwd=launched.root)
    assert (done.returncode, done.stdout) == (100, "(gpt, pid=1) step 3\n")
    assert done.stderr == f"+ sky jobs logs {' '.join(words)} 7\n"
    assert launched.calls("sky") == [QUEUE, ["jobs", "logs", *words, "7"]]


def test_a_job_that_was_launched_by_hand_is_found_by_its_name(
    run: Run, spec: Spec, sky: Sky
) -> None:
    spec(SKY)
    assert "no job called gpt" in run("status", "job.yaml", "--target=sky").out
    unknown = run("logs", "job.yaml", "--target=sky")
    assert (unknown.code, unknown.out) == (66, "")
    assert "no job called gpt" in unknown.err
    sky.has(managed(4, "RUNNING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[1].split()[0] == "4"
