"""The object `stop` in a store: whom it ends, and what becomes of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from train.checkpoint.store import stop
from train.checkpoint.store.places import Store, StoreError, open_store

WAIT_S = 30


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def watched(store: Path, stop_file: Path) -> threading.Thread:
    about = str(store), "t1", stop_file, 0.01
    thread = threading.Thread(target=stop.watch, args=about, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "user"), (b"enough \x1b[31mfor today\nmore\n", "user: enough [31mfor today")],
)
def test_it_becomes_a_note_of_the_job_and_a_stop_file_when_the_disk_takes_it(
    store: Path, tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_file = tmp_path / "not there yet" / "stop"
    watching = watched(store, stop_file)
    (store / "stop").write_bytes(content)
    while not (store / "stop-obeyed").exists():
        assert watching.is_alive()
    stop_file.parent.mkdir()
    watching.join(WAIT_S)
    assert stop_file.read_text() == f"{reason}\n"
    assert (store / "stop-obeyed").read_text() == "t1\n"
    assert capsys.readouterr().err.count("stop was asked for in ") == 1


@pytest.mark.parametrize("noted", ["", "t1"])
def test_what_no_job_or_this_one_has_heeded_ends_this_one(
    store: Path, tmp_path: Path, noted: str
) -> None:
    (store / "stop").touch()
    if noted:
        (store / "stop-obeyed").write_text(f"{noted}\n")
    watched(store, tmp_path / "stop").join(WAIT_S)
    assert (tmp_path / "stop").exists()
    assert (store / "stop").exists(), "for a recovery of this job"


@pytest.mark.parametrize("there", [["stop", "stop-obeyed"], ["stop-obeyed"]])
def test_what_has_ended_another_job_is_removed_and_the_next_one_heeded(
    store: Path, tmp_path: Path, there: list[str]
) -> None:
    for name in there:
        (store / name).write_text("t0\n")
    watching = watched(store, tmp_path / "stop")
    while any(store.iterdir()):
        assert watching.is_alive()
    assert not (tmp_path / "stop").exists()
    (store / "stop").touch()
    watching.join(WAIT_S)
    assert (tmp_path / "stop").exists()


def test_a_store_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "mounted" / "later"
    watching = watched(place, tmp_path / "stop")
    place.mkdir(parents=True)
    (place / "stop").touch()
    watching.join(WAIT_S)
    assert (tmp_path / "stop").exists()


def test_a_store_that_cannot_be_opened_is_told_of_once_and_watched_when_it_can(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[OSError | None] = [StoreError("no mount"), StoreError("no mount"), None]

    def opened(place: str) -> Store:
        if (error := answers.pop(0)) is not None:
            raise error
        return open_store(place)

    monkeypatch.setattr(stop, "open_store", opened)
    (store / "stop").touch()
    watched(store, tmp_path / "stop").join(WAIT_S)
    assert (tmp_path / "stop").exists()
    told = capsys.readouterr().err
    assert told.count(f"{store} is not seen: no mount") == 1
