"""What a start of a Slurm job may touch in a checkpoint directory, and when."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from train.base.errors import Refusal
from train.launch.slurm.decision import CRASH, Begun, Failure
from train.launch.slurm.directory import Directory, Starts, checkpoint_directory
from train.launch.slurm.job import Controller
from train.run import lock
from train.run.status import Status, read_status, write_status


class Queue(Controller):
    """squeue, as a table: a job that is not in it is not known."""

    def __init__(self, states: Mapping[str, str]) -> None:
        super().__init__("7")
        self._states = states

    def state_of(self, job: str) -> str | None:
        return self._states.get(job)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Come back from /, into which release() goes, because it removes the working directory of a job."""
    monkeypatch.chdir(tmp_path)


def mine(place: Path, requeue_count: int = 0, job: str = "7") -> Directory:
    return Directory(place, job, job, requeue_count, "here")


def bundle_of(place: Path, job: str) -> Path:
    """The copy that a start of `job` has made."""
    bundle = place.parent / f"{place.name}-of-{job}"
    (bundle / "train").mkdir(parents=True)
    (bundle / "bundle.json").write_text('{"files": {}}')
    place.mkdir(exist_ok=True)
    return mine(place, requeue_count=1, job=job).keep_snapshot(bundle, None)


def files(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.name.endswith(".guard")
    }


@pytest.mark.parametrize(
    ("on_file", "state", "said"),
    [
        ("5 0 here", "RUNNING", "belongs to Slurm job 5, which is RUNNING; "),
        ("5 2 here", "PENDING", "belongs to Slurm job 5, which is PENDING"),
        ("5_1 2", "REQUEUE_HOLD", "belongs to Slurm job 5_1, which is REQUEUE_HOLD"),
        ("5", "RUNNING", "belongs to Slurm job 5, which is RUNNING; "),
        ("5 0 here", "SOMETHING_NEW", "belongs to Slurm job 5, which is SOMETHING_NEW; "),
        ("5 0 here", "", "belongs to Slurm job 5, which is unknown"),  # squeue does not answer
        (
            "5 0 there",
            "COMPLETED",
            "belongs to Slurm job 5 of the cluster there; if it is over, rm ",
        ),
        (
            "7 1 here",
            "RUNNING",
            "held by a later start of Slurm job 7: start 2, and this is start 1",
        ),
    ],
)
def test_a_refused_job_touches_nothing(tmp_path: Path, on_file: str, state: str, said: str) -> None:
    write_status(tmp_path, Status("running", "slurm.5.0", 10))
    (tmp_path / "slurm-job").write_text(f"{on_file}\n")
    (tmp_path / "stop").touch()
    bundle_of(tmp_path, "5")
    before = files(tmp_path)
    directory = mine(tmp_path)
    with pytest.raises(Refusal, match=said) as refused:
        directory.take(Queue({on_file.split(maxsplit=1)[0]: state}))
    directory.release()
    assert refused.value.code == 69
    assert files(tmp_path) == before


def test_a_live_job_that_slurm_has_not_started_is_not_disturbed(tmp_path: Path) -> None:
    lock.claim(tmp_path, "local", os.getpid())
    before = files(tmp_path)
    with pytest.raises(Refusal, match=r"in use by job 'local'.*\(DIR004\)"):
        mine(tmp_path).take(Queue({}))
    assert files(tmp_path) == before


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", None])
def test_what_a_job_that_is_over_has_left_is_taken_and_given_back(
    tmp_path: Path, state: str | None
) -> None:
    (tmp_path / "slurm-job").write_text("5 0 here\n")
    mine(tmp_path).take(Queue({"5": state} if state else {}))
    assert (tmp_path / "slurm-job").read_text() == "7 0 here\n"
    later = mine(tmp_path, requeue_count=1)
    later.take(Queue({}))
    mine(tmp_path).release()  # an earlier start that ends late
    assert later.is_ours
    bundle_of(tmp_path, "7")
    before = os.getcwd()
    later.release()
    os.chdir(before)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "requeue_count", "age", "obeyed"),
    [
        ("", 0, -10, True),  # made while the job was in the queue
        ("", 0, 10, False),  # an old one
        ("", 1, 10, True),
        ("slurm 7 0 USR1\n", 1, -10, False),  # of an earlier start that was killed
        ("slurm 5 0 TERM\n", 1, -10, False),  # left by another job
        ("slurm 5 0 TERM\n", 0, -10, False),
        ("please\n", 1, 10, True),
    ],
)
def test_a_stop_file_is_obeyed_that_is_meant_for_this_job(
    tmp_path: Path, words: str, requeue_count: int, age: float, obeyed: bool
) -> None:
    submitted = time.time() - 100
    (tmp_path / "stop").write_text(words)
    os.utime(tmp_path / "stop", (submitted - age, submitted - age))
    directory = mine(tmp_path, requeue_count)
    if obeyed:
        with pytest.raises(Refusal, match="in the queue") as stopped:
            directory.obey_stop(submitted)
        assert stopped.value.code == 75
    else:
        directory.obey_stop(submitted)
    assert not (tmp_path / "stop").exists()


def test_a_stop_file_says_for_whom_it_is_and_replaces_none(tmp_path: Path) -> None:
    directory = mine(tmp_path)
    assert directory.whose_stop() == ""
    directory.request_stop("USR1")
    directory.request_stop("TERM")
    assert (tmp_path / "stop").read_text() == "slurm 7 0 USR1\n"
    assert directory.whose_stop() == "job"
    assert mine(tmp_path, job="8").whose_stop() == "other"
    (tmp_path / "stop").write_text("")
    directory.request_stop("TERM")
    assert directory.whose_stop() == "user"
    # What nobody obeys is no request.
    for left in ("slurm 5 0 TERM\n", "slurm 7 0 USR1\n"):
        (tmp_path / "stop").write_text(left)
        mine(tmp_path, requeue_count=1).request_stop("TERM")
        assert (tmp_path / "stop").read_text() == "slurm 7 1 TERM\n"
    assert os.listdir(tmp_path) == ["stop"]


def bundle_in(place: Path, *names: str) -> Path:
    """A bundle whose bundle.json lists these files."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("as submitted")
    (place / "bundle.json").write_text(json.dumps({"files": dict.fromkeys(names, "")}))
    return place


def test_what_was_submitted_is_what_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, place = tmp_path / "build" / "gpt", tmp_path / "build" / "checkpoints" / "gpt"
    bundle_in(bundle, "train/__main__.py", "code/a.py")
    place.mkdir(parents=True)
    submitted = time.time() - 100
    for path in bundle.rglob("*"):
        os.utime(path, (submitted, submitted))
    for name in ("gpt-17.log", "slurm-17.out", "train/a.pyc"):  # written since, and not listed
        (bundle / name).touch()
    assert checkpoint_directory(bundle, "../checkpoints/gpt", "") == place
    snapshot = mine(place).keep_snapshot(bundle, submitted)
    assert snapshot == place / "slurm-bundle-7"
    assert capsys.readouterr().err == ""
    (bundle / "train/__main__.py").write_text("another")
    assert mine(place, requeue_count=1).keep_snapshot(bundle, submitted) == snapshot
    assert (snapshot / "train/__main__.py").read_text() == "as submitted"
    assert mine(place, job="8").keep_snapshot(bundle, submitted) == place / "slurm-bundle-8"
    assert "train/__main__.py has changed " in capsys.readouterr().err
    assert not snapshot.exists()
    assert mine(place).keep_snapshot(bundle, None) == snapshot
    assert mine(place).keep_snapshot(bundle, None) == snapshot  # a job that has this number again
    assert (snapshot / "train/__main__.py").read_text() == "another"
    # The bundle is gone: the batch script starts the snapshot.
    (place / "slurm-job").write_text("7 0\n")
    assert checkpoint_directory(snapshot, "../checkpoints/gpt", "") == place
    assert mine(place, requeue_count=1).keep_snapshot(snapshot, submitted) == snapshot
    # Submitted again from there, under another number.
    again = mine(place, job="9").keep_snapshot(snapshot, submitted)
    assert sorted(path.name for path in place.glob("slurm-b*")) == [snapshot.name, again.name]


def test_nothing_of_the_users_is_taken_for_a_copy_of_the_bundle(tmp_path: Path) -> None:
    place, bundle = tmp_path / "runs", bundle_in(tmp_path / "build", "train/__main__.py")
    for name in ("bundle-7", "slurm-bundle-6", "slurm-bundle-7.part"):
        bundle_in(place / name, "train/__main__.py", "thesis.tex")
    before = files(place)
    with pytest.raises(Refusal, match=r"slurm-bundle-7: File exists; .* or the name taken\?"):
        mine(place).keep_snapshot(bundle, None)
    assert files(place) == before
    assert checkpoint_directory(place / "slurm-bundle-6", "../c", "") == place / "c"
    mine(place, job="8").keep_snapshot(bundle, None)
    mine(place, job="8").take(Queue({}))
    mine(place, job="8").release()
    assert files(place) == before
    bundle_in(place / "slurm-bundle-8", "thesis.tex")
    with pytest.raises(Refusal, match="slurm-bundle-8: Directory not empty"):
        mine(place, job="8").keep_snapshot(bundle, None)
    assert (place / "slurm-bundle-8" / "thesis.tex").exists()


def test_a_copy_that_fails_leaves_no_part_and_says_one_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_in(tmp_path / "build", "train/__main__.py", "code/a.py")
    place = tmp_path / "runs"
    place.mkdir()

    def full(source: Path, target: Path, **how: object) -> None:
        why = "[Errno 28] No space left on device: 'a' -> 'b'"
        raise shutil.Error([(f"{source}/{name}", f"{target}/{name}", why) for name in ("a", "b")])

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(Refusal) as refused:
        mine(place).keep_snapshot(bundle, None)
    said = f"slurm-bundle-7: {bundle}/a: No space left on device; is the bundle gone, "
    assert said in str(refused.value)
    assert os.listdir(place) == []


def test_a_stop_that_cannot_be_removed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stop").mkdir()
    with pytest.raises(Refusal, match="cannot be removed: ") as no:
        mine(tmp_path).obey_stop(None)
    assert no.value.code == 69
    mine(tmp_path).remove_stop()
    assert "stop cannot be removed: " in capsys.readouterr().err


def test_where_the_checkpoints_are(tmp_path: Path) -> None:
    copy = tmp_path / "build" / ".submitted" / "gpt-3"
    beside = tmp_path / "build" / "checkpoints"
    assert checkpoint_directory(copy, "../checkpoints/gpt", "") == beside / "gpt"
    assert mine(beside).keep_snapshot(copy, 0.0) == copy  # nobody writes there again
    assert checkpoint_directory(tmp_path / "b", "../c", "4") == tmp_path / "c-4"
    assert checkpoint_directory(tmp_path / "b", "/scratch/c", "") == Path("/scratch/c")
    assert checkpoint_directory(tmp_path / "b", "~/c", "") == Path.home() / "c"


def test_what_a_script_was_seen_to_save_counts_as_a_checkpoint(tmp_path: Path) -> None:
    record = tmp_path / "script" / "saves-0.jsonl"
    record.parent.mkdir()
    row = '{"path": "/w/a.pt", "step": %d, "by": "", "whole": %s}\n'
    record.write_text(row % (40, "true") + row % (60, "false"))
    assert mine(tmp_path).progress(of_script=True) == 40
    record.write_text("torn")
    assert mine(tmp_path).progress(of_script=True) is None  # it may save what is not seen
    assert mine(tmp_path).progress(of_script=False) == 0


def test_what_is_put_on_file_is_this_starts_own(tmp_path: Path) -> None:
    directory = mine(tmp_path)
    starts = Starts("7", 6, 3, (Begun(0, 0, CRASH), Begun(1, 20)), "node1", 1.5, ("node2",))
    directory.keep_starts(starts)
    assert directory.starts() == starts
    assert mine(tmp_path, job="8").starts() == Starts("8")
    directory.keep_failure(69, "node2", "setup of the spec failed;\nits output is above")
    first = Failure(69, "node2", "setup of the spec failed; its output is above")
    directory.keep_failure(69, "node1", "node2 has not checked in")
    assert directory.failure() == first
    after = mine(tmp_path, requeue_count=1)
    assert after.failure() is None
    after.keep_failure(1, "node1", "crashed")
    assert after.failure() == Failure(1, "node1", "crashed")
    assert directory.failure() is None
    directory.say_running()
    assert directory.status() == read_status(tmp_path) == Status("running", "slurm.7.0", 0)
    assert mine(tmp_path, requeue_count=1).status() is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("running slurm.7.1 15 a crash", "failed slurm.7.1 15 node2 has no Python"),
        ("running slurm.7.0 15", "failed slurm.7.0 15 node2 has no Python"),  # an earlier start's
        ("running slurm.8.0 15", None),
        ("running slurm.77.0 15", None),
        ("running 0a1b2c3d 15", None),
        (
            "stopped slurm.7.0 15",
            "failed slurm.7.0 15 node2 has no Python",
        ),  # to go on, as it was thought
        ("done slurm.7.0 15", None),
    ],
)
def test_a_job_that_is_over_leaves_no_status_of_its_own_at_running(
    tmp_path: Path, before: str, after: str | None
) -> None:
    (tmp_path / "status").write_text(f"{before}\n")
    mine(tmp_path, requeue_count=1).say_ended("failed", "node2 has no Python")
    assert (tmp_path / "status").read_text() == f"{after or before}\n"


@pytest.mark.parametrize(("holder", "ours"), [("7 0", True), ("7 1", True), ("7 2", False), ("8 0", False), ("", False)])  # fmt: skip
def test_a_start_frees_what_an_earlier_start_of_its_job_has_taken(
    tmp_path: Path, holder: str, ours: bool
) -> None:
    (tmp_path / "slurm-job").write_text(f"{holder} here\n" if holder else "")
    assert mine(tmp_path, requeue_count=1).is_ours is ours
