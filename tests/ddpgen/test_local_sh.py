"""local.sh for real: bash, the supervisor and status; only torchrun itself is an actor."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ddpgen.conftest import GPT, HOSTILE, ROOT, Run
from train.run import lock

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signal")
TIMEOUT_S = 30


class Stage:
    """A rendered bundle with an actor for torchrun, and its checkpoint directory."""

    def __init__(self, bundle: Path, name: str = "gpt"):
        self.bundle = bundle
        self.checkpoints = bundle.parent / "checkpoints" / name
        fake = bundle / "torch" / "distributed"
        fake.mkdir(parents=True)
        for package in (fake.parent, fake):
            (package / "__init__.py").write_text('__version__ = "2.13.0"\n')
        shutil.copy(ROOT / "tests" / "ddpgen" / "fake_torchrun.py", fake / "run.py")

    def start(self, part: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """bash local.sh, in a session of its own as a terminal gives it."""
        options = {"cwd": self.bundle, "start_new_session": True, **options}
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.STDOUT)
        script = options.pop("script", str(self.bundle / "local.sh"))
        return subprocess.Popen(
            ["bash", script, *arguments], env=os.environ | {"FAKE": part}, text=True, **options
        )

    def play(self, part: str, *arguments: str, **options: Any) -> tuple[int, str]:
        """Exit code and output of a whole run."""
        process = self.start(part, *arguments, **options)
        output = process.communicate(timeout=TIMEOUT_S)[0]
        return process.returncode, output

    def seen(self) -> Any:
        """What torchrun was given."""
        return json.loads((self.checkpoints / "seen.json").read_text("utf-8"))

    def status(self) -> str:
        return (self.checkpoints / "status").read_text().split()[0]


@pytest.fixture
def stage(run: Run, tmp_path: Path) -> Callable[..., Stage]:
    """Render a spec into a bundle and put the actor into it."""

    def stage(text: str = GPT, where: str = "build/gpt", **names: str) -> Stage:
        text += "" if "\npython:" in text else f"\npython: {json.dumps(sys.executable)}\n"
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        outcome = run("render", "job.yaml", "--target", "local", "-o", tmp_path / where)
        assert outcome.code == 0, outcome.err
        return Stage(tmp_path / where, **names)

    return stage


def until_training(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    lines = []
    while "training\n" not in lines:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)


def gone(pid: int) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


def test_a_finished_job_ends_with_0_although_torchrun_says_1(stage: Callable[..., Stage]) -> None:
    ours = stage()
    code, output = ours.play("done")
    said, training, end = output.partition("training\n")
    assert "\n  GLOO_SOCKET_IFNAME=lo  " in said
    assert "-m torch.distributed.run --standalone " in said
    assert training
    assert end.startswith("ddpgen: done at step 7 ")
    assert end.endswith(f" {ours.checkpoints}\n")
    assert code == 0


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ("stopped", 75, " bash {bundle}/local.sh\n"),
        ("failed", 1, "ddpgen: failed at step 7: it was to be\n"),
    ],
)
def test_the_exit_code_follows_the_status_file(
    stage: Callable[..., Stage], part: str, code: int, said: str
) -> None:
    ours = stage()
    ended, output = ours.play(part)
    assert ended == code
    assert said.format(**vars(ours)) in output


def test_torchrun_gets_the_planned_command_and_environment(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NNODES", "2")  # left by an operator: it would go before the command
    ours = stage()
    assert ours.play("done", "--steps=5", '--arg=a="extra word"')[0] == 0
    seen = ours.seen()
    assert seen["cwd"] == str(ours.bundle)
    assert seen["argv"][1:11] == [
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--monitor-interval=0.1",
        "-m",
        "--",
        "train",
        "run",
        "--workload=gpt",
    ]
    assert seen["argv"][-2:] == ["--steps=5", '--arg=a="extra word"']
    assert f"--checkpoint-dir={ours.checkpoints}" in seen["argv"]
    wanted = {
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "DDPGEN_JOB": "gpt",
        "DDPGEN_CHECKPOINT_DIR": str(ours.checkpoints),
        "DDPGEN_STOP_FILE": f"{ours.checkpoints}/stop",
    }
    assert {name: seen["env"].get(name) for name in wanted} == wanted
    assert seen["env"]["NCCL_SOCKET_IFNAME"] == "=" + wanted["GLOO_SOCKET_IFNAME"]
    assert not [name for name in seen["env"] if name.startswith("PET_")]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--bogus", "ddpgen: unrecognized arguments: --bogus; "),
        ("stray", "ddpgen: unrecognized arguments: stray; "),
        ("--steps=x", "ddpgen: argument --steps: "),
        ("--epochs=1", "ddpgen: give either --steps or --epochs; "),
        ("--checkpoint-dir=/other", "ddpgen: --checkpoint-dir=/other "),
        ("--code-dir", "ddpgen: --code-dir "),
    ],
)
def test_a_wrong_argument_is_met_once_and_before_anything_starts(
    stage: Callable[..., Stage], argument: str, said: str
) -> None:
    ours = stage()
    code, output = ours.play("done", argument)
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith(said)
    assert not ours.checkpoints.exists()


@pytest.mark.slow
def test_links_to_the_script_and_to_the_bundle_lead_to_the_same_job(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    ours = stage()
    away = tmp_path / "away"
    away.mkdir()
    (away / "one").symlink_to("two")
    (away / "two").symlink_to(ours.bundle / "local.sh")
    (away / "bundle").symlink_to(ours.bundle)
    for script in (away / "one", away / "bundle" / "local.sh", "one", "bundle/local.sh"):
        code, output = ours.play("done", script=str(script), cwd=away)
        assert (code, f"results are in {ours.checkpoints}\n" in output) == (0, True), output


def test_a_script_without_its_bundle_says_what_is_missing(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    ours = stage()
    alone = shutil.copy(ours.bundle / "local.sh", tmp_path / "alone.sh")
    said = f"ddpgen: {tmp_path} holds no train/"
    code, output = ours.play("done", script=str(alone))
    assert (code, output.startswith(said), output.count("\n")) == (69, True, 1)


def test_hostile_values_reach_the_training_process_byte_for_byte(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def build(context, **args): ...")
    directory = 'ck it\'s $(touch pwned) "é"\n\\ dir'
    args: dict[str, Any] = {f"a{i}": value for i, value in enumerate(HOSTILE)}
    args["z"] = HOSTILE
    spec = {
        "name": "gpt",
        "env": {f"VALUE_{i}": value for i, value in enumerate(HOSTILE)},
        "checkpoint": {"dir": directory},
        "code": "mine.py",
        "train": {
            "workload": "mine.py:build",
            "steps": 3,
            "global_batch_size": 4,
            "micro_batch_size": 4,
            "args": args,
        },
    }
    ours = stage(yaml.safe_dump(spec))
    ours.checkpoints = ours.bundle.parent / directory
    code, output = ours.play("done")
    assert code == 0, output
    seen = ours.seen()
    for i, value in enumerate(HOSTILE):
        assert seen["env"][f"VALUE_{i}"] == value
    arguments = [word for word in seen["argv"] if word.startswith("--arg=")]
    assert arguments == [
        f"--arg={name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in sorted(args.items())
    ]
    assert f"--checkpoint-dir={ours.checkpoints}" in seen["argv"]
    assert not list(ours.bundle.parent.parent.rglob("pwned"))


def test_hostile_arguments_and_names_of_a_script_arrive_too(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    script = "-it's $(touch pwned) é.py"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / script).write_text("pass\n")
    odd = tmp_path / 'it\'s $(touch pwned) "py"é'
    odd.write_text(f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    odd.chmod(0o755)
    args = {"flag": True, "off": False, "none": None, "many": HOSTILE, "deep": {"x": [1, "é"]}}
    train = {"script": script, "args": args, "args_style": "flags"}
    spec = {"name": "gpt", "code": "code", "train": train}
    ours = stage(yaml.safe_dump(spec) + f"\npython: {json.dumps(str(odd))}\n")
    code, output = ours.play("done", "--help", "--checkpoint-dir=x")
    # A script's rank 0 is done by itself; torchrun's code says that another process was not.
    said = "crashed: rank 0 was done, but "
    assert (code, said in output, ours.status()) == (1, True, "failed")
    argv = ours.seen()["argv"]
    assert argv[argv.index("script") :] == [
        "script",
        f"code/{script}",
        '--deep={"x": [1, "é"]}',
        "--flag",
        *(f"--many={value}" for value in HOSTILE),
        "--help",
        "--checkpoint-dir=x",
    ]


def test_it_runs_from_any_directory_and_in_a_hostile_one(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    ours = stage(where='it\'s $(touch pwned) "b"/new\nline é')
    code, output = ours.play("stopped", cwd="/")
    assert code == 75, output
    again = output.rpartition("to resume: ")[2]
    done = subprocess.run(
        ["bash", "-c", again],
        cwd=tmp_path,
        env=os.environ | {"FAKE": "done", "CDPATH": "/"},
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert ours.play("done", script="local.sh")[0] == 0


def test_the_specs_env_wins_over_what_the_script_pins(stage: Callable[..., Stage]) -> None:
    ours = stage(GPT + "env: {OMP_NUM_THREADS: 3, CUBLAS_WORKSPACE_CONFIG: ':16:8'}\nnic: eth0\n")
    assert ours.play("done")[0] == 0
    env = ours.seen()["env"]
    assert (env["OMP_NUM_THREADS"], env["CUBLAS_WORKSPACE_CONFIG"]) == ("3", ":16:8")
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")


def test_activation_lines_run_first_and_a_failing_one_ends_the_launch(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    activate = json.dumps(["export MOOD=$UNSET_BEFORE''fine", "test $MOOD = fine"])
    python = f"python: {{interpreter: {json.dumps(sys.executable)}, activate: {activate}}}\n"
    ours = stage(GPT + python)
    assert ours.play("done")[0] == 0
    assert ours.seen()["env"]["MOOD"] == "fine"
    ours = stage(GPT + python.replace("test $MOOD = fine", "false"), where="build/other")
    code, output = ours.play("done")
    assert (code, output.count("\n")) == (69, 1)
    assert "local.activate.sh" in output
    assert "line 3: false" in output


@pytest.mark.parametrize("line", ['eval "echo \'open"', "exit 3", "eval 'if true; then'"])
def test_an_activation_line_that_is_no_bash_is_said_to_be_at_fault(
    stage: Callable[..., Stage], line: str
) -> None:
    python = f"python: {{interpreter: {json.dumps(sys.executable)}, activate: {json.dumps(line)}}}"
    code, output = stage(GPT + python + "\n").play("done")
    assert code == 69
    assert output.splitlines()[-1].startswith("ddpgen: local.activate.sh (python.activate) failed")


def test_an_activation_line_may_leave_the_directory(stage: Callable[..., Stage]) -> None:
    ours = stage(GPT + f"python: {{interpreter: {sys.executable}, activate: [cd /, set +e]}}\n")
    assert ours.play("done")[0] == 0
    assert ours.seen()["cwd"] == str(ours.bundle)


@pytest.mark.skipif(not shutil.which("flock"), reason="no flock(1) here")
def test_a_bundle_that_a_job_runs_from_is_not_replaced(
    stage: Callable[..., Stage], run: Run, tmp_path: Path
) -> None:
    ours = stage()
    process = ours.start("train")
    until_training(process)
    shutil.move(ours.bundle / "torch", tmp_path / "away")  # not ddpgen's: would be refused for it
    spec = tmp_path / "job.yaml"
    again = ("render", "job.yaml", "--target", "local", "-o", ours.bundle)
    assert run(*again).err.startswith("unchanged: ")
    spec.write_text(spec.read_text() + "restarts: 0\n")
    refused = run(*again)
    assert (refused.code, process.poll()) == (73, None)
    assert refused.err.startswith(f"a job runs from {ours.bundle} ")
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)
    assert run(*again).code == 0


def test_another_shell_is_told_to_be_bash(stage: Callable[..., Stage]) -> None:
    ours = stage()
    other = next((shell for shell in ("dash", "zsh", "ksh") if shutil.which(shell)), None)
    if other is None:
        pytest.skip("there is only bash here")
    done = subprocess.run(
        [other, ours.bundle / "local.sh"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 69
    assert done.stderr.endswith(" bash local.sh\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_waiting_for_a_holder_elsewhere_can_be_stopped(
    stage: Callable[..., Stage], signum: signal.Signals
) -> None:
    ours = stage()
    lock.claim(ours.checkpoints, "other", os.getpid())
    holder = json.loads((ours.checkpoints / "lock").read_text())
    holder |= {"boot": "elsewhere", "host": "gone"}
    (ours.checkpoints / "lock").write_text(json.dumps(holder))
    process = ours.start("done")
    assert process.stdout is not None
    while "still alive" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signum)  # as a terminal does
    output = process.communicate(timeout=TIMEOUT_S)[0]
    name = signum.name.removeprefix("SIG")
    first, last = output.splitlines()
    assert first.startswith(f"ddpgen: {name}: stopping before ")
    assert last.endswith(f" bash {ours.bundle}/local.sh")
    assert process.returncode == 75
    assert not (ours.checkpoints / "seen.json").exists()


@pytest.mark.parametrize("name", ["no-such-python", "pushd"])  # a builtin is none
def test_a_python_that_is_not_there_is_named(name: str, stage: Callable[..., Stage]) -> None:
    code, output = stage(GPT + f"python: {name}\n").play("done")
    assert code == 69
    assert f"no Python called {name} " in output


@pytest.mark.slow
def test_a_second_live_job_is_refused_and_the_first_goes_on(stage: Callable[..., Stage]) -> None:
    ours = stage()
    first = ours.start("train")
    until_training(first)
    code, output = ours.play("done")
    assert code == 69
    assert str(first.pid) in output
    first.terminate()
    assert "stopped at step 7" in first.communicate(timeout=TIMEOUT_S)[0]
    assert first.returncode == 75
    assert ours.play("done")[0] == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_one_signal_asks_for_a_clean_stop(
    stage: Callable[..., Stage], signum: signal.Signals
) -> None:
    ours = stage()
    process = ours.start("train")
    until_training(process)
    process.send_signal(signum)
    output = process.communicate(timeout=TIMEOUT_S)[0]
    name = signum.name.removeprefix("SIG")
    assert output.startswith(f"ddpgen: {name}: asking ")
    assert (process.returncode, ours.status()) == (75, "stopped")


def test_a_stop_file_made_by_hand_is_enough_and_does_not_stop_the_next_run(
    stage: Callable[..., Stage],
) -> None:
    ours = stage()
    process = ours.start("train")
    until_training(process)
    (ours.checkpoints / "stop").touch()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 75
    process = ours.start("train")
    until_training(process)
    assert not (ours.checkpoints / "stop").exists()
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


def interrupted_until_it_ends(process: subprocess.Popen[str]) -> str:
    """Ctrl-C as a person presses it: bash drops a signal that comes while a trap still runs."""
    for _ in range(TIMEOUT_S):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=1)[0]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it does not end")


@linux
def test_a_second_ctrl_c_kills_everything(stage: Callable[..., Stage]) -> None:
    ours = stage()
    process = ours.start("deaf")
    until_training(process)
    seen = ours.seen()
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert ": asking " in process.stdout.readline()
    assert process.poll() is None
    output = interrupted_until_it_ends(process)
    assert output.startswith("ddpgen: killing ")
    assert process.returncode == 1
    assert gone(seen["pid"])
    assert gone(seen["worker"])


@linux
def test_a_launcher_that_waits_for_other_hosts_after_a_final_failure_is_ended(
    stage: Callable[..., Stage],
) -> None:
    code, output = stage().play("barrier")
    assert code == 1, output
    assert output.endswith("ddpgen: failed at step 7: a fault\n"), output


@linux
def test_kill_9_of_the_script_takes_torchrun_down(stage: Callable[..., Stage]) -> None:
    ours = stage()
    process = ours.start("train")
    until_training(process)
    seen = ours.seen()
    process.kill()
    assert gone(seen["pid"])
    assert ours.status() == "stopped"  # the actor, as torchrun, was sent SIGTERM
    process.communicate(timeout=TIMEOUT_S)
    assert ours.play("done")[0] == 0  # and the dead job's lock does not block


def test_started_in_the_background_it_ignores_ctrl_c_and_still_stops_on_term(
    stage: Callable[..., Stage],
) -> None:
    ours = stage()
    process = ours.start("train", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    until_training(process)
    process.send_signal(signal.SIGINT)
    process.terminate()
    output = process.communicate(timeout=TIMEOUT_S)[0]
    assert output.startswith("ddpgen: TERM: asking ")
    assert process.returncode == 75


def test_a_checkpoint_directory_that_cannot_take_a_stop_file_still_stops(
    stage: Callable[..., Stage],
) -> None:
    ours = stage()
    process = ours.start("train")
    until_training(process)
    (ours.checkpoints / "stop").symlink_to("/no/such/directory/stop")
    process.terminate()
    output = process.communicate(timeout=TIMEOUT_S)[0]
    assert "ending the processes of this host instead" in output
    assert process.returncode == 75


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def in_terminal(ours: Stage, terminal: tuple[int, int], part: str) -> subprocess.Popen[str]:
    """Start local.sh as the foreground job of a terminal of its own."""
    _, slave = terminal

    def own_the_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    return ours.start(part, stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_the_terminal)


def read_until(master: int, wanted: str) -> str:
    output, deadline = "", time.monotonic() + TIMEOUT_S
    while wanted not in output:
        assert select.select([master], [], [], max(0, deadline - time.monotonic()))[0], output
        output += os.read(master, 4096).decode()
    return output


def test_ctrl_c_in_a_terminal_reaches_the_script_and_not_torchrun(
    stage: Callable[..., Stage], terminal: tuple[int, int]
) -> None:
    ours, master = stage(), terminal[0]
    process = in_terminal(ours, terminal, "train")
    read_until(master, "training\r\n")
    assert ours.seen()["pgrp"] == ours.seen()["pid"] != process.pid
    os.write(master, b"\x03")
    read_until(master, "stopped at step 7; ")
    assert process.wait(TIMEOUT_S) == 75


def test_preflight_alone_looks_and_starts_nothing(stage: Callable[..., Stage]) -> None:
    ours = stage()
    code, output = ours.play("done", "--preflight")
    assert code == 0
    assert output.startswith("ddpgen: preflight: ")
    assert "can start" in output
    assert sorted(path.name for path in ours.checkpoints.iterdir()) == ["preflight.json"]
    assert "\n  --preflight  " in ours.play("done", "--help")[1]


@pytest.mark.parametrize(
    ("preflight", "arguments"), [("on", []), ("off", ["--preflight"]), ("{ignore: [NIC008]}", [])]
)
def test_a_fault_is_named_before_torchrun_starts(
    preflight: str, arguments: list[str], stage: Callable[..., Stage]
) -> None:
    ours = stage(GPT + f"nic: nosuch0\npreflight: {preflight}\n")
    code, output = ours.play("done", *arguments)
    assert (code, "NIC001" in output, "training" in output) == (69, True, False)
    assert not (ours.checkpoints / "status").exists()


def test_preflight_can_be_switched_off(stage: Callable[..., Stage]) -> None:
    ours = stage(GPT + "nic: nosuch0\npreflight: off\n")
    assert ours.play("done")[0] == 0
    assert not (ours.checkpoints / "preflight.json").exists()
