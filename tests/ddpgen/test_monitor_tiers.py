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

from ddpgen.driver import state
from ddpgen.errors import DdpgenError
from ddpgen.monitor import record
from ddpgen.monitor.report import Report
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
    (KEPT / "progress.json").write_text(
        '{"attempt": "a", "step": 7, "losses": ["nan"], "time": 1}\n'
    )
    told = run("status", "job.yaml").out.splitlines()
    assert told[:2] == ["build/checkpoints/gpt:", "  running"]
    assert told[2].startswith("  step:              7, ")
    assert told[3:] == ["  loss:              nan", "  newest checkpoint: none"]
    done = "asked for a clean stop\n"
    assert run("stop", "job.yaml") == (0, done, "")
    assert (KEPT / "stop").read_text() == ""


def test_before_its_first_step_a_start_has_none(
    run: Run, spec: Spec, process: subprocess.Popen[bytes]
) -> None:
    spec()
    said("running b 0")
    holds(process.pid)
    line = '{"step": 7, "attempt": "%s", "loss": 0.5, "steps_per_s": 2.0, "time": 1}\n'
    (KEPT / "progress.json").write_text(line % "a")
    told = run("status", "job.yaml").out
    assert "running" in told
    assert "step:" not in told
    assert "loss:" not in told
    assert "speed:" not in told
    (KEPT / "progress.json").write_text(line % "b")
    assert "step:              7," in run("status", "job.yaml").out


def test_a_job_that_was_killed_is_known_by_its_processes(
    run: Run, spec: Spec, process: subprocess.Popen[bytes]
) -> None:
    spec()
    said("running a 0")
    holds(process.pid)
    began = start_time(process.pid)
    process.kill()
    process.wait()
    killed = "build/checkpoints/gpt:\n  it was running when it was killed\n"
    assert run("status", "job.yaml").out.startswith(killed)
    # Another process has the number by now.
    holds(os.getpid(), launcher=[os.getpid(), began - 1])
    assert run("status", "job.yaml").out.startswith(killed)
    nothing = "nothing to stop: nothing runs in build/checkpoints/gpt: it was running when it was"
    assert run("stop", "job.yaml").out.startswith(nothing)
    assert not (KEPT / "stop").exists()


def test_a_job_that_began_on_another_host_is_asked_all_the_same(run: Run, spec: Spec) -> None:
    spec()
    said("running a 0")
    holds(1, boot="another")
    there = "it was started on desk: ddpgen status there tells whether it lives\n"
    assert run("status", "job.yaml").out.endswith(there)
    assert run("stop", "job.yaml").out.endswith(there)
    assert (KEPT / "stop").exists()


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("done a 300", "  done at step 300\n"),
        ("stopped a 40", "  stopped at step 40\n"),
        ("failed a 0 rank 1: out of memory", "  failed: rank 1: out of memory\n"),
        (
            "running a 7 rank 1: x (m.py:3 in load)",
            "  ended after this: rank 1: x (m.py:3 in load)\n",
        ),
        ("nonsense", "  no job has begun there\n"),
        ("", "  no job has begun there\n"),
    ],
)
def test_the_last_word_of_a_job(run: Run, spec: Spec, status: str, line: str) -> None:
    spec()
    said(status)
    holds(2**22 + 1)
    assert line in run("status", "job.yaml").out


@pytest.mark.parametrize(
    ("record", "newest"),
    [
        ('{"path": "/w/a.pt", "step": 5, "by": "", "whole": true}\n', "/w/a.pt, of step 5"),
        (
            """{"path": "/w/a.pt", "step": 5, "by": "", "whole": true}
{"path": "/w/b.pt", "step": 9, "by": "", "whole": true}
""",
            "/w/b.pt, of step 9",
        ),
        ('{"path": "/w/a", "step": 5, "by": "", "whole": false}\n', "none"),
        (
            """{"path": "/w/c", "step": 5, "by": "lightning 1", "whole": true}
{"path": "/w/c.bin", "step": 5, "by": "", "whole": true}
""",
            "/w/c, of step 5",
        ),
        ('{"path": 1, "whole": true}\nx', "none"),
    ],
)
def test_what_a_script_has_saved_is_its_newest_checkpoint(
    run: Run, spec: Spec, record: str, newest: str
) -> None:
    spec()
    said("done a 7")
    (KEPT / "script").mkdir()
    (KEPT / "script" / "saves-0.jsonl").write_text(record)
    assert run("status", "job.yaml").out.endswith(f"\n  newest checkpoint: {newest}\n")


def test_nothing_has_run_yet(run: Run, spec: Spec) -> None:
    spec()
    assert run("status", "job.yaml").out.endswith("  the checkpoint directory is not there yet\n")
    said_so = "nothing to stop: no job has begun in build/checkpoints/gpt\n"
    assert run("stop", "job.yaml") == (0, said_so, "")
    missing = run("logs", "job.yaml")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("build/checkpoints/gpt/metrics.jsonl is not there: no step")


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


@pytest.mark.parametrize(
    ("command", "option"), [("status", "--status"), ("stop", "--stop"), ("logs", "--logs")]
)
def test_the_hosts_driver_answers_for_hosts(
    run: Run, spec: Spec, command: str, option: str
) -> None:
    spec(HOSTS)
    wanted = [command, "job.yaml", "--target", "hosts"]
    unready = run(*wanted)
    assert (unready.code, unready.err) == (
        69,
        "build/gpt/hosts/run.sh is not there; render the job for hosts first, or name its bundle with -o\n",
    )
    Path("build/gpt/hosts").mkdir(parents=True)
    Path("build/gpt/hosts/run.sh").write_text('echo "said $*"; exit 3\n')
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


def test_the_tier_that_was_launched_last_is_meant(run: Run, spec: Spec) -> None:
    spec(HOSTS)
    unclear = run("status", "job.yaml")
    assert unclear.code == 2
    assert "has the tiers local, hosts: name one with" in " ".join(unclear.err.split())
    assert run("render", "job.yaml", "--target", "local").code == 0
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:")  # the only one there
    launched = later("launch", "job.yaml", "--target", "local", "--", "--help")
    assert launched.returncode == 0, launched.stderr
    assert list(record.recall(Path("build/gpt"))) == ["local"]
    assert run("render", "job.yaml", "--target", "all").code == 0
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"tier": 1}', "[" * 100_000, '{"job": "1"}'])
def test_a_spoilt_record_means_that_nothing_is_remembered(
    run: Run, spec: Spec, content: str
) -> None:
    Path("build").mkdir()
    Path("build/gpt.launched.json").write_text(content)
    assert run("status", spec()).code == 0
    assert record.recall(Path("build/gpt")) == {}


ROWS = (
    '{"kind": "start", "step": 0, "attempt": "a", "generation": 2, "time": 1}\n'
    '{"kind": "step", "step": 10, "attempt": "a", "generation": 2, "time": 100, "loss": 3}\n'
    '{"kind": "step", "step": 20, "attempt": "a", "generation": 2, "time": 105, "loss": 2.5}\n'
    '{"kind": "eval", "step": 20, "attempt": "a", "generation": 2, "time": 106, "loss": 2.25}\n'
    '{"kind": "ranks", "step": 20, "attempt": "a", "generation": 2, "time": 106, "seconds": 0.5, "waiting": [], "batches": [0], "slow": {"name": "rank 1", "cost": 0.25}}\n'
)


@pytest.mark.parametrize("where", ["job.yaml", "build/gpt", "build/checkpoints/gpt"])
def test_what_runs_is_found_by_spec_bundle_and_directory(
    run: Run, spec: Spec, process: subprocess.Popen[bytes], where: str
) -> None:
    spec(HOSTS)
    assert run("render", "job.yaml", "--target", "all").code == 0
    said("running a 0")
    holds(process.pid, generation=2)
    rows = map(json.loads, ROWS.splitlines())
    about = {"last_step": 40, "unit": "tokens", "units_per_step": 1000}
    (KEPT / "progress.json").write_text(progress(rows, **about))
    (KEPT / "step-000000020").mkdir()
    (KEPT / "step-000000020" / "checkpoint.json").write_text("{}")
    told = run("status", where).out.splitlines()
    assert told[2].startswith("  step:              20 of 40, ")
    assert told[3:] == [
        "  loss:              2.5000",
        "  evaluation:        loss 2.2500 at step 20",
        "  speed:             2 steps/s, 2,000 tokens/s",
        "  time left:         0:10",
        "  slow rank:         rank 1; the others wait 25% of each step for it",
        "  restarts:          1",
        "  newest checkpoint: step 20",
        "  weights:           build/checkpoints/gpt/step-000000020/model.pt",
    ]
    found = json.loads(run("status", where, "--json").out)
    (one,) = found["runs"]
    assert (one["step"], one["steps"], one["loss"], one["time_left_s"]) == (20, 40, 2.5, 10)
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
    assert refused.err == "nosuch.yaml: No such file or directory; give the path of a job spec\n"


def test_a_metric_of_any_name_moves_no_cursor() -> None:
    row = {"kind": "eval", "step": "\x1b[2J", "acc\x1b]0;title\x07": 0.5}
    found = state.read({"there": "yes", "progress": json.dumps({"evaluation": row})})
    assert found.evaluation == r"acc\x1b]0;title\x07 0.5000 at step \x1b[2J"


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
    record.remember(Path("build/gpt"), record.Launched("hosts"))
    both = run("status", "job.yaml")
    assert (both.code, both.err) == (
        2,
        "gpt runs on local and on hosts: name one with --target local or --target hosts\n",
    )
    ssh.write_text(answer.format("no"))
    assert run("status", "job.yaml").out.startswith("build/checkpoints/gpt:\n  running\n")


def test_a_directory_that_is_none_of_a_job_is_refused(run: Run, spec: Spec) -> None:
    Path("mine").mkdir()
    refused = run("stop", "mine")
    assert (refused.code, refused.out) == (1, "")
    assert "neither a bundle nor a checkpoint directory" in refused.err
    assert not Path("mine/stop").exists()


def test_a_bundle_and_a_checkpoint_directory_elsewhere_are_followed_there(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    spec()
    assert run("render", "job.yaml", "--target=local", "-o", "away/it").code == 0
    assert run("status", "job.yaml", "-o", "away/it").out.startswith("away/checkpoints/gpt:")
    place = tmp_path / "it's here"
    (place / "step-000000007").mkdir(parents=True)
    (place / "step-000000007" / "checkpoint.json").write_text("{}")
    told = run("status", spec(GPT + f'checkpoint: {{dir: "{place}"}}\n')).out
    assert told.splitlines() == [
        "it's here:",
        "  no job has begun there",
        "  newest checkpoint: step 7",
        "  weights:           it's here/step-000000007/model.pt",
    ]
    assert run("status", "job.yaml", "--target", "kubernetes").code == 69
    assert run("stop", "job.yaml", "--target", "all").code == 2


@pytest.mark.parametrize(
    "facts",
    [
        {"newest": "x", "progress": "{", "lock": "[]", "saves": "{\t[]"},
        {
            "slurm-job": "4711; rm",
            "progress": '{"step": "9", "loss": true, "losses": 7, "waiting": {}}',
        },
        {"progress": '{"evaluation": [], "slow": 7, "losses": [[]], "waiting": ["x"], "unit": {}}'},
    ],
)
def test_what_a_stranger_puts_into_the_directory_does_no_harm(facts: dict[str, str]) -> None:
    assert state.read({"there": "yes", **facts}) == state.JobState("yes")


def test_how_often_a_job_of_slurm_has_come_back() -> None:
    begun = [[0, 0, "requeue"], [1, 20, "crash"], [2, 20, "requeue"], [3, 40, ""]]
    kept = {"job": "7", "requeues": 6, "restarts": 3, "starts": begun}
    facts = {"there": "yes", "status": "running slurm.7.3 40", "slurm-starts": json.dumps(kept)}
    told = "come back 2 of at most 6 times because of Slurm, 1 of at most 3 times after a crash"
    assert told in Report("d", state.read(facts), True).words()
    for spoilt in ({**kept, "starts": [[0, 0, ""]]}, {**kept, "starts": 5}, {"starts": []}, []):
        found = state.read({**facts, "slurm-starts": json.dumps(spoilt)})
        assert found.starts == ""


@pytest.mark.parametrize("tier", ["sky: {bucket: s3://ours}", "hosts: {hosts: [desk, laptop]}"])
def test_the_doctor_needs_the_checkpoint_directory_here(run: Run, spec: Spec, tier: str) -> None:
    name = tier.partition(":")[0]
    refused = run("doctor", spec(f"{GPT}targets:\n  {tier}\n"), f"--target={name}")
    told = f"the checkpoint directory of gpt on {name} is not on this machine; run ddpgen doctor"
    assert (refused.code, refused.err) == (69, f"{told} CHECKPOINT_DIR where the job runs\n")


@pytest.mark.parametrize(
    ("tier", "at_once"),
    [("local", "press Ctrl-C twice"), ("hosts", "press Ctrl-C twice"), ("slurm", "scancel JOBID")],
)
def test_an_end_at_once_is_left_to_the_tools_of_the_tier(tier: str, at_once: str) -> None:
    following: Any = SimpleNamespace(tier=tier)
    with pytest.raises(DdpgenError, match=f"--now is for sky; on {tier}: {at_once}"):
        commands.stop(following, now=True)


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
