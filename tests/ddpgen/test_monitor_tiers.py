"""status, logs and stop on the tiers local and hosts, and which tier is meant where none is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpgen.monitor import record
from ddpgen.tiers import commands
from tests.ddpgen.conftest import GPT, ROOT, Run, ddpgen, progress
from train.base.processes import machine, start_time

Spec = Callable[..., Path]
HOSTS = GPT + "targets:\n  hosts:\n    hosts: [desk, laptop]\n"
KEPT = Path("build/checkpoints/gpt")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives until it is told otherwise."""
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield sleeping
    sleeping.kill()
    sleeping.communicate()


def holds(pid: int, **more: Any) -> None:
    """The lock of a job whose launch script is `pid`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    lock = {
        "attempt": "a", "generation": 1, "job": "gpt", "host": "desk",
        "boot": machine(), "launcher": [pid, start_time(pid)], "writer": None, **more,
    }  # fmt: skip
    (KEPT / "lock").write_text(json.dumps(lock, indent=1))


def said(word: str) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "status").write_text(f"{word}\n")


def later(*words: str) -> subprocess.CompletedProcess[str]:
    """A command that becomes another program."""
    return ddpgen(*words, cwd=Path.cwd())


def test_a_job_on_this_machine_that_runs_is_asked_to_stop(
    run: Run, spec: Spec, process: subprocess.Popen[bytes]
) -> None:
    spec()
    said("running a 0")
    holds(process.pid)
    told = run("status", "job.yaml")
    assert (told.code, told.out.splitlines()[:2]) == (0, [f"{KEPT}:", "  running"])
    assert run("stop", "job.yaml") == (0, "asked for a clean stop\n", "")
    assert (KEPT / "stop").read_text() == ""
    assert "a stop has been asked for" in run("status", "job.yaml").out


def test_a_job_that_was_killed_is_known_by_its_processes(
    run: Run, spec: Spec, process: subprocess.Popen[bytes]
) -> None:
    spec()
    said("running a 0")
    holds(process.pid)
    began = start_time(process.pid)
    process.kill()
    process.wait()
    assert "killed" in run("status", "job.yaml").out
    # Another process has the number by now.
    holds(os.getpid(), launcher=[os.getpid(), began - 1])
    assert "killed" in run("status", "job.yaml").out
    refused = run("stop", "job.yaml")
    assert (refused.code, refused.out.partition(":")[0]) == (0, "nothing to stop")
    assert not (KEPT / "stop").exists()


def test_a_job_that_began_on_another_host_is_asked_all_the_same(run: Run, spec: Spec) -> None:
    spec()
    said("running a 0")
    holds(1, boot="another")
    assert "it was started on desk" in run("status", "job.yaml").out
    assert "it was started on desk" in run("stop", "job.yaml").out
    assert (KEPT / "stop").exists()


def test_the_saves_of_a_script_and_its_last_word_are_read_from_the_directory(
    run: Run, spec: Spec
) -> None:
    spec()
    said("done a 7")
    (KEPT / "script").mkdir()
    rows = ({"path": f"/w/{step}.pt", "step": step, "by": "", "whole": True} for step in (5, 7))
    (KEPT / "script" / "saves-0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = run("status", "job.yaml").out.splitlines()
    assert (told[1], told[-1]) == ("  done at step 7", "  newest checkpoint: /w/7.pt, of step 7")


def test_nothing_has_run_yet(run: Run, spec: Spec) -> None:
    spec()
    assert "not there yet" in run("status", "job.yaml").out
    nothing = run("stop", "job.yaml")
    assert (nothing.code, nothing.out.partition(":")[0]) == (0, "nothing to stop")
    missing = run("logs", "job.yaml")
    assert (missing.code, missing.out) == (66, "")
    assert missing.err.startswith(f"{KEPT}/metrics.jsonl is not there: no step")


@pytest.mark.slow
def test_logs_are_the_metrics_or_all_that_the_newest_start_of_a_script_has_printed(
    run: Run, spec: Spec
) -> None:
    spec()
    said("done a 3")
    (KEPT / "metrics.jsonl").write_text("1\n2\n3\n")
    done = later("logs", "job.yaml", "--lines=2")
    echo = "+ tail -n 2 build/checkpoints/gpt/metrics.jsonl\n"
    assert (done.stdout, done.stderr) == ("2\n3\n", echo)
    (KEPT / "logs").mkdir()
    for name, text in (("20260101-000000", "first"), ("20260102-000000", "second")):
        (KEPT / "logs" / f"{name}.log").write_text(f"{text}\n")
    for what in ("job.yaml", str(KEPT)):
        assert later("logs", what).stdout == "second\n"


@pytest.mark.parametrize(("command", "option"), [("status", "--status"), ("logs", "--logs")])
def test_the_hosts_driver_answers_for_hosts(
    run: Run, spec: Spec, command: str, option: str
) -> None:
    spec(HOSTS)
    wanted = [command, "job.yaml", "--target", "hosts"]
    unready = run(*wanted)
    assert unready.code == 69
    assert unready.err.startswith("build/gpt/hosts/run.sh is not there; render")
    Path("build/gpt/hosts").mkdir(parents=True)
    Path("build/gpt/hosts/run.sh").write_text('echo "said $*"; exit 3\n')
    if command == "logs":
        silent = run(*wanted)
        assert (silent.code, silent.err.partition(":")[0]) == (66, "no host has said anything yet")
    (place := Path("build/logs/gpt/20260101-000000-aa")).mkdir(parents=True)
    (place / "desk.log").write_text("a line\n")
    done = later(*wanted)
    assert (done.returncode, done.stdout) == (3, f"said {option}\n")
    assert done.stderr == f"+ bash build/gpt/hosts/run.sh {option}\n"


def test_the_logs_of_the_newest_launch_on_hosts_are_followed(run: Run, spec: Spec) -> None:
    spec(HOSTS)
    for launch in ("20260101-000000-aa", "20260102-000000-bb"):
        place = Path("build/logs/gpt") / launch
        place.mkdir(parents=True)
        (place / "desk.log").write_text(f"{launch}\n")
    following = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "logs", "job.yaml", "--target=hosts", "-f"],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert following.stdout is not None
    with following.stdout:
        assert following.stdout.readline() == "20260102-000000-bb\n"
        with open("build/logs/gpt/20260102-000000-bb/desk.log", "a") as log:
            log.write("more\n")
        assert following.stdout.readline() == "more\n"
    following.kill()
    following.wait(30)


@pytest.mark.slow
def test_the_tier_that_was_launched_last_is_meant(run: Run, spec: Spec) -> None:
    spec(HOSTS)
    unclear = run("status", "job.yaml")
    assert unclear.code == 2
    assert "has the tiers local, hosts; name one with" in " ".join(unclear.err.split())
    assert run("render", "job.yaml", "--target", "local").code == 0
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:")  # the only one there
    launched = later("launch", "job.yaml", "--target", "local", "--", "--help")
    assert launched.returncode == 0, launched.stderr
    assert list(record.read_launches(Path("build/gpt"))) == ["local"]
    assert run("render", "job.yaml", "--target", "all").code == 0
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:")


def test_a_spoilt_record_means_that_nothing_is_remembered(tmp_path: Path) -> None:
    for content in ("", "[]", "{", '{"tier": 1}', "[" * 100_000, '{"job": "1"}'):
        (tmp_path / "gpt.launched.json").write_text(content)
        assert record.read_launches(tmp_path / "gpt") == {}


@pytest.mark.parametrize("where", ["job.yaml", "build/gpt", "build/checkpoints/gpt"])
def test_what_runs_is_found_by_spec_bundle_and_directory(
    run: Run, spec: Spec, process: subprocess.Popen[bytes], where: str
) -> None:
    spec(HOSTS)
    assert run("render", "job.yaml", "--target", "all").code == 0
    said("running a 0")
    holds(process.pid, generation=2)
    head = {"attempt": "a", "generation": 2}
    rows = [{**head, "kind": "step", "step": n, "time": 95 + n / 2, "loss": 2.5} for n in (10, 20)]
    (KEPT / "progress.json").write_text(progress(rows, last_step=40))
    (KEPT / "step-000000020").mkdir()
    (KEPT / "step-000000020" / "checkpoint.json").write_text("{}")
    assert run("status", where).out.splitlines()[2].startswith("  step:              20 of 40, ")
    (found,) = json.loads(run("status", where, "--json").out)["runs"]
    del found["step_age_s"]
    assert found == {
        "directory": str(KEPT), "state": "running", "step": 20, "steps": 40, "loss": 2.5, "speed": 2.0,
        "time_left_s": 10, "restarts": 1, "newest_checkpoint": 20,
        "weights": f"{KEPT}/step-000000020/model.pt",
    }  # fmt: skip
    assert run("stop", where).out == "asked for a clean stop\n"
    assert (KEPT / "stop").exists()


@pytest.mark.parametrize("command", ["status", "logs", "stop", "doctor"])
def test_a_job_is_found_from_another_directory_than_the_spec_s(
    run: Run, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "sub").mkdir()
    spec().rename(tmp_path / "sub" / "job.yaml")
    monkeypatch.chdir(tmp_path / "sub")
    Path("build/gpt").mkdir(parents=True)
    said("done a 300")
    (KEPT / "metrics.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    told = later(command, "sub/job.yaml")
    assert "not there" not in told.stdout + told.stderr
    assert "sub/build/checkpoints/gpt" in told.stdout + told.stderr, told


@pytest.mark.parametrize("command", ["status", "doctor", "report", "verify"])
def test_a_job_that_is_not_there_is_a_spec_that_cannot_be_read(run: Run, command: str) -> None:
    refused = run(command, "nosuch.yaml")
    assert (refused.code, refused.out) == (66, "")
    assert refused.err == (
        "nosuch.yaml: No such file or directory; give a spec, a bundle or a checkpoint directory\n"
    )


def test_two_tiers_that_run_are_named_with_the_flag(
    run: Run, spec: Spec, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(HOSTS)
    assert run("render", "job.yaml", "--target=hosts").code == 0
    said("running a 0")
    holds(process.pid)
    ssh = Path("ssh.sh")
    monkeypatch.setenv("DDPGEN_SSH", f"bash {ssh.absolute()}")
    answer = "while read -r _; do :; done\nif [[ $* == *desk* ]]; then echo ddpgen-fact runs {}; else exit 255; fi\n"
    ssh.write_text(answer.format("yes"))
    record.write_launch(Path("build/gpt"), record.Launch("hosts"))
    both = run("status", "job.yaml")
    assert both.code == 2
    assert "--target local or --target hosts" in both.err
    ssh.write_text(answer.format("no"))
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:\n  running\n")


def test_without_a_job_all_that_were_launched_from_here_are_listed(
    run: Run, spec: Spec, process: subprocess.Popen[bytes]
) -> None:
    nothing = run("status")
    assert (nothing.code, nothing.out) == (66, "")
    spec()
    assert run("render", "job.yaml", "--target=local").code == 0
    assert run("render", "job.yaml", "--target=local", "-o", "build/other").code == 0
    record.write_launch(Path("build/other"), record.Launch("local"))
    record.write_launch(Path("build/gpt"), record.Launch("local"))
    said("running a 0")
    holds(process.pid)
    Path("build/other/bundle.json").unlink()
    head, newest, gone = run("status").out.splitlines()
    assert head.split() == ["job", "tier", "state", "launched"]
    assert newest.split()[:3] == ["build/gpt", "local", "running"]
    assert gone.startswith("build/other  local  build/other")
    first, second = json.loads(run("status", "--json").out)
    assert (first["bundle"], first["state"], first["runs"][0]["state"]) == (
        "build/gpt",
        "running",
        "running",
    )
    assert "runs" not in second
    assert run("status", "--watch").code == 2


@pytest.mark.parametrize("damage", ['{"tier": "local", "time": "x"}', '{"tier": 3}', "null", "[]"])
def test_a_damaged_record_of_a_launch_is_none(run: Run, spec: Spec, damage: str) -> None:
    spec()
    assert run("render", "job.yaml", "--target=local").code == 0
    Path("build/gpt.launched.json").write_text(f'{{"local": {damage}}}')
    assert run("status").code == 66
    assert run("status", "build/gpt").code == 0


def test_a_launch_on_a_tier_that_the_bundle_has_no_more_is_listed(run: Run, spec: Spec) -> None:
    spec()
    assert run("render", "job.yaml", "--target=local").code == 0
    record.write_launch(Path("build/gpt"), record.Launch("slurm", "7"))
    assert "without this tier" in run("status").out


def test_a_tier_that_an_option_added_is_followed_by_the_spec(run: Run, spec: Spec) -> None:
    spec()
    added = ("--set", "targets.slurm.time=1h")
    assert run("render", "job.yaml", "--target=slurm", *added).code == 0
    for words in (("status", "job.yaml"), ("stop", "job.yaml"), ("doctor", "job.yaml")):
        told = run(*words)
        assert "bug" not in told.err, told
        assert "the spec has no targets.slurm" not in told.err
    assert "the spec has no targets.hosts" in run("status", "job.yaml", "--target=hosts").err


def test_a_bundle_of_a_version_with_fewer_fields_is_followed(run: Run, spec: Spec) -> None:
    spec()
    assert run("render", "job.yaml", "--target=local").code == 0
    said("done a 30")
    bundle = json.loads(Path("build/gpt/bundle.json").read_text())
    del bundle["spec"]["local"]["secrets"]
    Path("build/gpt/bundle.json").write_text(json.dumps(bundle))
    assert "done" in run("status", "build/gpt").out
    del bundle["spec"]["local"]["train"]  # no version had none
    Path("build/gpt/bundle.json").write_text(json.dumps(bundle))
    assert run("status", "build/gpt").code == 66


def test_a_directory_that_is_none_of_a_job_is_refused(run: Run, spec: Spec) -> None:
    Path("mine").mkdir()
    refused = run("stop", "mine")
    assert (refused.code, refused.out) == (66, "")
    assert "neither a bundle nor a checkpoint directory" in refused.err
    assert not Path("mine/stop").exists()


def test_a_bundle_and_a_checkpoint_directory_elsewhere_are_followed_there(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    spec()
    assert run("render", "job.yaml", "--target=local", "-o", "away/it").code == 0
    assert run("status", "job.yaml", "-o", "away/it").out.startswith("away/checkpoints/gpt:")
    assert run("status", "away/it", "-o", "away").code == 2
    other = run("status", "away/it", "--target=slurm")
    assert (other.code, "was rendered for local, not for slurm" in other.err) == (2, True)
    place = tmp_path / "it's here"
    (place / "step-000000007").mkdir(parents=True)
    (place / "step-000000007" / "checkpoint.json").write_text("{}")
    told = run("status", spec(GPT + f'checkpoint: {{dir: "{place}"}}\n')).out
    assert told.splitlines()[0] == "it's here:"
    assert "newest checkpoint: step 7" in told
    assert run("status", str(place), "--target=local").code == 2
    assert run("status", "job.yaml", "--target", "kubernetes").code == 2
    assert run("stop", "job.yaml", "--target", "all").code == 2


@pytest.mark.parametrize("tier", ["sky: {bucket: s3://ours}", "hosts: {hosts: [desk, laptop]}"])
def test_the_doctor_needs_the_checkpoint_directory_here(run: Run, spec: Spec, tier: str) -> None:
    name = tier.partition(":")[0]
    refused = run("doctor", spec(f"{GPT}targets:\n  {tier}\n"), f"--target={name}")
    assert refused.code == 69
    assert f"of gpt on {name} is not on this machine; give it to" in refused.err


@pytest.mark.parametrize("tier", ["local", "hosts", "slurm"])
def test_an_end_at_once_is_left_to_the_tools_of_the_tier(run: Run, spec: Spec, tier: str) -> None:
    spec(GPT + "targets:\n  hosts: {hosts: [desk]}\n  slurm: {}\n")
    refused = run("stop", "job.yaml", "--now", f"--target={tier}")
    assert (refused.code, refused.out) == (2, "")
    at_once = "scancel JOBID" if tier == "slurm" else "press Ctrl-C twice"
    assert f"--now is for sky; on {tier}: {at_once}" in refused.err


def test_a_launch_on_hosts_is_known_by_what_a_host_has_said(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(name="gpt")
    following = record.Following(job, "hosts", tmp_path / "bundle", None)
    hosts = commands.TIERS["hosts"].follow
    assert hosts.launched_at(following) is None
    launch = tmp_path / "logs" / "gpt" / "20260101-100000-0a1b"
    launch.mkdir(parents=True)
    (launch / "desk.log").write_text("step 1\n")
    os.utime(launch, (7.0, 7.0))
    assert hosts.launched_at(following) == 7.0
