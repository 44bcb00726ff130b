"""Whole trainings with a store: machines that die, stores that fail, users that want an end."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.real.jobs import assert_same_bits
from tests.train import workers
from tests.train.store.faults import KILLED, Hook, remote, through, whole_steps
from tests.train.test_manifest import made_bundle
from tests.train.workers import Run, run
from train.base.files import replace_file
from train.checkpoint import checkpointer, disk
from train.checkpoint.checkpointer import Checkpointer
from train.checkpoint.store import owner as owner_module
from train.checkpoint.store import retries, stop
from train.checkpoint.store.owner import Owner, Ownership
from train.checkpoint.store.places import DirectoryStore
from train.run import bundle, status
from train.run.bundle import unpack
from train.run.layout import MARKER
from train.run.stop import create_stop_file

MODELS = Path(__file__).parents[1] / "odd_models.py"
EVERY_2 = "--checkpoint-every=2 steps"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "LOOK_S", 0.05)
    monkeypatch.setattr(owner_module, "RENEW_S", 0.3)
    monkeypatch.setattr(owner_module, "SILENCE_S", 1.0)
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.05)
    monkeypatch.setattr(retries, "PAUSES_S", (0.0, 0.01))
    monkeypatch.setattr(checkpointer, "_LAST_PAUSES_S", (0.05,))
    monkeypatch.setattr(checkpointer, "_URGENT_PAUSES_S", (0.05,))
    monkeypatch.setenv("DDPGEN_SCHEDULER", "sky task-1 1")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def trained(
    place: Path, store: str | Path, *arguments: str, processes: int = 2, steps: int = 8
) -> Run:
    return run(
        place, f"{MODELS}:dropout", processes, f"--checkpoint-store={store}", f"--steps={steps}",
        EVERY_2, "--checkpoint-keep=2", *arguments,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without any store."""
    place = tmp_path_factory.mktemp("undisturbed")
    return run(place, f"{MODELS}:dropout", 2, "--steps=8", EVERY_2)


def steps_said(run_: Run) -> list[int]:
    lines = (run_.directory / "metrics.jsonl").read_text().splitlines()
    return [row["step"] for row in map(json.loads, lines) if row["kind"] == "step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        ("write", f"step-000000004/{MARKER}"),
        pytest.param(("delete", f"step-000000002/{MARKER}"), marks=pytest.mark.nightly),
        pytest.param(("write", f"step-000000008/{MARKER}"), marks=pytest.mark.nightly),
        ("delete", "owner.json"),
    ],
    ids=lambda moment: f"{moment[0]} {moment[1]}",
)
def test_killed_in_an_upload_the_job_goes_on_elsewhere_to_the_same_tensors(
    tmp_path: Path,
    bucket: Path,
    undisturbed: Run,
    monkeypatch: pytest.MonkeyPatch,
    moment: tuple[str, str],
) -> None:
    def hook(_: int, kind: str, name: str) -> None:
        if (kind, name) == moment:
            os._exit(KILLED)

    monkeypatch.setattr(bundle, "PACKAGE_ROOT", made_bundle(tmp_path / "bundle", a="1"))
    with monkeypatch.context() as patch:
        through(patch, hook)
        died = trained(tmp_path / "one", bucket)
    assert died.codes[0] == KILLED, died.output
    monkeypatch.setenv("DDPGEN_SCHEDULER", "sky task-1 2")
    done = trained(tmp_path / "two", bucket)
    assert done.codes == [0, 0], done.output
    assert done.status.startswith("done ")
    assert_same_bits(done.tensors(), undisturbed.tensors())
    assert steps_said(done) == list(range(1, 9))
    assert whole_steps(bucket) == [6, 8]
    assert (bucket / "status").read_text() == done.status
    assert_all_is_in_the_store(bucket, done)


def assert_all_is_in_the_store(bucket: Path, done: Run) -> None:
    """Who has the store and nothing else can see all starts, and do the run again."""
    manifest = json.loads((bucket / "manifest.json").read_text())
    assert manifest.pop("job") == "task-1"
    assert manifest == json.loads((done.directory / "manifest.json").read_text())
    first, second = manifest["starts"]
    assert (first["end"], second["end"]) in (("killed", "done"), ("done", "done"))
    assert first["bundle"] == second["bundle"]
    unpack(bucket, second["bundle"], bucket / "bundle")


@pytest.mark.slow
def test_the_best_checkpoint_stays_in_the_store_for_a_new_machine(
    tmp_path: Path, bucket: Path
) -> None:
    flags = (
        f"--checkpoint-store={bucket}", EVERY_2, "--checkpoint-keep=2", "--eval-every=2",
        "--best-metric=quality", "--best-mode=max", "--arg=values=[0.1, 0.9, 0.2]",
    )  # fmt: skip
    workload = f"{MODELS.with_name('own_parts.py')}:measured"
    for name, steps in (("a", 10), ("b", 14), ("c", 16)):
        done = run(tmp_path / name, workload, 2, f"--steps={steps}", *flags)
        assert set(done.codes) == {0}, done.output
        about = json.loads((tmp_path / name / "best.json").read_text())
        assert (about["step"], about["value"]) == (4, pytest.approx(0.9))
        assert (bucket / "best.json").read_bytes() == (tmp_path / name / "best.json").read_bytes()
        assert whole_steps(bucket) == [4, steps - 2, steps]
    assert "best quality: 0.9, at step 4; " in done.output
    assert " step-000000004 " in done.output


@pytest.mark.slow
def test_without_a_store_none_of_it_is_imported() -> None:
    code = (
        "import sys; import train.trainer\n"
        "assert not [m for m in sys.modules if m.startswith('train.checkpoint.store')], sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.slow
def test_a_stop_in_the_store_ends_all_processes_cleanly(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(_: int, kind: str, name: str) -> None:
        if (kind, name) == ("delete", f"step-000000002/{MARKER}"):
            (bucket / "stop").write_text("the loss is good enough\n")

    def on(machine: str, job: str, steps: int = 100_000) -> Run:
        """As a supervisor does that has a store."""
        about = str(bucket), job, tmp_path / machine / "stop", 0.05
        threading.Thread(target=stop.watch, args=about, daemon=True).start()
        return trained(tmp_path / machine, bucket, steps=steps)

    with monkeypatch.context() as patch:
        through(patch, hook)
        stopped = on("one", "task-1")
    assert stopped.codes == [0, 0], stopped.output
    word, _, step, reason = stopped.status.split(maxsplit=3)
    assert (word, reason) == ("stopped", "user: the loss is good enough\n")
    assert int(step) < 1_000_000
    assert whole_steps(bucket)[-1] == int(step), "a clean stop awaits its upload"
    assert (bucket / "status").read_text() == stopped.status
    assert not (bucket / "owner.json").exists()
    # A recovery of this task ends, too; a new task begins where this one was.
    monkeypatch.setenv("DDPGEN_SCHEDULER", "sky task-1 2")
    recovered = on("two", "task-1")
    assert recovered.status.startswith("stopped "), recovered.output
    assert int(recovered.status.split()[2]) < int(step) + 1000
    monkeypatch.setenv("DDPGEN_SCHEDULER", "sky task-2 1")
    step = recovered.status.split()[2]
    new = on("three", "task-2", steps=int(step) + 3)
    assert new.status.startswith("done "), new.output
    assert f"resuming at step {step} of" in new.output
    assert not (bucket / "stop").exists()


def full_for(words: str) -> Hook:
    def hook(_: int, kind: str, name: str) -> None:
        if kind == "put" and words in name:
            raise OSError(errno.ENOSPC, "No space left on device")

    return hook


def test_an_upload_that_fails_is_named_once_and_costs_nothing_else(
    tmp_path: Path, bucket: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, full_for("step-000000004/"))
    done = trained(tmp_path / "one", bucket, "--checkpoint-every=4 steps")
    assert done.codes == [0, 0], done.output
    assert done.output.count("the checkpoint of step 4 ") == 1
    assert f"step 4 is only on this machine: {bucket}: no space left " in done.output
    assert "in the store again, newest step 8\n" in done.output
    assert whole_steps(bucket) == [8]
    assert_same_bits(done.tensors(), undisturbed.tensors())


def test_a_last_checkpoint_that_does_not_get_there_fails_the_job_and_the_next_start_makes_it_good(
    tmp_path: Path, bucket: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        through(patch, full_for("step-000000008/"))
        failed = trained(tmp_path / "one", bucket)
    assert failed.codes == [1, 1], failed.output
    why = (
        f"the checkpoint of step 8 is only on this machine: {bucket}: no space left there; make room or "
        "raise the quota. Started again, the job resumes from the newest checkpoint in the store (step 6), "
        "and from this one where this machine's disk is there still"
    )
    word, _, _, reason = failed.status.split(maxsplit=3)
    assert (word, reason) == ("failed", f"{why}\n")
    assert (bucket / "status").read_text().endswith(f"{reason}")
    assert not (bucket / "owner.json").exists()
    assert remote(failed.directory, 8).is_dir()
    again = trained(tmp_path / "one", bucket)
    assert again.status.startswith("done "), again.output
    assert whole_steps(bucket)[-1] == 8
    assert_same_bits(again.tensors(), undisturbed.tensors())


@pytest.mark.slow
def test_a_slow_store_holds_nothing_up_and_nothing_piles_up_before_it(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading = threading.Lock()

    def hook(_: int, kind: str, name: str) -> None:
        if kind == "put":
            assert uploading.acquire(blocking=False), "one at a time"
            time.sleep(0.15)
            uploading.release()

    monkeypatch.setattr(workers, "due", Checkpointer.due)
    through(monkeypatch, hook)
    done = trained(tmp_path / "one", bucket, "--checkpoint-every=1 steps", steps=150)
    assert done.codes == [0, 0], done.output
    assert whole_steps(bucket)[-1] == 150
    uploads = len(list((bucket / "metrics").iterdir())) - 1
    assert 1 <= uploads < 100, "as many as there was time for"
    assert steps_said(done) == list(range(1, 151))


@pytest.mark.slow
def test_the_others_wait_for_a_slow_store_longer_than_for_a_peer(
    tmp_path: Path, bucket: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(_: int, kind: str, name: str) -> None:
        if name.endswith("step-000000004/model.pt"):
            time.sleep(8.0)

    monkeypatch.setattr("train.trainer.LAST_SAVE_S", 1.0)  # of disks

    through(monkeypatch, hook)
    for place, steps in (("one", 4), ("two", 8)):
        done = trained(tmp_path / place, bucket, "--collective-timeout=5s", steps=steps)
        assert done.codes == [0, 0], done.output
    assert "resuming at step 4 of 8" in done.output
    assert_same_bits(done.tensors(), undisturbed.tensors())


def test_a_store_that_is_missing_ends_every_process_with_the_reason(tmp_path: Path) -> None:
    # Below a mount point it would be made; the tests' own directory may lie below one.
    failed = trained(tmp_path / "one", Path("/no-bucket/mounted/here"))
    assert failed.codes == [1, 1], failed.output
    word, _, _, reason = failed.status.split(maxsplit=3)
    why = (
        "the checkpoint store /no-bucket/mounted/here cannot be used: there is no directory "
        "/no-bucket/mounted; is the bucket mounted there?\n"
    )
    assert (word, reason) == ("failed", why)


def test_a_later_start_of_the_same_job_ends_the_earlier_one(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Owner("task-1", "later", "elsewhere", restarts=2)

    def hook(_: int, kind: str, name: str) -> None:
        if (kind, name) == ("write", "metrics/000000001-000000004.jsonl"):
            Ownership(DirectoryStore(bucket), later).take()

    # A renewal that the earlier one has begun would put its name over the later one's.
    monkeypatch.setattr(owner_module, "RENEW_S", 1e6)
    with monkeypatch.context() as patch:
        through(patch, hook)
        earlier = trained(
            tmp_path / "one", bucket, "--checkpoint-every=4 steps", steps=100_000, processes=1
        )
    assert earlier.codes == [0], earlier.output
    assert "by job task-1 on elsewhere (attempt later) " in earlier.output
    assert whole_steps(bucket) == [], "its marker came too late"


@pytest.mark.parametrize("reason", ["preempted: the cloud says so", "signal"])
def test_a_machine_that_is_taken_back_stops_even_if_the_store_takes_nothing(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    stop = tmp_path / "one" / "stop"

    def hook(_: int, kind: str, name: str) -> None:
        if kind == "put" and "step-000000002/" not in name:
            create_stop_file(stop, reason)  # whole at once: an empty one is a user's
            raise OSError(errno.ENOSPC, "No space left on device")

    through(monkeypatch, hook)
    stopped = trained(tmp_path / "one", bucket, steps=100_000)
    assert stopped.codes == [0, 0], stopped.output
    word, _, step, told = stopped.status.split(maxsplit=3)
    assert (word, told) == ("stopped", f"{reason}\n")
    assert remote(stopped.directory, int(step)).is_dir()
    assert f"step {step} is only on this machine: {bucket}: no space left " in stopped.output
    assert " in the store (step 2)\n" in stopped.output
    assert (bucket / "status").read_text() == stopped.status
    assert not (bucket / "owner.json").exists()


def test_a_machine_that_is_taken_back_stops_even_if_its_own_disk_is_full(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stop = disk.write, tmp_path / "one" / "stop"

    def write(directory: Path, step: int, *rest: object) -> None:
        if step > 2:
            create_stop_file(stop, "preempted: x")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(directory, step, *rest)  # type: ignore[arg-type]

    def replace(path: Path, content: bytes) -> None:
        if stop.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, content)

    monkeypatch.setattr(disk, "write", write)
    monkeypatch.setattr(status, "replace_file", replace)
    stopped = trained(tmp_path / "one", bucket, steps=100_000)
    assert stopped.codes == [0, 0], stopped.output
    assert stopped.status.startswith("stopped ")
    assert stopped.status.endswith(" preempted: x\n")
    assert "(no space left " in stopped.output
    assert " in the store (step 2)\n" in stopped.output
    assert "the weights: " not in stopped.output


def test_a_user_who_stops_waits_for_the_store(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on this machine alone dies with it."""
    monkeypatch.setattr(checkpointer, "_LAST_PAUSES_S", (0.05, 0.1, 0.1, 0.1))
    monkeypatch.setattr(checkpointer, "_URGENT_PAUSES_S", ())
    stop, tried = tmp_path / "one" / "stop", list[str]()

    def hook(_: int, kind: str, name: str) -> None:
        if kind == "put" and name.endswith("/model.pt") and "step-000000002/" not in name:
            stop.touch()
            tried.append(name)
            if tried.count(name) < 4:
                raise OSError(errno.EIO, "Input/output error")

    through(monkeypatch, hook)
    stopped = trained(tmp_path / "one", bucket, steps=100_000)
    assert stopped.codes == [0, 0], stopped.output
    step = stopped.status.split()[2]
    assert stopped.output.count("trying again for 0.35 s ") == 1
    assert f"in the store again, newest step {step}\n" in stopped.output
    assert whole_steps(bucket)[-1] == int(step)


def test_a_store_that_hangs_costs_no_checkpoint_here_and_is_used_again(
    tmp_path: Path, bucket: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LIMIT_S", 0.3)
    monkeypatch.setattr(checkpointer, "_LAST_PAUSES_S", (0.2,) * 50)
    directory = tmp_path / "one"

    def hook(_: int, kind: str, name: str) -> None:
        if (kind, name) == ("put", "step-000000002/model.pt"):
            deadline = time.monotonic() + 60
            while not remote(directory, 8).is_dir():
                assert time.monotonic() < deadline, "the training waits for the store"
                time.sleep(0.02)

    through(monkeypatch, hook)
    done = trained(directory, bucket)
    assert done.codes == [0, 0], done.output
    silent = rf"{re.escape(str(bucket))} does not answer: a call has not come back for \d+ s \("
    assert re.search(silent, done.output)
    assert "checkpoints on this machine only" in done.output
    assert "in the store again, newest step 8\n" in done.output
    assert whole_steps(bucket)[-1] == 8
    assert_same_bits(done.tensors(), undisturbed.tensors())
