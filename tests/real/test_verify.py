"""A run is computed again from what it left behind: by other numbers of processes, through kills, with what was
changed since named."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.real import jobs
from tests.real.jobs import PIPED, Job, Lines, ddpgen

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
TRAIN = {**jobs.SLOW_GPT, "steps": 24}
TENSORS = 20


def rendered(place: Path, processes: int) -> Path:
    job = {"checkpoint": {"dir": str(place / "ckpt"), "every": "4 steps"}, "restarts": 0}
    # The optimizer's state is spread over several processes, and that changes no bit.
    train = {**TRAIN, "shard": "optimizer" if processes > 1 else "none"}
    spec = jobs.spec(train, procs_per_node=processes, **job)
    return jobs.render(place / f"on{processes}", spec, jobs.SLOW)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint directory of a run that was killed on one process and went on with two."""
    place = tmp_path_factory.mktemp("killed")
    job = Job(rendered(place, 1), env={"SLOW": "0.05"})
    job.until_step(6)
    os.kill(job.agent(), signal.SIGKILL)
    assert job.end() == 1, job.output
    # Slow, because a checkpoint that is due while another is written comes a step later.
    done = jobs.run(rendered(place, 2), env={"SLOW": "0.02"})
    assert done.process.returncode == 0, done.output
    return place / "ckpt"


def test_a_run_that_was_killed_is_the_same_on_other_numbers_of_processes(
    killed: Path,
) -> None:
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*")}
    found = ddpgen("verify", killed, "--procs", "3")
    assert found.stdout == (
        f"identical: steps 20 to 24, 4 losses and {TENSORS} tensors, on 3 processes (written on 2)\n"
    ), found.stderr
    assert found.returncode == 0
    assert ddpgen("-q", "verify", killed, "--procs", "3").stderr == ""
    whole = ddpgen("reproduce", killed, "--procs", "1", "-o", killed.parent / "again")
    assert whole.stdout == (
        f"identical: steps 0 to 24, 24 losses and {3 * TENSORS} tensors, on 1 process (written on 2)\n"
    ), whole.stderr
    assert "renders the same bytes\n" in whole.stderr
    again = killed.parent / "again"
    assert sorted(path.name for path in again.iterdir()) == ["bundle", "checkpoints"]
    jobs.assert_same_bits(
        jobs.final_tensors(again / "checkpoints/ckpt"), jobs.final_tensors(killed)
    )
    assert {path: path.stat().st_mtime_ns for path in killed.rglob("*")} == before
    assert not list(killed.parent.glob(".*verify*"))


@pytest.mark.nightly
def test_what_is_other_here_is_said_at_the_first_step(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    found = ddpgen("verify", killed, "--procs", "1")
    said = found.stderr.splitlines()
    told = next(i for i, line in enumerate(said) if "which can change bits: ATEN_CPU_CAP" in line)
    assert said[told + 1].startswith("step 21/24"), found.stderr
    assert "fingerprint" not in found.stderr  # the data is the same, and not read yet
    assert found.returncode == 1
    assert found.stdout.startswith("not identical: the loss of step 2")


def flip_a_bit(checkpoint: Path, file: str, content: bytes, corrected: bool) -> None:
    """In the first element of the tensor that has this content."""
    path, marker = checkpoint / file, checkpoint / "checkpoint.json"
    whole = bytearray(path.read_bytes())
    whole[whole.index(content)] ^= 1
    path.write_bytes(whole)
    if corrected:
        about = json.loads(marker.read_text())
        about["files"][file]["sha256"] = hashlib.sha256(whole).hexdigest()
        marker.write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("step", "corrected", "begins"),
    [
        (24, False, [20]),
        pytest.param(20, True, [20, 16], marks=pytest.mark.nightly),
        pytest.param(20, False, [16], marks=pytest.mark.nightly),
    ],
)
def test_a_flipped_bit_is_named_with_its_step_and_its_tensor(
    killed: Path, tmp_path: Path, step: int, corrected: bool, begins: list[int]
) -> None:
    directory = Path(shutil.copytree(killed, tmp_path / "ckpt"))
    place = directory / f"step-{step:09d}"
    tensor: torch.Tensor
    name, tensor = next(reversed(torch.load(place / "model.pt", weights_only=True).items()))
    flip_a_bit(place, "model.pt", bytes(jobs.as_bytes(tensor)[:64].tolist()), corrected)
    found = ddpgen("verify", directory, "--procs", "1", "--json")
    assert found.returncode == 1, found.stderr
    said = json.loads(found.stdout)
    (damage,) = said["checkpoints"]
    assert damage["step"] == step
    what = f"model.pt differs in {name}: 1 of {tensor.numel()} elements, by at most "
    assert damage["what"].startswith(what)
    assert damage["unverified"] == (
        ""
        if corrected
        else "model.pt does not match its sha256 in checkpoint.json: one of the two was changed"
    )
    assert said["verdict"] == [
        f"not identical: the checkpoint of step {step}: {damage['what']}",
        f"the losses of steps {begins[-1]} to 24 are those on record: the checkpoint was changed after it was written",
    ]
    replayed = [line for line in found.stderr.splitlines() if "replaying" in line]
    assert replayed == [f"ddpgen: replaying steps {begin} to 24 on 1 process" for begin in begins]


@pytest.mark.nightly
def test_what_was_changed_in_the_records_is_named(killed: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(killed, tmp_path / "ckpt"))
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    for row in rows:
        if (row["kind"], row["step"]) == ("step", 22):
            row["loss"] = math.nextafter(row["loss"], 9)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["starts"][-1]["weights"] = "0" * 64
    (directory / "manifest.json").write_text(json.dumps(manifest))
    marker = directory / "step-000000024/checkpoint.json"
    about = json.loads(marker.read_text())
    about["files"]["model.pt"]["sha256"] = "0" * 64
    marker.write_text(json.dumps(about))
    found = ddpgen("verify", directory, "--procs", "2")
    assert found.returncode == 1, found.stderr
    assert found.stdout == (
        "not identical: the checkpoint of step 24: checkpoint.json was changed: model.pt and optimizer.pt are those of the replay\n"
        "the loss of step 22 in metrics.jsonl was changed: the replay has other bits, and the same tensors after it\n"
        "weights in manifest.json is not the hash of the weights of step 24\n"
    )
    assert found.stderr.count("replaying") == 1, found.stderr


@pytest.mark.nightly
def test_a_manifest_that_was_edited_runs_no_code_from_outside_of_the_bundle(
    killed: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(killed, tmp_path / "ckpt"))
    ran, code = tmp_path / "ran", tmp_path / "ckpt/code"
    code.mkdir()
    for name in ("sitecustomize.py", "mine.py"):
        (code / name).write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    manifest = json.loads((directory / "manifest.json").read_text())
    for facts in manifest["environments"].values():
        facts["library_flags"] = {"PYTHONPATH": str(code)}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    found = ddpgen("verify", directory, "--procs", "1")
    assert found.returncode == 0, found.stderr
    manifest["starts"][-1]["argv"].append("--workload=../../../ckpt/code/mine.py:build")
    (directory / "manifest.json").write_text(json.dumps(manifest))
    found = ddpgen("verify", directory, "--procs", "1")
    assert found.returncode == 69, found.stderr
    assert "which lies outside of the bundle" in found.stderr
    assert not ran.exists(), ran.read_text()


@pytest.mark.nightly
def test_it_does_not_cross_the_step_at_which_the_settings_were_changed(tmp_path: Path) -> None:
    train = {"workload": "toy", "steps": 20, "global_batch_size": 8, "micro_batch_size": 2}
    job: dict[str, Any] = {
        "checkpoint": {"dir": str(tmp_path / "ckpt"), "every": "5 steps", "keep": 9}
    }
    bundle = jobs.render(tmp_path, jobs.spec(train, **job))
    assert jobs.run(bundle, "--until=10").process.returncode == 75
    assert jobs.run(bundle, "--lr=0.5", "--accept-changes").process.returncode == 0
    found = ddpgen("verify", tmp_path / "ckpt", "--from", "5", "--procs", "2")
    assert found.stdout == (
        "identical: steps 5 to 10, 5 losses and 4 tensors, on 2 processes (written on 1)\n"
        "it ends at step 10: from step 11 on the run had other settings: lr: 0.001 -> 0.5\n"
    ), found.stderr
    after = ddpgen("verify", tmp_path / "ckpt", "--from", "10", "--steps", "7")
    assert after.stdout.startswith("identical: steps 10 to 17, 7 losses and 4 tensors, on "), (
        after.stderr
    )


@pytest.mark.nightly
def test_the_kept_bundle_is_launched_and_its_run_compared(tmp_path: Path) -> None:
    train = {"workload": "toy", "steps": 20, "global_batch_size": 8, "micro_batch_size": 2}
    assert jobs.run(jobs.render(tmp_path, jobs.spec(train))).process.returncode == 0
    again = tmp_path / "again"
    found = ddpgen("reproduce", tmp_path / "checkpoints/job", "--target", "local", "-o", again)
    assert found.returncode == 0, found.stderr
    assert "the same to the bit: 20 losses, the weights of 1 checkpoint(s)\n" in found.stdout
    refused = ddpgen(
        "reproduce", tmp_path / "checkpoints/job", "--target", "hosts", "-o", tmp_path / "no"
    )
    assert refused.returncode == 69
    assert "the run's bundle was rendered for local, not for hosts; " in refused.stderr
    assert not (tmp_path / "no").exists()


class Verify(Lines):
    def __init__(self, *words: str, **env: str) -> None:
        command = [sys.executable, "-m", "ddpgen", "verify", *words]
        environment = {**os.environ, "PYTHONPATH": str(jobs.ROOT), **env}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **PIPED)
        self._listen()


@pytest.mark.nightly
def test_ctrl_c_ends_it_at_once_and_leaves_nothing_behind(killed: Path) -> None:
    running = Verify(str(killed), "--from=0", "--procs=2", SLOW="0.05")
    while not (line := running.next(jobs.PATIENCE_S) or "ended").startswith("step "):
        assert line != "ended", running.output
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.process.wait(60) == 130
    while running.next(60) is not None:
        pass
    assert running.lines[-1] == "ddpgen verify: interrupted; nothing is left behind"
    assert not list(killed.parent.glob(".*verify*"))
