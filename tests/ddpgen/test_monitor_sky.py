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

from ddpgen.monitor import bucket, managed, store
from tests.ddpgen.conftest import GPT, ROOT, Run

HERE = Path(__file__).parent
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
OTHER = (
    "sky --version: this is no SkyPilot: {}; name SkyPilot's own program in DDPGEN_SKY, as "
    "~/skypilot/bin/sky"
)
BY_HAND = "echo by hand | aws s3 cp - s3://ours/gpt/stop"

Spec = Callable[..., Path]


def row(number: int, status: str, **more: Any) -> dict[str, Any]:
    """One job as `sky jobs queue --verbose --output json` tells of it."""
    return {
        "task_job_id": None,
        "job_id": number,
        "task_id": 0,
        "job_name": "gpt",
        "task_name": "gpt",
        "job_duration": 0.0,
        "workspace": "default",
        "status": status,
        "schedule_state": "ALIVE",
        "resources": "1x[CPU:1]",
        "cluster_resources": "-",
        "infra": "-",
        "recovery_count": 0,
        "details": None,
        "failure_reason": None,
        "submitted_at": 1795298075.585699,
        "metadata": {},
        **more,
    }


class Sky:
    """SkyPilot's program on PATH, and what it answers."""

    def __init__(self, root: Path):
        self.root, self.state, self.bin = root, root / "sky", root / "bin"
        self.state.mkdir()
        self.bin.mkdir()
        self.program = self.bin / "sky"
        self.program.symlink_to(HERE / "fake_sky.sh")
        self.answers("version", "0\nskypilot, version 0.14.1\n")
        self.answers("launch", LAUNCHED)
        self.has()

    def answers(self, name: str, text: str) -> None:
        (self.state / name).write_text(text)

    def has(self, *rows: dict[str, Any], before: str = "") -> None:
        """These jobs are known."""
        self.answers("queue", f"0\n{before}{json.dumps(rows, indent=2)}\n")

    def calls(self) -> list[list[str]]:
        path = self.state / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [shlex.split(line)[1:] for line in lines]

    def asked(self, what: str) -> list[list[str]]:
        return [call for call in self.calls() if call[1:2] == [what]]


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

    def size(self, path: str) -> int:
        return len(self.held[path])

    def cat_file(self, path: str, start: int = 0) -> bytes:
        return self.held[path][start:]

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
        for first in (1, 51, 101):
            lines = [
                json.dumps({"kind": "step", "step": step, "loss": 2.5, "time": time.time() - 330})
                for step in range(first, first + 20)
            ]
            text = "\n".join([*lines, '{"kind": "eval"}', ""])
            self.held[f"{place}/metrics/{first}-{first + 19}.jsonl"] = text.encode()


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sky:
    made = Sky(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    monkeypatch.delenv("DDPGEN_SKY", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    return made


@pytest.fixture
def objects(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """fsspec is installed, and reaches the bucket."""
    made = Objects()
    core = SimpleNamespace(url_to_fs=made.url_to_fs)
    monkeypatch.setitem(sys.modules, "fsspec", SimpleNamespace(core=core))
    return made


def remembered(root: Path) -> dict[str, str]:
    found = json.loads((root / "build" / "gpt.launched.json").read_text())
    launched: dict[str, str] = found["sky"]
    assert launched.pop("time")
    return launched


def becoming(*words: str) -> subprocess.CompletedProcess[str]:
    """A command that becomes another program."""
    return subprocess.run(
        [sys.executable, "-m", "ddpgen", *words], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


# --- launch -----------------------------------------------------------------------------------------


def test_launch_hands_over_a_copy_and_says_what_to_type_next(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    outcome = run("launch", spec(SKY), "--target", "sky", "--", "--steps=5", "--preflight")
    (copy,) = (tmp_path / "build" / ".submitted").iterdir()
    assert (outcome.code, outcome.out) == (0, "7\n"), outcome.err
    arguments = "--env=DDPGEN_ARGS=--steps=5 --preflight"
    words = ["jobs", "launch", "--yes", "--detach-run", "--name=gpt", arguments, "sky.yaml"]
    assert sky.calls() == [["--version"], QUEUE, words]
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
    assert remembered(tmp_path) == {
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


def test_what_skypilot_says_is_seen_while_it_says_it(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    spec(SKY)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (sky.state / "launch.then").write_text(
        f'echo "a machine for the controller" >&2\ncat "{gate}"\n'
    )
    launching = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "launch", "job.yaml", "--target=sky"], text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert launching.stderr is not None
        lines = iter(launching.stderr.readline, "")
        assert "a machine for the controller\n" in lines  # and the launch is not over
        gate.write_text("")
        out, _ = launching.communicate(timeout=60)
    finally:
        launching.kill()
        launching.communicate()
    assert (launching.returncode, out) == (0, "7\n")


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
    assert sky.calls() == []
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
    assert sky.calls() == []


def test_without_skypilot_the_remedy_is_named(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(SKY)
    sky.program.unlink()
    monkeypatch.setenv("PATH", str(sky.bin))
    missing = (
        "there is no sky on this machine; python3 -m venv ~/skypilot && ~/skypilot/bin/pip install "
        "'skypilot[aws]>=0.14,<0.15', then DDPGEN_SKY=~/skypilot/bin/sky, or have it on PATH"
    )
    launch = run("launch", "job.yaml", "--target=sky")
    assert (launch.code, launch.err.splitlines()[-1]) == (69, missing)
    assert run("status", "job.yaml") == (69, "", f"{missing}\n{NOT_READ}\n")


def test_skypilot_in_an_environment_of_its_own_is_named_by_a_variable(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = sky.root / "it's aside" / "bin"
    aside.parent.mkdir()
    sky.bin.rename(aside)
    (aside.parent / "sky").symlink_to(sky.state)
    monkeypatch.setenv("HOME", str(sky.root))
    monkeypatch.setenv("DDPGEN_SKY", '"~/it\'s aside/bin/sky"')
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (0, "7\n"), outcome.err
    monkeypatch.setenv("DDPGEN_SKY", "'oops")
    broken = run("status", "job.yaml")
    assert (broken.code, broken.err) == (
        69,
        f"DDPGEN_SKY: No closing quotation; write it as for a shell\n{NOT_READ}\n",
    )


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ("", "that is a directory"),
        ("/bin/sky", "there is no such program"),
        ("/job.yaml", "Permission denied"),
    ],
)
def test_a_variable_that_names_no_program_is_told_without_a_second_installation(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch, named: str, what: str
) -> None:
    spec(SKY)
    sky.program.unlink()
    monkeypatch.setenv("DDPGEN_SKY", f"{sky.root}{named}")
    outcome = run("launch", "job.yaml", "--target=sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        (
            f"DDPGEN_SKY names {sky.root}{named}: {what}; name SkyPilot's program, as "
            "~/skypilot/bin/sky"
        ),
    )


def test_another_program_of_that_name_is_told_whatever_it_is_asked(
    run: Run, spec: Spec, sky: Sky
) -> None:
    launched(run, spec, sky)
    sky.answers("version", "0\nsky 3 (a game)\n")
    sky.answers("queue", "2\nno such level: jobs\n")
    assert run("logs", "job.yaml") == (
        69,
        "",
        (f"{OTHER.format('sky 3 (a game)')}\n"),
    )


@pytest.mark.parametrize("version", ["0.13.2", "0.15.0", "1.0.0.dev20261101", "0.1.14"])
def test_a_skypilot_that_was_never_tried_is_refused_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky, version: str
) -> None:
    sky.answers("version", f"0\nskypilot, version {version}\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    have = version.removesuffix(".dev20261101")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        (
            f"this is SkyPilot {have}, and ddpgen is for 0.14; python3 -m venv ~/skypilot && "
            "~/skypilot/bin/pip install 'skypilot[aws]>=0.14,<0.15', then "
            "DDPGEN_SKY=~/skypilot/bin/sky, or have it on PATH"
        ),
    )
    assert sky.calls() == [["--version"]]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            "1\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'sky'\n",
            "sky --version does not work: ModuleNotFoundError: No module named 'sky'",
        ),
        ("0\nsky, version 0.14.1 (a game)\n", OTHER.format("sky, version 0.14.1 (a game)")),
        ("0\n", OTHER.format("it said nothing")),
    ],
)
def test_a_sky_that_does_not_work_is_told(
    run: Run, spec: Spec, sky: Sky, answer: str, told: str
) -> None:
    sky.answers("version", answer)
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (69, told)


def test_a_job_of_the_same_name_that_lives_is_in_the_way(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    sky.has(
        row(9, "RECOVERING"), row(8, "FAILED"), row(6, "RUNNING"), row(5, "RUNNING", job_name="x")
    )
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        (
            "there is a job called gpt already: 9 (recovering), 6 (running); ddpgen stop ends it cleanly, "
            "sky jobs cancel --yes 9 6 at once"
        ),
    )
    assert sky.asked("launch") == []
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_a_job_that_is_being_cancelled_is_waited_for(run: Run, spec: Spec, sky: Sky) -> None:
    sky.has(row(9, "CANCELLING"))
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        "there is a job called gpt already: 9 (being cancelled); launch again when it is gone",
    )
    assert sky.asked("launch") == []


def test_a_launch_that_is_interrupted_leaves_no_program_and_no_doubt_unsaid(
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
        begun = next(line for line in launching.stderr if line.startswith("pid "))
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
    assert not Path("/proc", begun.split()[1]).exists()
    assert not (tmp_path / "build" / "gpt.launched.json").exists()


def test_where_no_controller_is_up_there_is_no_job_in_the_way(
    run: Run, spec: Spec, sky: Sky
) -> None:
    sky.answers("queue", f"1\n{NO_CONTROLLER}\n")
    assert run("launch", spec(SKY), "--target", "sky").code == 0


def test_a_server_that_is_down_is_told_and_nothing_is_launched(
    run: Run, spec: Spec, sky: Sky
) -> None:
    sky.answers("queue", f"1\n{DOWN}\n\nThe above exception was the direct cause of …:\n\n{DOWN}\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    told = DOWN.removeprefix("sky.exceptions.")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        f"SkyPilot does not say which jobs there are: {told}",
    )
    assert sky.asked("launch") == []


def test_a_refusal_of_skypilot_is_shown_as_it_is(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    said = (
        "sky.exceptions.NotSupportedError: Cloud-based file_mounts are specified, but no cloud storage "
        "is available. Please specify local file_mounts only."
    )
    sky.answers("launch", f"1\nYAML to run: sky.yaml\n{said}\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (69, "")
    assert outcome.err.endswith(f"\n{said}\nSkyPilot has not launched the job, see above\n")
    assert sorted(os.listdir(tmp_path / "build")) == ["gpt"]  # no copy that nobody needs


def test_a_refused_launch_leaves_the_copies_of_others(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    launched(run, spec, sky)
    sky.answers("launch", "1\nsky.exceptions.NotSupportedError: no\n")
    assert run("launch", "job.yaml", "--target", "sky").code == 69
    assert len(os.listdir(tmp_path / "build" / ".submitted")) == 1  # the same one
    spec(SKY.replace("steps: 300", "steps: 301"))
    assert run("launch", "job.yaml", "--target", "sky").code == 69
    (copy,) = (tmp_path / "build" / ".submitted").iterdir()
    assert "steps=300" in (copy / "sky.yaml").read_text()


def test_a_launch_that_lost_its_server_on_the_way_keeps_what_that_may_go_on_with(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    sky.answers("launch", f"1\n{DOWN}\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        (
            "SkyPilot has not launched the job, see above; whether it was launched all the same, sky jobs "
            "queue tells"
        ),
    )
    assert len(os.listdir(tmp_path / "build" / ".submitted")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        FileNotFoundError("The specified bucket does not exist"),
        PermissionError("Access Denied"),
        OSError("Forbidden: b/ours\nme@theirs does not have storage.objects.list access"),
    ],
)
def test_a_bucket_that_says_no_is_told_before_anything_is_paid_for(
    run: Run, spec: Spec, sky: Sky, objects: Objects, tmp_path: Path, fault: Exception
) -> None:
    objects.fault = fault
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        69,
        (
            f"s3://ours/gpt: {' '.join(str(fault).split())}; the bucket has to exist, and whoever "
            "launches to be allowed to list, read, write and delete there"
        ),
    )
    assert sky.asked("launch") == []
    assert not (tmp_path / "build" / ".submitted").exists()


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("Unable to locate credentials"),
        PermissionError(13, "Permission denied", "/etc/credentials"),
        OSError("Forbidden: b/ours\nAnonymous caller does not have storage.objects.list access"),
        TimeoutError(),
    ],
)
def test_a_bucket_that_cannot_be_looked_into_is_left_to_the_machines(
    run: Run, spec: Spec, sky: Sky, objects: Objects, fault: Exception
) -> None:
    objects.fault = fault
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (0, "7\n")
    assert "ours" not in outcome.err


def test_a_silent_bucket_holds_no_launch_up(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHORT_S", 0.3)
    never = threading.Event()
    monkeypatch.setattr(objects, "ls", lambda *_, **__: never.wait())
    assert run("launch", spec(SKY), "--target", "sky").out == "7\n"
    never.set()


def test_a_launch_that_tells_no_id_is_not_taken_for_one(run: Run, spec: Spec, sky: Sky) -> None:
    sky.answers("launch", "0\nYAML to run: sky.yaml\nJobs submitted with IDs: 7-9.\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert (outcome.code, outcome.out) == (69, "")
    assert outcome.err.endswith("\nSkyPilot did not say the job's id; sky jobs queue may\n")


def test_a_launch_that_hangs_says_how_to_find_out_what_became_of_it(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpgen.monitor.skypilot._LAUNCH_S", 0.5)
    (sky.state / "launch.then").write_text("exec tail -f /dev/null\n")
    outcome = run("launch", spec(SKY), "--target", "sky")
    assert outcome.code == 69
    assert outcome.err.splitlines()[-2:] == [
        (
            "sky jobs launch --yes --detach-run --name=gpt sky.yaml: no answer within 0 s; is SkyPilot's "
            "server up? sky api info tells"
        ),
        "whether it was launched all the same, sky jobs queue tells",
    ]


# --- status -----------------------------------------------------------------------------------------


def launched(run: Run, spec: Spec, sky: Sky, text: str = SKY) -> None:
    """Job 7 was launched from here."""
    assert run("launch", spec(text), "--target", "sky").code == 0
    (sky.state / "calls").unlink()


NOT_READ = "s3://ours/gpt: not looked at: that takes pip install s3fs"
CODES = (
    "Job exited with exit code{} (user program failure). To see the details, run: sky jobs logs 7"
)


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (row(7, "PENDING", details="Waiting for other jobs to launch"),
         ["job  state   machines   why", "7    queued  1x[CPU:1]  Waiting for other jobs to launch"]),
        (row(7, "STARTING"), ["job  state     machines", "7    starting  1x[CPU:1]"]),
        (row(7, "RUNNING", recovery_count=2, job_duration=3723.9, infra="AWS (us-east-1a)",
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
         ["job  state                machines", "7    failed: no machines  1x[CPU:1]"]),
        (row(7, "SOME_NEW_STATE"), ["job  state           machines", "7    some new state  1x[CPU:1]"]),
    ],
)  # fmt: skip
def test_status_says_a_state_in_words(
    run: Run, spec: Spec, sky: Sky, told: dict[str, Any], lines: list[str]
) -> None:
    launched(run, spec, sky)
    sky.has(told)
    outcome = run("status", "job.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [*lines, NOT_READ]
    assert sky.calls() == [QUEUE]


def test_what_skypilot_says_before_its_answer_is_passed_over(
    run: Run, spec: Spec, sky: Sky
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"), before=f"{SERVER_STARTS}[WARN] a line with a bracket\n")
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
    run: Run, spec: Spec, sky: Sky, answer: str, told: str
) -> None:
    launched(run, spec, sky)
    sky.answers("queue", answer)
    said = f"{shlex.join(['sky', *QUEUE])}: {told}\n"
    assert run("status", "job.yaml") == (69, "", f"{said}{NOT_READ}\n")
    assert run("logs", "job.yaml") == (69, "", said)
    by_hand = f"a clean stop takes no SkyPilot: {BY_HAND}\n"
    assert run("stop", "job.yaml") == (69, "", f"{said}{NOT_READ}\n{by_hand}")
    nothing = "so nothing can be cancelled from here\n"
    assert run("stop", "job.yaml", "--now") == (69, "", said + nothing + by_hand)


def test_a_program_that_hangs_is_given_up(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(run, spec, sky)
    monkeypatch.setattr("ddpgen.monitor.skypilot.ask.__defaults__", (0.5,))
    (sky.state / "queue.then").write_text("exec tail -f /dev/null\n")
    outcome = run("status", "job.yaml")
    assert outcome.code == 69
    assert "no answer within 0 s; is SkyPilot's server up?" in outcome.err


def test_a_controller_that_sleeps_has_no_job(run: Run, spec: Spec, sky: Sky) -> None:
    launched(run, spec, sky)
    sky.answers("queue", f"1\n{NO_CONTROLLER}\n")
    assert run("status", "job.yaml").out.splitlines() == [
        "SkyPilot's controller of jobs is not up, so none of its jobs runs",
        "how the last ones ended: sky jobs queue --refresh",
        NOT_READ,
    ]
    unseen = f"SkyPilot does not show job 7 any more\nwhether it runs elsewhere: {NOT_READ}\n"
    by_hand = f"for a clean stop, if it runs: {BY_HAND}\n"
    assert run("stop", "job.yaml") == (69, "", unseen + by_hand)
    cannot = "--now cannot cancel what this SkyPilot does not know\n"
    assert run("stop", "job.yaml", "--now") == (69, "", unseen + cannot + by_hand)


def test_two_jobs_of_one_name_are_both_shown_and_another_servers_is_not_taken_for_ours(
    run: Run, spec: Spec, sky: Sky
) -> None:
    launched(run, spec, sky)
    sky.has(
        row(9, "RUNNING"), row(8, "FAILED"), row(7, "SUCCEEDED"), row(5, "RUNNING", job_name="x")
    )
    assert [line.split()[:2] for line in run("status", "job.yaml").out.splitlines()[1:-1]] == [
        ["9", "running"],
        ["7", "done"],
    ]
    sky.has(row(7, "RUNNING", job_name="another"), row(3, "SUCCEEDED"), row(2, "FAILED"))
    assert [line.split()[:2] for line in run("status", "job.yaml").out.splitlines()[1:-1]] == [
        ["3", "done"]
    ]
    sky.has(row(7, "RUNNING", job_name="another"))
    assert run("stop", "job.yaml", "--now").code == 69
    assert sky.asked("cancel") == []


def test_a_job_that_was_launched_by_hand_is_found_by_its_name(
    run: Run, spec: Spec, sky: Sky
) -> None:
    spec(SKY)
    sky.has()
    unknown = run("status", "job.yaml", "--target=sky")
    assert unknown.out.splitlines()[0] == "SkyPilot knows no job called gpt"
    sky.has(row(4, "RUNNING"))
    assert run("status", "job.yaml", "--target=sky").out.splitlines()[1].split()[0] == "4"


def test_status_reads_the_bucket_where_that_is_possible(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    launched(run, spec, sky, SKY.replace("s3://ours", "{url: s3://ours, prefix: some/where}"))
    sky.has(row(7, "RUNNING"))
    assert run("status", "job.yaml").out.splitlines()[2:] == [
        "s3://ours/some/where:",
        "  nothing there yet",
    ]
    objects.began("ours/some/where", "running sky.a.1 0")
    objects.held["ours/some/where/owner.json"] = json.dumps({"time": time.time() - 270}).encode()
    lines = run("status", "job.yaml").out.splitlines()
    assert lines[2:] == [
        "s3://ours/some/where:",
        "  running",
        "  step:              120, 5 min ago",
        "  loss:              2.5000",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
        "  last sign of life 4 min ago",
    ]
    sky.has(row(7, "RECOVERING"))
    assert run("status", "job.yaml").out.splitlines()[3:] == [
        "  it was running when it was killed",
        "  step:              120",
        "  loss:              2.5000",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
        "  last sign of life 4 min ago",
    ]
    objects.began("ours/some/where", "stopped sky.a.1 130 user: ddpgen stop")
    objects.held["ours/some/where/stop"] = b"by hand\n"
    sky.has(row(7, "FAILED", details=f"Failure: {CODES.format(' 130')}"))
    assert run("status", "job.yaml").out.splitlines()[1:] == [
        "7    stopped  1x[CPU:1]  by the user",
        "s3://ours/some/where:",
        "  stopped at step 130: user: ddpgen stop",
        "  step:              130",
        "  newest checkpoint: step 100",
        "  weights:           s3://ours/some/where/step-000000100/model.pt",
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError("Access Denied"), "Access Denied"),
        (
            FileNotFoundError("The specified bucket does not exist"),
            "The specified bucket does not exist",
        ),
        (RuntimeError("no\ncredentials"), "RuntimeError: no credentials"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_bucket_that_says_no_is_told_and_the_rest_is_shown(
    run: Run, spec: Spec, sky: Sky, objects: Objects, fault: Exception, said: str
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    objects.fault = fault
    outcome = run("status", "job.yaml")
    assert (outcome.code, outcome.out.splitlines()[2:]) == (
        0,
        [f"s3://ours/gpt: not looked at: {said}"],
    )


def test_a_bucket_behind_a_silent_network_is_given_up(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    monkeypatch.setattr(store, "ANSWER_S", 0.3)
    never = threading.Event()
    monkeypatch.setattr(objects, "ls", lambda *_, **__: never.wait())
    assert run("status", "job.yaml").out.splitlines()[2] == (
        "s3://ours/gpt: not looked at: no answer within 0 s"
    )
    never.set()


# --- stop -------------------------------------------------------------------------------------------


def test_a_job_that_runs_is_asked_through_the_bucket(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    said = "7: asked for a clean stop, which it sees within some 10 s\n"
    assert run("stop", "job.yaml") == (0, said, "")
    assert objects.held == {"ours/gpt/stop": b"ddpgen stop\n"}
    assert sky.calls() == [QUEUE]
    objects.began("ours/gpt", "running sky.a.1 0")
    assert "  a stop has been asked for" in run("status", "job.yaml").out


@pytest.mark.parametrize(
    ("state", "word"),
    [("PENDING", "queued"), ("STARTING", "starting"), ("RECOVERING", "recovering")],
)
def test_a_job_that_waits_is_cancelled_as_nothing_is_lost_by_that(
    run: Run, spec: Spec, sky: Sky, objects: Objects, state: str, word: str
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, state))
    said = f"7: cancelled while it was {word}: nothing more is lost by that\n"
    assert run("stop", "job.yaml") == (0, said, "")
    assert sky.asked("cancel") == [[*CANCEL, "7"]]
    assert objects.held == {}


def test_a_stop_at_once_cancels_what_runs_and_says_what_that_costs(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    assert run("stop", "job.yaml", "--now").out.splitlines() == [
        "7: cancelled; what it did since its newest checkpoint may be lost",
    ]
    assert sky.asked("cancel") == [[*CANCEL, "7"]]
    assert objects.held == {}
    sky.has(row(7, "CANCELLING"))
    assert run("stop", "job.yaml").out == "7: it is being cancelled already\n"
    assert len(sky.asked("cancel")) == 1


def test_of_two_jobs_of_one_name_the_one_launched_from_here_is_stopped(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    launched(run, spec, sky)
    sky.has(row(9, "RECOVERING"), row(7, "RUNNING"))
    assert run("stop", "job.yaml", "--now").out.splitlines() == [
        "9: of the same name, and recovering: left alone; to end it: sky jobs cancel --yes 9",
        "7: cancelled; what it did since its newest checkpoint may be lost",
    ]
    assert sky.asked("cancel") == [[*CANCEL, "7"]]
    sky.has(row(10, "RECOVERING"), row(9, "STARTING"), row(7, "CANCELLED"))
    run("stop", "job.yaml")  # ours has ended: these were launched by hand, in its place
    assert sky.asked("cancel")[1:] == [[*CANCEL, "9"], [*CANCEL, "10"]]


def test_a_cancellation_that_skypilot_refuses_is_told(run: Run, spec: Spec, sky: Sky) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    sky.answers("cancel", f"1\n{DOWN}\n")
    told = DOWN.removeprefix("sky.exceptions.")
    assert run("stop", "job.yaml", "--now") == (69, "", f"sky jobs cancel --yes 7: {told}\n")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("SUCCEEDED", "7 (done)"),
        ("CANCELLED", "7 (cancelled)"),
        ("FAILED_SETUP", "7 (failed in setup)"),
    ],
)
def test_what_has_ended_is_left_alone(
    run: Run, spec: Spec, sky: Sky, objects: Objects, state: str, said: str
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, state))
    assert run("stop", "job.yaml") == (0, f"nothing to stop: {said}\n", "")
    assert sky.calls() == [QUEUE]
    assert objects.held == {}


def test_where_the_bucket_cannot_be_written_the_commands_for_it_are_told(
    run: Run, spec: Spec, sky: Sky
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "RUNNING"))
    assert run("stop", "job.yaml") == (
        69,
        "",
        (
            "s3://ours/gpt cannot be written from here: that takes pip install s3fs\n"
            "for a clean stop of job 7, nothing lost: echo by hand | aws s3 cp - s3://ours/gpt/stop\n"
            "at once, without a checkpoint: sky jobs cancel --yes 7\n"
        ),
    )
    assert sky.calls() == [QUEUE]


def test_a_stop_at_once_is_no_business_of_the_other_tiers(run: Run, spec: Spec) -> None:
    outcome = run("stop", spec(), "--now")
    assert outcome.code == 1
    assert outcome.err == "--now is for sky; on local: press Ctrl-C twice where it runs\n"


S3 = "echo by hand | aws s3 cp -"


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("s3://ours/a b", f"{S3} 's3://ours/a b/stop'"),
        ("gs://ours/gpt", "echo by hand | gcloud storage cp - gs://ours/gpt/stop"),
        (
            "https://me.blob.core.windows.net/box/some/gpt",
            (
                "az storage blob upload --account-name=me --container-name=box --name=some/gpt/stop "
                "'--data=by hand' --overwrite --auth-mode=login"
            ),
        ),
        (
            "r2://ours/gpt",
            (
                "echo by hand | AWS_SHARED_CREDENTIALS_FILE=~/.cloudflare/r2.credentials aws s3 cp - "
                's3://ours/gpt/stop --profile r2 --endpoint-url "https://$(cat ~/.cloudflare/accountid)'
                '.r2.cloudflarestorage.com"'
            ),
        ),
        ("nebius://ours/gpt", f"{S3} s3://ours/gpt/stop --profile nebius"),
        (
            "vastdata://ours/gpt",
            (
                "echo by hand | AWS_SHARED_CREDENTIALS_FILE=~/.vastdata/vastdata.credentials "
                "AWS_CONFIG_FILE=~/.vastdata/vastdata.config aws s3 cp - s3://ours/gpt/stop --profile vastdata"
            ),
        ),
        (
            "oci://ours/gpt",
            "echo by hand | oci os object put --bucket-name=ours --name=gpt/stop --file=- --force",
        ),
        ("cos://us-east/ours/gpt", "echo by hand | rclone rcat REMOTE:ours/gpt/stop"),
    ],
)
def test_every_kind_of_bucket_has_a_command_of_its_own(url: str, command: str) -> None:
    assert bucket.stop_by_hand(bucket.Address(url)) == command


CLOUD = (
    GPT + "env: {AWS_ENDPOINT_URL: 'http://minio:9000', AWS_REGION: eu-1, AWS_PROFILE: them, "
    "AWS_CONFIG_FILE: /on/the/machines, HOME: /nowhere}\ntargets:\n  sky: {bucket: s3://ours}\n"
)


def test_the_specs_own_words_for_a_cloud_count_while_the_bucket_is_looked_into(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "mine")
    launched(run, spec, sky, CLOUD)
    sky.has(row(7, "RUNNING"))
    before, during = dict(os.environ), dict[str, str]()

    def ls(path: str, detail: bool) -> list[str]:
        during.update(os.environ)
        return []

    monkeypatch.setattr(objects, "ls", ls)
    assert run("status", "job.yaml").code == 0
    changed = {name: value for name, value in during.items() if before.get(name) != value}
    assert changed == {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_PROFILE": "them"}
    assert dict(os.environ) == before


def test_a_command_for_the_bucket_says_where_the_spec_has_it(
    run: Run, spec: Spec, sky: Sky, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    launched(run, spec, sky, CLOUD)
    sky.has(row(7, "RUNNING"))
    stopped = f"{BY_HAND} --endpoint-url http://minio:9000 --region eu-1 --profile them"
    assert f"nothing lost: {stopped}\n" in run("stop", "job.yaml").err
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://here:1")
    assert f"nothing lost: {BY_HAND} --region eu-1 --profile them\n" in run("stop", "job.yaml").err


# --- what this SkyPilot does not know ---------------------------------------------------------------

STRANGER = "something runs there that this SkyPilot does not know"
ASKED = "s3://ours/gpt: asked for a clean stop, which it sees within some 10 s"
NOT_SHOWN = "SkyPilot does not show job 7 any more"


def beats(objects: Objects, ago_s: float, now: float | None = None) -> None:
    """Rank 0 has said so long ago that it lives."""
    objects.began("ours/gpt", "running sky.a.1 0")
    owner = {"time": (time.time() if now is None else now) - ago_s}
    objects.held["ours/gpt/owner.json"] = json.dumps(owner).encode()


def test_what_another_skypilot_runs_is_seen_in_the_bucket_and_stopped_there(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(run, spec, sky)
    now = time.time()
    beats(objects, 20, now)
    # It is told to the second, and these commands may take some.
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: now))
    for answer, first in (
        ("0\n[]\n", [NOT_SHOWN]),
        (f"1\n{NO_CONTROLLER}\n",
         ["SkyPilot's controller of jobs is not up, so none of its jobs runs",
          "how the last ones ended: sky jobs queue --refresh"]),
    ):  # fmt: skip
        sky.answers("queue", answer)
        assert run("status", "job.yaml").out.splitlines() == [
            *first,
            "s3://ours/gpt:",
            "  running",
            "  step:              120, 5 min ago",
            "  loss:              2.5000",
            "  newest checkpoint: step 100",
            "  weights:           s3://ours/gpt/step-000000100/model.pt",
            "  last sign of life 20 s ago",
            f"  {STRANGER}",
        ]
        known = f"{NOT_SHOWN}; s3://ours/gpt: {STRANGER} (last sign of life 20 s ago)"
        without = (
            "--now cannot cancel what this SkyPilot does not know; ddpgen stop without it asks"
        )
        at_once = run("stop", "job.yaml", "--now")
        assert at_once == (69, "", f"{known}\n{without} for a clean stop\n")
        assert "ours/gpt/stop" not in objects.held
        assert run("stop", "job.yaml") == (0, f"{known}\n{ASKED}\n", "")
        assert objects.held.pop("ours/gpt/stop") == b"ddpgen stop\n"
    assert sky.asked("cancel") == []


def test_what_lives_though_skypilot_saw_its_job_end_is_told(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    launched(run, spec, sky)
    sky.has(row(7, "CANCELLED"))
    beats(objects, 20)
    assert run("status", "job.yaml").out.splitlines()[-1] == (
        f"  unless that was the last of 7, {STRANGER}"
    )
    assert run("stop", "job.yaml").out.splitlines()[-1] == ASKED
    del objects.held["ours/gpt/stop"]
    beats(objects, 600)  # killed with its machines, and SkyPilot says that it does not come back
    assert run("status", "job.yaml").out.splitlines()[-1] == "  last sign of life 10 min ago"
    assert run("stop", "job.yaml") == (0, "nothing to stop: 7 (cancelled)\n", "")
    assert "ours/gpt/stop" not in objects.held


@pytest.mark.parametrize(
    "status",
    ["running sky.a.1 0", "stopped sky.a.1 9 preempted: by AWS", "stopped sky.a.1 9 signal: TERM"],
)
def test_what_may_come_back_elsewhere_is_stopped_when_it_does(
    run: Run, spec: Spec, sky: Sky, objects: Objects, status: str
) -> None:
    launched(run, spec, sky)
    sky.has()
    objects.began("ours/gpt", status)
    outcome = run("stop", "job.yaml")
    assert (outcome.code, outcome.out.splitlines()) == (
        0,
        [
            f"{NOT_SHOWN}; s3://ours/gpt: it may run, or come back, elsewhere",
            "s3://ours/gpt: asked for a clean stop: should it come back, it ends at once",
        ],
    )
    assert "ours/gpt/stop" in objects.held


@pytest.mark.parametrize(
    "status", ["", "done sky.a.1 300", "stopped sky.a.1 130 user: ddpgen stop"]
)
def test_a_bucket_in_which_nothing_goes_on_has_nothing_to_stop(
    run: Run, spec: Spec, sky: Sky, objects: Objects, status: str
) -> None:
    launched(run, spec, sky)
    sky.has()
    if status:
        objects.began("ours/gpt", status)
    for words in ([], ["--now"]):
        assert run("stop", "job.yaml", *words) == (0, f"nothing to stop: {NOT_SHOWN}\n", "")
    assert "ours/gpt/stop" not in objects.held


def test_a_bucket_that_may_be_read_and_not_written_has_its_command_told(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(run, spec, sky)
    sky.has()
    beats(objects, 20)

    def pipe_file(*_: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(objects, "pipe_file", pipe_file)
    outcome = run("stop", "job.yaml")
    assert (outcome.code, outcome.err.splitlines()[1:]) == (
        69,
        [
            "s3://ours/gpt cannot be written from here: Access Denied",
            f"for a clean stop: {BY_HAND}",
        ],
    )


def test_without_skypilot_the_bucket_says_how_it_stands_and_takes_the_stop(
    run: Run, spec: Spec, sky: Sky, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(run, spec, sky)
    sky.program.unlink()
    monkeypatch.setenv("PATH", str(sky.bin))
    beats(objects, 3 * 3600)
    missing = "there is no sky on this machine; "
    outcome = run("status", "job.yaml")
    assert outcome.code == 0
    first, *lines = outcome.out.splitlines()
    assert first.startswith(missing)
    assert lines[:2] == ["s3://ours/gpt:", "  running"]
    assert lines[-1] == "  last sign of life 3 h ago"
    beats(objects, 20)
    at_once = run("stop", "job.yaml", "--now")
    assert at_once.code == 69
    assert at_once.err.splitlines()[1:] == [
        "so nothing can be cancelled from here",
        f"a clean stop takes no SkyPilot: {BY_HAND}",
    ]
    assert "ours/gpt/stop" not in objects.held
    stopped = run("stop", "job.yaml")
    assert (stopped.code, stopped.out.splitlines()[1:]) == (0, [ASKED])
    assert objects.held.pop("ours/gpt/stop") == b"ddpgen stop\n"
    objects.began("ours/gpt", "done sky.a.1 300")
    ended = run("stop", "job.yaml")
    assert (ended.code, ended.err.splitlines()[1:]) == (
        69,
        [
            "nothing runs that could be asked; what waits only SkyPilot can cancel",
            "s3://ours/gpt:",
            "  done at step 300",
            "  step:              300",
            "  newest checkpoint: step 100",
            "  weights:           s3://ours/gpt/step-000000100/model.pt",
        ],
    )
    assert "ours/gpt/stop" not in objects.held


def test_fsspec_is_asked_in_its_own_words() -> None:
    azure = bucket.Address("https://me.blob.core.windows.net/box/some/gpt").fsspec()
    assert azure == ("abfs://box/some/gpt", {"account_name": "me"}, "adlfs")
    assert bucket.Address("gs://ours/gpt").fsspec() == ("gs://ours/gpt", {}, "gcsfs")
    r2 = {"profile": "r2", "endpoint_url": "https://me.r2.cloudflarestorage.com"}
    assert bucket.Address("r2://ours/gpt").fsspec("me") == ("s3://ours/gpt", r2, "s3fs")
    vast = bucket.Address("vastdata://ours/gpt").fsspec()
    assert vast == ("s3://ours/gpt", {"profile": "vastdata"}, "s3fs")
    assert bucket.Address("oci://ours/gpt").fsspec() is None


R2 = GPT + "env: {AWS_REGION: eu-1}\ntargets:\n  sky: {bucket: r2://ours}\n"


def test_a_relative_of_s3_is_reached_with_what_skypilot_has_set_up_for_it(
    run: Run,
    spec: Spec,
    sky: Sky,
    objects: Objects,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/my/own")
    launched(run, spec, sky, R2)
    sky.has(row(7, "RUNNING"))
    told = run("status", "job.yaml").out
    assert (
        "r2://ours/gpt: not looked at: ~/.cloudflare/accountid: No such file or directory; " in told
    )
    (tmp_path / ".cloudflare").mkdir()
    (tmp_path / ".cloudflare/accountid").write_text("me\n")
    (tmp_path / ".cloudflare/r2.credentials").touch()
    during: dict[str, str | None] = {}

    def ls(path: str, detail: bool) -> list[str]:
        names = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_REGION")
        during.update({name: os.environ.get(name) for name in names})
        return []

    monkeypatch.setattr(objects, "ls", ls)
    assert "r2://ours/gpt:\n  nothing there yet\n" in run("status", "job.yaml").out
    assert during == {
        "AWS_SHARED_CREDENTIALS_FILE": "~/.cloudflare/r2.credentials",
        "AWS_REGION": None,
    }
    assert os.environ["AWS_SHARED_CREDENTIALS_FILE"] == "/my/own"
    assert run("stop", "job.yaml").code == 0
    assert objects.held == {"ours/gpt/stop": b"ddpgen stop\n"}


def test_checkpoints_at_a_url_of_their_own_are_found_there(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    text = GPT + 'checkpoint: {dir: "gs://theirs/place/"}\ntargets:\n  sky: {}\n'
    launched(run, spec, sky, text)
    sky.has(row(7, "RUNNING"))
    assert run("stop", "job.yaml").code == 0
    assert objects.held == {"theirs/place/stop": b"ddpgen stop\n"}


def test_on_another_tier_checkpoints_at_a_url_are_followed_by_the_directory(
    run: Run, spec: Spec, sky: Sky
) -> None:
    text = GPT + 'checkpoint: {dir: "gs://theirs/place"}\ntargets:\n  local: {}\n'
    assert run("status", spec(text)).out.splitlines() == [
        "build/checkpoints/gpt:",
        "  the checkpoint directory is not there yet",
        "checkpoints are kept in gs://theirs/place, not looked at: that takes pip install gcsfs",
    ]


def test_on_another_tier_the_url_says_what_the_directory_does_not_have(
    run: Run, spec: Spec, sky: Sky, objects: Objects, tmp_path: Path
) -> None:
    text = GPT + 'checkpoint: {dir: "gs://theirs/place"}\ntargets:\n  local: {}\n'
    spec(text)
    assert run("status", "job.yaml").out.splitlines()[2:] == [
        "gs://theirs/place:",
        "  newest checkpoint: none",
    ]
    objects.began("theirs/place", "stopped 4711 100")
    there = ["gs://theirs/place:", "  newest checkpoint: step 100"]
    assert run("status", "job.yaml").out.splitlines()[2:] == there
    directory = tmp_path / "build" / "checkpoints" / "gpt"
    directory.mkdir(parents=True)
    assert run("status", "job.yaml").out.splitlines()[-2:] == there
    (directory / "step-000000150").mkdir()
    (directory / "step-000000150" / "checkpoint.json").write_text("{}")
    looks = len(objects.opened)
    assert run("status", "job.yaml").out.splitlines()[-2] == "  newest checkpoint: step 150"
    assert len(objects.opened) == looks


def test_on_slurm_the_url_says_what_the_directory_does_not_have(
    run: Run, spec: Spec, sky: Sky, objects: Objects
) -> None:
    (sky.bin / "squeue").write_text("#!/bin/sh\n")
    (sky.bin / "squeue").chmod(0o755)
    spec(GPT + 'checkpoint: {dir: "gs://theirs/place"}\ntargets:\n  slurm: {}\n')
    objects.began("theirs/place", "stopped 4711 100")
    outcome = run("status", "job.yaml", "--target=slurm")
    assert outcome.out.splitlines()[1:] == [
        "build/checkpoints/gpt:",
        "  the checkpoint directory is not there yet",
        "gs://theirs/place:",
        "  newest checkpoint: step 100",
    ], outcome.err


def test_on_hosts_the_url_is_named_before_they_are_asked(
    run: Run, spec: Spec, sky: Sky, tmp_path: Path
) -> None:
    text = 'checkpoint: {dir: "oci://theirs/place"}\ntargets:\n  hosts: {hosts: [desk, laptop]}\n'
    spec(GPT + text)
    script = tmp_path / "build" / "gpt" / "hosts" / "run.sh"
    script.parent.mkdir(parents=True)
    script.write_text('echo "said $*"\n')
    assert becoming("status", "job.yaml", "--target=hosts").stdout.splitlines() == [
        (
            "checkpoints are kept in oci://theirs/place, not looked at: ddpgen has no way into oci:// from "
            "here"
        ),
        "said --status",
    ]


# --- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["--no-follow", "--tail=100"]),
        (("--follow", "--lines=5"), ["--follow", "--tail=5"]),
        (("-n", "0"), ["--no-follow", "--tail=1"]),  # of SkyPilot's 0 all would come
    ],
)
def test_logs_are_skypilots_own(
    run: Run, spec: Spec, sky: Sky, options: tuple[str, ...], words: list[str]
) -> None:
    launched(run, spec, sky)
    sky.has(row(9, "RUNNING"), row(7, "RUNNING"))
    sky.answers("logs", "100\n(gpt, pid=1) step 3\n")
    done = becoming("logs", "job.yaml", *options)
    assert (done.returncode, done.stdout) == (100, "(gpt, pid=1) step 3\n")
    assert done.stderr == f"+ sky jobs logs {' '.join(words)} 7\n"
    assert sky.calls() == [QUEUE, ["jobs", "logs", *words, "7"]]


def test_where_there_is_no_job_there_is_no_log(run: Run, spec: Spec, sky: Sky) -> None:
    spec(SKY)
    assert run("logs", "job.yaml", "--target=sky") == (
        1,
        "",
        "SkyPilot knows no job called gpt\n",
    )


# --- formats ----------------------------------------------------------------------------------------


def test_a_row_with_anything_in_it_does_no_harm() -> None:
    strange = {
        "job_id": 1,
        "status": None,
        "job_duration": "long",
        "details": "a\x1b[1mb\x1b[0m\x1b]0;x\x07\u202e",
    }
    said = json.dumps([strange, {"job_id": "2"}, {}])
    assert managed.from_queue(said) == [managed.Managed("1", "", "", why="ab]0;x")]
    assert managed.from_queue("[" * 100_000) is None
    assert managed.from_queue("[]\nbye\n") == []
