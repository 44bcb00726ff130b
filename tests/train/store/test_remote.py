"""What is committed in the store survives any death of its machine, and nothing else is taken for it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpgen.tiers.sky import bucket as follow
from ddpgen.tiers.sky.store import ask_to_stop, read_facts
from tests.train.store import faults
from tests.train.store.faults import (
    KILLED,
    Machine,
    in_child,
    objects,
    remote,
    tensors_of,
    through,
    whole_steps,
)
from train.base.errors import TrainError
from train.checkpoint.store import owner as owner_module
from train.checkpoint.store import retries, stop
from train.checkpoint.store.places import DirectoryStore
from train.run.layout import MARKER
from train.run.lock import FencedOffError

STEPS = (2, 4, 6, 8)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "SILENCE_S", 0.5)
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.05)
    monkeypatch.setattr(retries, "PAUSES_S", (0.0, 0.01))
    monkeypatch.delenv("DDPGEN_SCHEDULER", raising=False)


def train_on(machine: Machine, steps: tuple[int, ...] = STEPS) -> int:
    """A training that takes these checkpoints, from where the store is. Returns where it began."""
    began = machine.begin()
    for step in steps:
        if step > began:
            machine.train(step - 1, step)
            machine.save(step)
    return began


def ended(place: Path, bucket: Path, steps: tuple[int, ...] = STEPS) -> Machine:
    """A machine that has trained so far, and is gone."""
    machine = Machine(place, bucket)
    train_on(machine, steps)
    machine.end()
    return machine


def same(found: dict[str, Any], step: int) -> bool:
    want = tensors_of(step)
    return (
        torch.equal(found["model.pt"]["w"], want["model.pt"]["w"])
        and found["optimizer.pt"] == want["optimizer.pt"]
    )


def test_a_new_machine_goes_on_from_the_newest_checkpoint(tmp_path: Path, bucket: Path) -> None:
    first = ended(tmp_path / "one", bucket)
    assert objects(bucket) == [
        "manifest.json",
        "metrics/000000001-000000002.jsonl",
        "metrics/000000003-000000004.jsonl",
        "metrics/000000005-000000006.jsonl",
        "metrics/000000007-000000008.jsonl",
        "owner.json",
        "status",
        *(
            f"step-00000000{step}/{name}"
            for step in (6, 8)
            for name in (MARKER, "model.pt", "optimizer.pt")
        ),
    ]
    assert (bucket / "status").read_text() == f"running {first.fence.attempt} 8\n"
    second = Machine(tmp_path / "two", bucket)
    assert second.begin() == 8
    assert same(second.loaded(), 8)
    here, there = second.directory / "step-000000008", remote(bucket, 8)
    for name in (MARKER, "model.pt", "optimizer.pt"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    rows = (second.directory / "metrics.jsonl").read_text()
    assert rows == (first.directory / "metrics.jsonl").read_text()
    second.end()


def test_what_is_newer_here_goes_to_the_store_first(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "one", bucket)
    train_on(machine, (2,))
    machine.train(3, 4)
    with monkeypatch.context() as patch:
        patch.setattr(machine.remote, "push", lambda step, may_publish: None)
        machine.save(4)
    machine.end()
    assert whole_steps(bucket) == [2]
    again = Machine(tmp_path / "one", bucket)
    assert again.begin() == 4
    assert whole_steps(bucket) == [2, 4]
    assert (bucket / "metrics" / "000000003-000000004.jsonl").exists()
    again.end()


def count_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    done: list[tuple[str, str]] = []
    with monkeypatch.context() as patch:
        through(patch, lambda n, kind, name: done.append((kind, name)))
        machine = Machine(tmp_path / "undisturbed", tmp_path / "undisturbed-bucket")
        train_on(machine)
        (machine.directory / "status").write_text("done x 8\n")
        machine.remote.close()
        machine.end()
    return done


def looks_whole(store: Path) -> bool:
    """Whether every step that has its marker has all that the marker lists."""
    for step in whole_steps(store):
        files = json.loads((remote(store, step) / MARKER).read_text())["files"]
        if any(not (remote(store, step) / name).exists() for name in files):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("torn", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_killed_between_any_two_operations_a_new_machine_goes_on_from_what_was_committed(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """`torn`: in the middle of the operation, where it writes."""
    operations = count_operations(tmp_path, monkeypatch)
    writes = sum(kind in ("write", "put") for kind, _ in operations)
    assert len(operations) > 45
    assert writes > 20
    resumed = set[int]()
    for at in range(1, len(operations) + 1):
        kind, name = operations[at - 1]
        if torn and kind not in ("write", "put"):
            continue
        store, committed = tmp_path / f"bucket-{at}", tmp_path / f"committed-{at}"

        def killed(
            store: Path = store, committed: Path = committed, at: int = at, name: str = name
        ) -> None:
            def hook(n: int, _: str, __: str) -> None:
                if n < at:
                    return
                if torn:
                    path = store / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(b'{"files": {')
                os._exit(KILLED)

            through(monkeypatch, hook)
            machine = Machine(tmp_path / f"one-{at}", store)
            machine.begin()
            for step in STEPS:
                machine.train(step - 1, step)
                machine.save(step)
                committed.write_text(str(step))
            (machine.directory / "status").write_text("done x 8\n")
            machine.remote.close()

        assert in_child(killed) == KILLED, (at, kind, name)
        assert torn or looks_whole(store), (at, kind, name)
        was = int(committed.read_text()) if committed.exists() else 0
        second = Machine(tmp_path / f"two-{at}", store, job="sky task-1 2")
        began = train_on(second)
        resumed.add(began)
        # The marker may be there and the commit not yet be known.
        assert began in (was, was + 2), (at, kind, name)
        assert same(second.loaded(), 8), (at, kind, name)
        second.end()
        assert whole_steps(store) == [6, 8], (at, kind, name)
        third = Machine(tmp_path / f"three-{at}", store, job="sky task-1 3")
        assert third.begin() == 8, (at, kind, name)
        assert same(third.loaded(), 8), (at, kind, name)
        said = (third.directory / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line)["step"] for line in said]
        assert rows == list(range(1, 9)), (at, kind, name)
        third.end()
    assert resumed == {0, 2, 4, 6, 8}


def lose_the_marker(place: Path) -> None:
    (place / MARKER).unlink()


def lose_the_weights(place: Path) -> None:
    (place / "model.pt").unlink()


def truncate(place: Path) -> None:
    os.truncate(place / "optimizer.pt", 10)


def flip_a_bit(place: Path) -> None:
    content = bytearray((place / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "model.pt").write_bytes(content)


def climb_out(place: Path) -> None:
    meta = json.loads((place / MARKER).read_text())
    meta["files"]["../../evil"] = {"size": 0, "sha256": ""}
    (place / MARKER).write_text(json.dumps(meta))


def remove_all(place: Path) -> None:
    for path in place.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_the_marker, "checkpoint.json is missing: it was never written to the end"),
        (lose_the_weights, "model.pt is missing"),
        (
            flip_a_bit,
            "model.pt does not match its sha256 in checkpoint.json: one of the two was changed",
        ),
        (climb_out, "checkpoint.json is damaged"),
        (remove_all, ""),
    ],
)
def test_a_newest_checkpoint_that_is_not_whole_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str], damage: Any, message: str
) -> None:
    ended(tmp_path / "one", bucket)
    damage(remote(bucket, 8))
    left = objects(bucket)
    capsys.readouterr()
    second = Machine(tmp_path / "two", bucket)
    assert second.begin() == 6
    said = capsys.readouterr().err
    assert (f"step 8 in {bucket} is not whole: {message}" in said) == bool(message)
    assert ("checkpoint of step 6\n" in said) == bool(message)
    # Nothing is deleted because of it.
    assert objects(bucket) == left
    assert same(second.loaded(), 6)
    # Nor when an older one than that is committed: the marker that stands is not a whole one's.
    second.train(7, 7)
    second.save(7)
    assert 6 in whole_steps(bucket)
    assert set(left) - set(objects(bucket)) <= {f"step-00000000{6}/{MARKER}"}
    # The same step, written anew, is whole.
    second.train(8, 8)
    second.save(8)
    second.end()
    assert whole_steps(bucket) == [7, 8]
    third = Machine(tmp_path / "three", bucket)
    assert third.begin() == 8
    assert same(third.loaded(), 8)
    third.end()


def test_all_that_is_there_is_damaged(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path / "one", bucket, (2, 4))
    for step in (2, 4):
        truncate(remote(bucket, step))
    second = Machine(tmp_path / "two", bucket)
    assert second.begin() == 0
    assert "starting over" in capsys.readouterr().err
    assert whole_steps(bucket) == [2, 4], "they stay until there is something better"
    second.train(1, 6)
    second.save(6)
    assert whole_steps(bucket) == [6]
    assert not remote(bucket, 2).exists()
    second.end()


def failing(kind: str, name: str, error: OSError) -> faults.Hook:
    def hook(_: int, this: str, what: str) -> None:
        if this == kind and what.endswith(name):
            raise error

    return hook


FULL = OSError(errno.ENOSPC, "No space left on device")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("name", ["model.pt", MARKER])
def test_an_upload_that_fails_commits_nothing_and_the_next_one_makes_up_for_it(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind = "write" if name == MARKER else "put"
    failed = failing(kind, f"step-000000004/{name}", FULL)
    through(monkeypatch, failed)
    machine = Machine(tmp_path / "one", bucket)
    train_on(machine, (2,))
    machine.train(3, 4)
    with pytest.raises(OSError, match="No space left"):
        machine.save(4)
    assert whole_steps(bucket) == [2]
    assert machine.remote.committed == 2
    machine.train(5, 6)
    machine.save(6)
    assert whole_steps(bucket) == [2, 6]
    assert not remote(bucket, 4).exists(), "what never was a checkpoint is deleted"
    machine.end()


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        ("write", "owner.json", READ_ONLY, "cannot be used: it is read-only; mount it for writing"),
        (
            "read",
            "owner.json",
            OSError(errno.EACCES, "x"),
            "cannot be used: no permission; whoever",
        ),
        ("list", "step-", OSError(errno.EIO, "x"), "cannot be listed: the mount answers with an"),
        ("get", "model.pt", OSError(errno.ENOTCONN, "x"), "the mount is gone; mount the bucket ag"),
    ],
)
def test_a_store_that_does_not_work_at_the_start_is_a_clear_end(
    tmp_path: Path,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    error: OSError,
    message: str,
) -> None:
    ended(tmp_path / "one", bucket)
    through(monkeypatch, failing(kind, name, error))
    second = Machine(tmp_path / "two", bucket)
    with pytest.raises(TrainError) as failed:
        second.begin()
    assert message in str(failed.value)
    assert "\n" not in str(failed.value)
    assert whole_steps(bucket) == [6, 8]


def test_a_disk_that_is_too_small_is_said_before_anything_is_downloaded(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tmp_path / "one", bucket)
    full = type("Usage", (), {"free": 100})()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    second = Machine(tmp_path / "two", bucket)
    with pytest.raises(TrainError, match="has 0 MiB left"):
        second.begin()
    second.end()


def test_a_store_that_loses_what_was_written_is_found_out_and_keeps_its_old_ones(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(_: int, kind: str, name: str) -> None:
        lost = remote(bucket, 6) / "model.pt"
        if kind == "list" and lost.exists():
            lost.unlink()

    through(monkeypatch, hook)
    machine = Machine(tmp_path / "one", bucket)
    train_on(machine, (2, 4))
    machine.train(5, 6)
    with pytest.raises(OSError, match=r"model.pt was written, and is not there"):
        machine.save(6)
    assert {2, 4} <= set(whole_steps(bucket)), "nothing is deleted for what is not there"
    machine.end()


def test_of_one_to_keep_the_one_before_it_is_kept_as_well(tmp_path: Path, bucket: Path) -> None:
    machine = Machine(tmp_path / "one", bucket, keep=1)
    train_on(machine)
    machine.end()
    assert whole_steps(bucket) == [6, 8]


def test_an_earlier_start_never_touches_what_the_later_one_has_committed(
    tmp_path: Path, bucket: Path
) -> None:
    earlier = Machine(tmp_path / "one", bucket, job="sky task-1 1")
    train_on(earlier, (2, 4))
    later = Machine(tmp_path / "two", bucket, job="sky task-1 2")
    assert later.begin() == 4
    later.train(5, 6)
    later.save(6)
    before = {name: (bucket / name).stat().st_mtime_ns for name in objects(bucket)}
    earlier.train(5, 6)
    with pytest.raises(FencedOffError, match="by job task-1 on"):
        earlier.save(6)
    assert earlier.remote.fenced_off is not None
    earlier.remote.give_up("it was replaced")
    earlier.remote.close()
    assert {name: (bucket / name).stat().st_mtime_ns for name in objects(bucket)} == before
    with pytest.raises(TrainError, match="later start of this job"):
        # Its workers, started anew in place.
        Machine(tmp_path / "one", bucket, job="sky task-1 1").open()
    earlier.end()
    later.end()


def test_another_start_that_comes_in_the_middle_is_seen_before_the_marker(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = Machine(tmp_path / "one", bucket, job="sky task-1 1")
    train_on(earlier, (2,))
    real = DirectoryStore.put
    come: list[Machine] = []

    def put(self: DirectoryStore, name: str, source: Path) -> None:
        real(self, name, source)
        if not come and name.endswith("optimizer.pt"):
            come.append(Machine(tmp_path / "two", bucket, job="sky task-1 2"))
            come[0].begin()

    monkeypatch.setattr(DirectoryStore, "put", put)
    earlier.train(3, 4)
    with pytest.raises(FencedOffError):
        earlier.save(4)
    assert whole_steps(bucket) == [2]
    earlier.end()
    come[0].end()


def test_the_last_words_are_in_the_store_and_make_room(tmp_path: Path, bucket: Path) -> None:
    first = Machine(tmp_path / "one", bucket)
    train_on(first, (2,))
    (first.directory / "status").write_text("stopped a 2 user: enough\n")
    first.remote.close()
    first.fence.close()
    assert (bucket / "status").read_text() == "stopped a 2 user: enough\n"
    failed = Machine(tmp_path / "two", bucket, job="sky task-2 1")
    failed.begin()  # at once, although it is another job
    failed.remote.give_up("the model\nhas no parameters")
    failed.end()
    status = (bucket / "status").read_text()
    assert status == f"failed {failed.fence.attempt} 2 the model has no parameters\n"
    assert not (bucket / "owner.json").exists()


@pytest.mark.parametrize(("word", "stays"), [("done", False), ("stopped", True)])
def test_a_stop_that_came_when_all_was_done_is_not_the_next_jobs(
    tmp_path: Path, bucket: Path, word: str, stays: bool
) -> None:
    first = Machine(tmp_path / "one", bucket)
    train_on(first, (2,))
    (first.directory / "status").write_text(f"{word} a 2\n")
    (bucket / "stop").write_text("enough\n")
    first.remote.close()
    first.fence.close()
    assert (bucket / "stop").exists() is stays


def test_what_is_written_is_what_ddpgen_status_looks_for(tmp_path: Path, bucket: Path) -> None:
    """The generator and the training know the layout of a bucket each by itself."""
    at = follow.Address(f"file://{bucket}")
    machine = Machine(tmp_path / "one", bucket)
    assert read_facts(at) == {"there": "no"}
    standing = {"attempt": machine.fence.attempt, "step": STEPS[-1]}
    (machine.directory / "progress.json").write_text(json.dumps(standing) + "\n")
    train_on(machine)
    found = read_facts(at)
    assert int(found.pop("owner-age")) <= 60
    assert abs(int(found.pop("now")) - time.time()) <= 60
    assert json.loads(found.pop("progress")) == standing
    assert found == {
        "there": "yes",
        "newest": str(STEPS[-1]),
        "status": f"running {machine.fence.attempt} {STEPS[-1]}",
    }
    ask_to_stop(at, "ddpgen stop")
    stop.watch(str(bucket), "task-1", machine.directory / "stop")
    assert (machine.directory / "stop").read_text() == "user: ddpgen stop\n"
    assert read_facts(at)["stop"] == "asked"
    machine.end()


def test_a_store_on_this_machines_own_disk_is_said_to_be_none(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "one", bucket)
    machine.open()
    assert f"{bucket} is on the same disk " in capsys.readouterr().err
    machine.end()


def test_a_clock_that_is_behind_keeps_no_recovery_out(tmp_path: Path, bucket: Path) -> None:
    first = Machine(tmp_path / "one", bucket, job="sky task-1 900")
    train_on(first)
    second = Machine(tmp_path / "two", bucket, job="sky task-1 5")
    assert second.begin() == 8
    with pytest.raises(FencedOffError):
        first.remote.owner.check()
    first.end()
    second.end()
    # Workers that are started anew in place are the same start.
    again = Machine(tmp_path / "two", bucket, job="sky task-1 5")
    assert again.begin() == 8
    again.end()
    # The script of a machine forgets: a start of its own there is the later one.
    (tmp_path / "one" / "store-turn").unlink()
    third = Machine(tmp_path / "one", bucket, job="sky task-1 1")
    assert third.begin() == 8
    third.end()


def test_where_a_scheduler_counts_the_starts_that_is_what_counts(
    tmp_path: Path, bucket: Path
) -> None:
    first = Machine(tmp_path / "one", bucket, job="slurm 4711 0")
    train_on(first)
    second = Machine(tmp_path / "two", bucket, job="slurm 4711 1")
    second.begin()
    with pytest.raises(TrainError, match="later start of this job"):
        Machine(tmp_path / "three", bucket, job="slurm 4711 0").open()
    first.end()
    second.end()
    third = Machine(tmp_path / "one", bucket, job="slurm 4711 2")
    assert third.begin() == 8
    third.end()


@pytest.mark.parametrize("newest", [6, 8])
def test_a_damaged_checkpoint_here_hides_no_good_one_in_the_store(
    tmp_path: Path, bucket: Path, newest: int
) -> None:
    """`newest`: in the store."""
    first = ended(tmp_path / "one", bucket)
    flip_a_bit(first.directory / "step-000000008")
    if newest == 6:
        remove_all(remote(bucket, 8))
        remove_all(first.directory / "step-000000006")
    second = Machine(tmp_path / "one", bucket)
    assert second.begin() == newest
    assert same(second.loaded(), newest)
    second.end()


def test_what_is_whole_here_is_not_downloaded(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tmp_path / "one", bucket)
    got: list[str] = []
    through(monkeypatch, lambda n, kind, name: got.append(name) if kind == "get" else None)
    second = Machine(tmp_path / "one", bucket)
    assert second.begin() == 8
    assert got == []
    second.end()


def test_a_store_that_comes_late_is_waited_for_with_a_line(
    tmp_path: Path,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures = 2

    def hook(_: int, kind: str, name: str) -> None:
        nonlocal failures
        if kind == "read" and failures:
            failures -= 1
            raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(retries, "PAUSES_S", (0.0, 0.01, 0.02))
    through(monkeypatch, hook)
    machine = Machine(tmp_path / "one", bucket)
    assert machine.begin() == 0
    said = capsys.readouterr().err
    assert said.count(f"{bucket}: Connection timed out; ") == 1
    machine.end()


@pytest.mark.parametrize("held", [False, True], ids=["its own", "another's"])
def test_a_start_that_cannot_have_the_store_says_so_there_if_nobody_else_has_it(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    ended(tmp_path / "one", bucket)
    if held:
        record = json.loads((bucket / "owner.json").read_text())
        record["job"] = record["attempt"] = record["home"] = "other"
        (bucket / "owner.json").write_text(json.dumps(record))
    before = (bucket / "status").read_text()
    through(monkeypatch, failing("write", "owner.json", FULL))
    second = Machine(tmp_path / "two", bucket)
    with pytest.raises(TrainError, match="no space left there"):
        second.open()
    now = (bucket / "status").read_text()
    assert (
        now == before if held else now.startswith(f"failed {second.fence.attempt} 0 the checkpoint")
    )
    second.fence.close()


def test_a_place_that_was_swapped_under_the_job_is_not_written_to(
    tmp_path: Path, bucket: Path
) -> None:
    machine = Machine(tmp_path / "one", bucket)
    train_on(machine, (2,))
    bucket.rename(tmp_path / "elsewhere")
    bucket.mkdir()
    machine.train(3, 4)
    with pytest.raises(
        OSError, match=r"owner.json and manifest.json are gone: .* mount the bucket"
    ):
        machine.save(4)
    assert objects(bucket) == []
    bucket.rmdir()
    (tmp_path / "elsewhere").rename(bucket)
    (bucket / "owner.json").unlink()
    machine.train(5, 6)
    machine.save(6)
    assert whole_steps(bucket) == [2, 6]
    machine.end()


def test_a_start_that_was_replaced_by_one_that_has_ended_since_stops_writing(
    tmp_path: Path, bucket: Path
) -> None:
    earlier = Machine(tmp_path / "one", bucket)
    train_on(earlier, (2,))
    later = Machine(tmp_path / "two", bucket)
    later.begin()
    (later.directory / "status").write_text("done x 2\n")
    later.remote.close()
    later.end()
    assert not (bucket / "owner.json").exists()
    earlier.train(3, 4)
    with pytest.raises(FencedOffError, match="later start has written"):
        earlier.save(4)
    assert not (bucket / "owner.json").exists()
    earlier.end()


def test_the_store_gets_the_manifest_and_the_bundle_when_more_is_known(
    tmp_path: Path, bucket: Path
) -> None:
    machine = Machine(tmp_path / "a", bucket)
    machine.begin()
    (machine.directory / "bundles").mkdir()
    (machine.directory / "bundles/0123456789ab.tar.gz").write_text("packed by now")
    more = {"attempt": machine.fence.attempt, "bundle": "0123456789ab"}
    machine.remote.describe(more)
    assert json.loads((bucket / "manifest.json").read_text()) == {**more, "job": "task-1"}
    assert (bucket / "bundles/0123456789ab.tar.gz").exists()
    (bucket / "manifest.json").unlink()
    machine.remote.describe(dict(more))
    assert not (bucket / "manifest.json").exists(), "nothing is sent twice"
    machine.end()
