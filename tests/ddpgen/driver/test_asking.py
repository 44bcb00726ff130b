"""--status, --stop, --logs and --fetch: what is asked of hosts, and what comes home."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.record import Following
from ddpgen.tiers.hosts import follow
from tests.ddpgen.conftest import GPT, Run, ddpgen, progress
from tests.ddpgen.driver.conftest import Stage, rest, until

Make = Callable[..., Stage]


def there(ours: Stage, host: str) -> Path:
    """The checkpoint directory on a host."""
    path = ours.home(host) / "ddpgen" / "checkpoints" / "pair"
    path.mkdir(parents=True, exist_ok=True)
    return path


def checkpoint(directory: Path, step: int, content: str = "tensors") -> Path:
    place = directory / f"step-{step:09d}"
    place.mkdir(parents=True)
    (place / "model.pt").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    files = {"model.pt": {"size": len(content), "sha256": digest}}
    (place / "checkpoint.json").write_text(json.dumps({"step": step, "files": files}))
    return place


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_status_shows_how_every_host_stands(stage: Make) -> None:
    ours = stage("desk", "lap", "vm")
    ours.door("vm", "refused")
    checkpoint(there(ours, "desk"), 40)
    (there(ours, "desk") / "step-000000050").mkdir()
    (there(ours, "desk") / "status").write_text("running 1f3a 40\n")
    node = there(ours, "desk") / "nodes" / "desk"
    node.mkdir(parents=True)
    (node / "status").write_text("failed 2b 40 desk: out of memory\n")
    code, output = ours.play("--status")
    assert code == 1
    rows = [re.split("  +", line) for line in output.splitlines()]
    assert rows[:4] == [
        ["host", "script runs", "this host", "the job (rank 0 writes it)", "newest checkpoint"],
        ["desk", "no", "failed at step 40: desk: out of memory", "running", "step 40"],
        ["lap", "no", "none", "none", "none"],
        ["vm", "unreachable"],
    ]
    assert "ddpgen: vm: ssh: connect to host vm port 22: Connection refused; " in output
    ours.door("vm", "noisy")  # something is said there before the first word of ours
    code, output = ours.play("--status")
    assert code == 0, output
    assert "killed" in output  # now that vm, too, is known not to run it


def test_status_shows_a_jobs_end_and_not_what_an_earlier_head_has_left(stage: Make) -> None:
    """An elastic job that has lost its head goes on with rank 0 elsewhere."""
    ours = stage("desk", "lap", "vm")
    (there(ours, "desk") / "status").write_text("running 20261125-1 3\n")
    (there(ours, "lap") / "status").write_text("done 20261125-1 40\n")
    (there(ours, "vm") / "status").write_text("running 20261124-9 3\n")  # of an earlier launch
    job = [re.split("  +", line)[3] for line in ours.play("--status")[1].splitlines()[1:4]]
    assert job == ["rank 0 moved to lap", "done at step 40", "killed while it was running"]


@pytest.mark.slow
def test_status_tells_a_script_that_runs_from_one_that_did(stage: Make) -> None:
    ours = stage("desk")
    ours.part("desk", "listen")
    process = ours.start()
    until(process, "desk | training")
    pid = ours.sessions("desk")[-1][1]
    lock = there(ours, "desk") / "nodes" / "desk" / "lock"
    lock.write_text(json.dumps({"launcher": [pid, 1]}, indent=1))
    (lock.parent / "status").write_text("running 1f3a 8000\n")
    row = re.compile(r"desk  (yes|no) +(.*?)  +none +none\n")
    assert row.findall(ours.play("--status")[1]) == [("yes", "running")]
    (there(ours, "desk") / "status").write_text("running 1f3a 8000\n")
    at = time.time() - 20
    steps = [
        {"kind": "step", "step": 8000 + n, "attempt": "1f3a", "time": at + n, "loss": n / 3}
        for n in (1, 2)
    ]
    split = {"kind": "shares", "step": 8002, "attempt": "1f3a", "time": at + 2, "shares": [5, 3]}
    standing = there(ours, "desk") / "progress.json"
    standing.write_text(progress([*steps, split], last_step=8100))
    output = ours.play("--status")[1]
    assert re.search(r"running: step 8002, 1\d s ago  none\n", output)
    assert (
        "\nthe job: step 8002 of 8100, loss 0.6667, 1 steps/s, micro-batches 5 3, 1:38 left\n"
        in output
    )
    # Of a user's script: what it saved last, and its own measure of its speed.
    (there(ours, "desk") / "script").mkdir()
    (there(ours, "desk") / "script" / "saves-0.jsonl").write_text(
        '{"path": "a.pt", "step": 7999, "by": "", "whole": true}\n'
    )
    standing.write_text(progress([{**steps[1], "steps_per_s": 4.5}]))
    of_script = ours.play("--status")[1]
    assert re.search(r"running: step 8002, \d+ s ago  a\.pt, of step 7999\n", of_script)
    assert "\nthe job: step 8002, loss 0.6667, 4.5 steps/s\n" in of_script
    (there(ours, "desk") / "script" / "saves-0.jsonl").unlink()
    still = (
        r"ddpgen: desk: no step for 1\d s; why: ddpgen doctor \./ddpgen/checkpoints/pair, there\n"
    )
    assert re.search(still, output)
    # Of the attempt before: the one that runs has taken no step yet.
    (there(ours, "desk") / "status").write_text("running 2b 8002\n")
    assert "8002" not in ours.play("--status")[1]
    (there(ours, "desk") / "status").unlink()
    lock.write_text(json.dumps({"launcher": [os.getpid(), 1]}, indent=1))
    assert row.findall(ours.play("--status")[1]) == [("no", "killed while it was running")]
    process.send_signal(signal.SIGINT)
    rest(process)


def test_the_watching_asks_the_hosts_itself(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = stage("desk", "lap")
    for name, value in ours.environment().items():
        monkeypatch.setenv(name, value)
    checkpoint(there(ours, "lap"), 40)
    for word in ("running 1f3a 0", "done 1f3a 40"):
        (there(ours, "lap") / "status").write_text(f"{word}\n")
        step = {"kind": "step", "step": 40, "attempt": "1f3a", "time": time.time(), "loss": 2.5}
        (there(ours, "lap") / "progress.json").write_text(progress([step]))
        ours.door("desk", "refused" if word.startswith("running") else "open")
        with follow.asking(Following(None, "hosts", ours.bundle, None)) as ask:  # type: ignore[arg-type]
            status = ask()
        (report,) = status.reports
        facts = report.facts()
        assert (report.location, facts["step"], facts["loss"], facts["newest_checkpoint"]) == (
            "lap:ddpgen/checkpoints/pair", 40, 2.5, 40,
        )  # fmt: skip
        if word.startswith("running"):  # desk may run it
            assert (facts["state"], status.ended) == ("running", False)
            assert status.jobs.startswith("desk unreachable, lap ")
            assert "desk: ssh: " in str(status.parts)
        else:
            assert (facts["state"], status.ended) == ("done at step 40", True)
            assert status.jobs.startswith("desk does not run")
    for host in ("desk", "lap"):
        ours.door(host, "refused")
    with (
        follow.asking(Following(None, "hosts", ours.bundle, None)) as ask,  # type: ignore[arg-type]
        pytest.raises(TargetUnavailableError, match="lap: ssh: "),
    ):
        ask()


def test_programs_get_the_facts_also_while_a_host_is_down(
    stage: Make, run: Run, spec: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = stage("desk", "lap")
    for name, value in ours.environment().items():
        monkeypatch.setenv(name, value)
    ours.door("desk", "refused")
    (there(ours, "lap") / "status").write_text("done 1f3a 40\n")
    job = spec(GPT + "targets: {hosts: {hosts: [desk, lap]}}\n")
    asked = run("status", job, "--target=hosts", "-o", ours.bundle, "--json")
    assert asked.code == 0
    status = json.loads(asked.out)
    assert (status["tier"], len(status["runs"])) == ("hosts", 1)
    assert status["runs"][0]["directory"] == "lap:ddpgen/checkpoints/pair"
    assert status["runs"][0]["state"] == "done at step 40"
    assert any(line.startswith("desk: ssh: ") for line in status["said"])


def test_stop_leaves_the_stop_file_on_every_host(stage: Make) -> None:
    ours = stage("desk", "lap", "vm")
    ours.door("vm", "denied")
    there(ours, "desk")
    code, output = ours.play("--stop")
    assert code == 1
    assert "desk: nothing runs there; " in output
    assert "lap: nothing to stop" in output
    assert "vm: vm: Permission denied" in output
    assert (there(ours, "desk") / "stop").exists()
    ours.door("vm", "open")
    code, output = ours.play("--stop")
    assert code == 0
    assert "lap, vm: nothing to stop" in output


def test_the_command_stop_asks_every_host_and_fails_if_one_does_not_answer(
    stage: Make, run: Run, spec: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = stage("desk", "lap")
    for name, value in ours.environment().items():
        monkeypatch.setenv(name, value)
    ours.door("lap", "refused")
    there(ours, "desk")
    words = ("stop", spec(GPT + "targets: {hosts: {hosts: [desk, lap]}}\n"), "--target=hosts")
    asked = run(*words, "-o", ours.bundle)
    assert (asked.code, asked.out.partition(";")[0]) == (69, "desk: nothing runs there")
    assert asked.err.startswith("lap: ssh: ")
    assert (there(ours, "desk") / "stop").exists()
    ours.door("lap", "open")
    asked = run(*words, "-o", ours.bundle)
    assert (asked.code, asked.err) == (0, "")
    assert "lap: nothing to stop" in asked.out
    missing = run(*words)
    assert (missing.code, missing.err.partition(";")[0]) == (
        69,
        "build/gpt/hosts/run.sh is not there",
    )


@pytest.mark.slow
def test_logs_shows_the_newest_launch(stage: Make) -> None:
    ours = stage()
    code, output = ours.play("--logs")
    assert code == 1
    assert "none was started" in output
    assert "--status" in output
    assert ours.play()[0] == 0
    code, output = ours.play("--logs")
    assert code == 0
    (launch,) = ours.logs.iterdir()
    assert f"==> {launch}/lap.log <==\nout\nddpgen: done at step 7; results are here\n" in output
    assert ours.play("--logs", "lap") == (0, "out\nddpgen: done at step 7; results are here\n")
    code, output = ours.play("--logs=lpa")
    assert code == 2
    assert "lpa is not " in output
    assert "desk, lap" in output


@pytest.mark.slow
def test_a_launch_that_never_started_hides_no_other(stage: Make) -> None:
    ours = stage()
    ours.door("lap", "refused")
    assert ours.play()[0] == 69
    (refused,) = ours.logs.iterdir()
    code, output = ours.play("--logs", "desk")
    assert code == 1
    assert f"{refused}/driver.txt" in output
    ours.door("lap", "open")
    assert ours.play()[0] == 0
    later = ours.logs / "99991231-235959-abcdef"
    later.mkdir()
    (later / "driver.txt").write_text("nothing was started\n")
    (later / "desk.log").touch()
    assert ours.play("--logs", "lap") == (0, "out\nddpgen: done at step 7; results are here\n")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["checkpoints/pair", "~/it's here", "-x"])
def test_fetch_brings_whole_checkpoints_from_the_host_with_the_newest(
    stage: Make, place: str, tmp_path: Path
) -> None:
    ours = stage(checkpoint_dir=place)
    far = ours.home("lap") / ("it's here" if place[0] == "~" else f"ddpgen/{place}")
    for step in (20, 40):
        checkpoint(far, step)
    checkpoint(there(ours, "desk"), 10)
    (far / ".tmp-step-000000060-1").mkdir()
    checkpoint(far, 30).rename(far / "step-000000030.corrupt")
    (far / "step-000000050").mkdir()
    (far / "nodes" / "lap").mkdir(parents=True)
    for name in (
        "best.json",
        "metrics.jsonl",
        "manifest.json",
        "point.json",
        "progress.json",
        "status",
        "lock",
        "stop",
    ):
        (far / name).write_text(f"{name}\n")
    (far / "bundles").mkdir()
    (far / "bundles" / "0123456789ab.tar.gz").write_text("what ran")
    code, output = ours.play("--fetch")
    assert code == 0, output
    small = ["best.json", "manifest.json", "metrics.jsonl", "point.json", "progress.json", "status"]
    kept = sorted([*small, "bundles", "step-000000020", "step-000000040"])
    assert names(ours.checkpoints) == kept
    assert names(ours.checkpoints / "bundles") == ["0123456789ab.tar.gz"]
    assert (ours.checkpoints / "step-000000040" / "model.pt").read_text() == "tensors"
    code, output = ours.play("--fetch", str(tmp_path / "else where"))
    assert code == 0, output
    assert names(tmp_path / "else where") == kept


@pytest.mark.slow
def test_fetch_again_brings_only_what_is_new_and_deletes_nothing(stage: Make) -> None:
    ours = stage("desk")
    far = there(ours, "desk")
    checkpoint(far, 20)
    (far / "metrics.jsonl").write_text("1\n")
    assert ours.play("--fetch")[0] == 0
    before = (ours.checkpoints / "step-000000020" / "model.pt").stat().st_ino
    (ours.checkpoints / "notes.txt").touch()
    checkpoint(far, 40)
    (far / "metrics.jsonl").write_text("1\n2\n")
    code, output = ours.play("--fetch")
    assert code == 0
    assert "brought step-000000040 and the metrics" in output
    assert (ours.checkpoints / "metrics.jsonl").read_text() == "1\n2\n"
    assert (ours.checkpoints / "step-000000020" / "model.pt").stat().st_ino == before
    assert names(ours.checkpoints) == [
        "metrics.jsonl",
        "notes.txt",
        "step-000000020",
        "step-000000040",
    ]


@pytest.mark.slow
def test_fetch_never_mixes_two_runs_and_never_loses_metrics(stage: Make) -> None:
    ours = stage("desk")
    checkpoint(there(ours, "desk"), 20)
    (there(ours, "desk") / "metrics.jsonl").write_text("theirs\n")
    ours.checkpoints.mkdir(parents=True)
    (ours.checkpoints / "metrics.jsonl").write_text("mine\n")
    code, output = ours.play("--fetch")
    assert code == 0
    kept = re.search(r"metrics.jsonl .* kept as (\S+)", output)
    assert kept
    assert (ours.checkpoints / kept[1]).read_text() == "mine\n"
    checkpoint(there(ours, "desk"), 40, "another run")
    checkpoint(ours.checkpoints, 40, "mine")
    before = names(ours.checkpoints)
    code, output = ours.play("--fetch")
    assert code == 1
    assert "another run's step-000000040; " in output
    assert names(ours.checkpoints) == before


def test_fetch_leaves_out_what_is_not_whole_and_says_so(stage: Make) -> None:
    ours = stage("desk")
    checkpoint(there(ours, "desk"), 20)
    (checkpoint(there(ours, "desk"), 40) / "model.pt").write_text("damaged")
    code, output = ours.play("--fetch")
    assert code == 1
    assert "step-000000040 is left out: model.pt " in output
    assert "step-000000020" in names(ours.checkpoints)
    assert "step-000000040" not in names(ours.checkpoints)


def test_fetch_keeps_out_of_a_directory_that_a_job_runs_in(stage: Make) -> None:
    ours = stage("desk")
    checkpoint(there(ours, "desk"), 20)
    ours.checkpoints.mkdir(parents=True)
    (ours.checkpoints / "lock").touch()
    code, output = ours.play("--fetch")
    assert code == 1
    assert "a job on this machine" in output
    assert names(ours.checkpoints) == ["lock"]


def test_fetch_without_a_checkpoint_anywhere_says_so(stage: Make) -> None:
    ours = stage()
    ours.door("lap", "refused")
    code, output = ours.play("--fetch")
    assert code == 1
    assert "lap: ssh: connect" in output
    assert "holds a checkpoint" in output
    assert not ours.checkpoints.exists()
    calls = (ours.homes / "calls").read_text().splitlines()
    assert (
        len([call for call in calls if call.startswith("lap ")]) == 1
    )  # rsync does not try it again


def test_fetch_brings_the_figures_of_a_probe(stage: Make) -> None:
    ours = stage()
    (there(ours, "lap") / "probe.json").write_text("{}")
    code, output = ours.play("--fetch")
    assert (code, names(ours.checkpoints)) == (0, ["probe.json"]), output


@pytest.mark.slow
def test_verbose_shows_each_ssh_of_run_sh_and_its_end(stage: Make, tmp_path: Path) -> None:
    ours = stage("desk", "lap")
    ours.door("lap", "refused")
    (tmp_path / "job.yaml").write_text(f"{GPT}targets: {{hosts: {{hosts: [desk, lap]}}}}\n")

    def asked(*options: str) -> str:
        words = ("status", "job.yaml", "--target=hosts", "-o", str(ours.bundle), *options)
        done = ddpgen(*words, cwd=tmp_path, **ours.environment())
        assert done.returncode == 1
        assert done.stdout.startswith("host ")
        assert "\nddpgen: lap: ssh: connect" in f"\n{done.stderr}"
        return done.stderr

    lines = asked("-v").splitlines()
    (start,) = [line for line in lines if line.endswith(" desk 'bash -s'")]
    number, _, command = start.removeprefix("ddpgen: debug: ").partition(" + ")
    assert "fake_ssh.py -T -o BatchMode=yes" in command
    assert any(line.startswith(f"ddpgen: debug: {number} exit code 0 after ") for line in lines)
    assert "debug" not in asked()
    assert len(asked("-q").splitlines()) == 1


@pytest.mark.slow
def test_quiet_shows_the_reasons_of_a_launch_that_fails_and_no_progress(stage: Make) -> None:
    ours = stage("desk", "lap")
    ours.door("lap", "refused")
    code, said = ours.play(env={"DDPGEN_LOG": "ERROR"})
    assert code == 69
    assert (
        re.sub("lap: ssh.*", "lap: ssh", said) == "ddpgen: lap: ssh\nddpgen: nothing was started\n"
    )
    ours.door("lap", "open")
    code, said = ours.play(env={"DDPGEN_LOG": "ERROR"})
    assert (code, [line for line in said.splitlines() if line.startswith("ddpgen")]) == (0, [])
