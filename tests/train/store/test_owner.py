"""One job writes to a store, and of that job its latest start."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from train.base.errors import TrainError
from train.checkpoint.store import owner as owner_module
from train.checkpoint.store.owner import Owner, Ownership, read_owner
from train.checkpoint.store.places import DirectoryStore, StoreError
from train.run.lock import FencedOffError, HeldByLiveJobError


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "LOOK_S", 0.02)
    monkeypatch.setattr(owner_module, "RENEW_S", 0.08)
    monkeypatch.setattr(owner_module, "SILENCE_S", 0.6)
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.05)


def start(
    store: DirectoryStore,
    job: str = "task-1",
    attempt: str = "a",
    restarts: int = 0,
    home: str = "",
) -> Ownership:
    return Ownership(store, Owner(job, attempt, f"host-{attempt}", restarts, home))


def until(reached: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def test_an_owner_is_on_record_until_it_releases_the_store(store: DirectoryStore) -> None:
    mine = start(store)
    mine.take()
    on_record = json.loads(store.read("owner.json"))
    assert (on_record["job"], on_record["attempt"], on_record["host"]) == ("task-1", "a", "host-a")
    assert abs(on_record["time"] - time.time()) < 60
    mine.release()
    assert read_owner(store) is None


def test_another_job_that_is_alive_is_not_disturbed(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its next sign of life ends the watch, however late that comes.
    monkeypatch.setattr(owner_module, "SILENCE_S", 60.0)
    alive = start(store)
    alive.take()
    with pytest.raises(TrainError) as refused:
        start(store, "task-2", "b", restarts=9).take()
    assert str(refused.value).startswith(
        f"{store.name} belongs to job task-1 on host-a (attempt a), "
    )
    alive.check()
    alive.release()
    start(store, "task-2", "b").take()


def test_a_job_that_comes_while_another_one_is_watched_is_named(store: DirectoryStore) -> None:
    ended = start(store)
    ended.take()
    ended.close()

    class Replaced(DirectoryStore):
        reads = 0

        def read(self, name: str) -> bytes:
            self.reads += 1
            if self.reads == 3:
                self.write(
                    name, json.dumps({"job": "task-3", "attempt": "c", "host": "host-c"}).encode()
                )
            return super().read(name)

    with pytest.raises(HeldByLiveJobError, match="belongs to job task-3 on host-c"):
        start(Replaced(Path(store.name)), "task-2", "b").take()


def test_another_job_that_is_dead_is_watched_and_then_replaced(store: DirectoryStore) -> None:
    dead = start(store)
    dead.take()
    dead.close()
    began = time.monotonic()
    other = start(store, "task-2", "b")
    other.take()
    assert time.monotonic() - began >= 0.6
    with pytest.raises(FencedOffError, match="job task-2 on host-b"):
        dead.check()
    other.close()


def test_a_store_that_is_away_for_a_while_does_not_make_its_owner_a_dead_one(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = start(store)
    alive.take()
    beyond = time.monotonic() + 1.0

    class Away(DirectoryStore):
        def read(self, name: str) -> bytes:
            if seen and time.monotonic() < beyond:
                raise StoreError("it does not answer")
            seen.append(name)
            return super().read(name)

    seen: list[str] = []
    monkeypatch.setattr(owner_module, "_AWAY", 100)
    with pytest.raises(TrainError, match="which is running"):
        start(Away(Path(store.name)), "task-2", "b").take()
    alive.release()


def test_another_job_that_ends_while_it_is_watched_makes_room_at_once(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "SILENCE_S", 60.0)
    monkeypatch.setattr(owner_module, "RENEW_S", 60.0)
    first = start(store)
    first.take()
    ender = threading.Timer(0.2, first.release)
    ender.start()
    second = start(store, "task-2", "b")
    second.take()
    ender.join()
    assert read_owner(store).attempt == "b"  # type: ignore[union-attr]
    second.close()


def test_a_later_start_of_the_job_takes_over_at_once_and_the_earlier_one_sees_it(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "SILENCE_S", 1e6)
    earlier = start(store, restarts=5)
    earlier.take()
    later = start(store, attempt="b", restarts=6)
    later.take()
    until(lambda: earlier.lost is not None)
    later.check()
    with pytest.raises(FencedOffError, match="later start of this job, on host-b"):
        start(store, attempt="c", restarts=5).take()
    earlier.release()
    assert read_owner(store).attempt == "b", "what is another's is not removed"  # type: ignore[union-attr]
    later.close()


@pytest.mark.parametrize(("job", "home"), [("x", "home"), ("task-1", "")])
def test_what_was_here_before_is_not_waited_for(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, job: str, home: str
) -> None:
    monkeypatch.setattr(owner_module, "SILENCE_S", 1e6)
    first = start(store, home="home")
    first.take()
    first.close()
    second = start(store, job, "b", home=home)
    second.take()
    second.check()
    second.close()


def test_a_start_whose_disk_did_not_keep_its_turn_is_not_replaced_by_itself(
    store: DirectoryStore,
) -> None:
    for _ in range(2):
        before = start(store, home="here")
        before.take()
        before.close()
    assert before.turn == 2
    with pytest.raises(FencedOffError, match="a later start of this job"):
        start(store, home="elsewhere").take(turn=1)
    again = start(store, home="here")
    again.take(turn=1)
    again.close()


def test_a_renewal_of_the_earlier_start_that_comes_late_takes_nothing_back(
    store: DirectoryStore,
) -> None:
    earlier = start(store)
    earlier.take()
    earlier.close()
    late = store.read("owner.json")
    later = start(store, attempt="b")
    later.take()
    store.write("owner.json", late)
    later.check()
    until(lambda: read_owner(store).attempt == "b")  # type: ignore[union-attr]
    assert later.lost is None
    later.close()


def test_a_store_that_is_away_for_a_while_ends_nothing(
    store: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    class Away(DirectoryStore):
        away = False

        def read(self, name: str) -> bytes:
            if self.away:
                raise OSError(107, "Transport endpoint is not connected")
            return super().read(name)

    flaky = Away(Path(store.name))
    mine = start(flaky)
    mine.take()
    flaky.away = True
    said = ""

    def hears(words: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return words in said

    until(lambda: hears("does not answer"))
    threading.Event().wait(0.2)
    flaky.away = False
    until(lambda: hears("answers again"))
    assert said.count("does not answer (the mount is gone; ") == 1
    assert mine.lost is None
    mine.release()


def test_its_record_is_always_of_one_size(store: DirectoryStore) -> None:
    mine = start(store)
    mine.take()
    size = store.list("")["owner.json"]
    first = read_owner(store)
    until(lambda: read_owner(store) != first)
    mine.close()
    mine._thread.join(10)
    assert store.list("")["owner.json"] == size


def test_a_record_that_is_being_written_is_no_sign_of_an_end(store: DirectoryStore) -> None:
    alive = start(store)
    alive.take()
    alive.close()

    class Half(DirectoryStore):
        reads = 0

        def read(self, name: str) -> bytes:
            self.reads += name == "owner.json"
            return b"{" if 2 <= self.reads <= 4 else super().read(name)

    half = Half(Path(store.name))
    began = time.monotonic()
    other = start(half, "task-2", "b")
    other.take()
    assert time.monotonic() - began >= 0.6, "it was watched to the end"
    other.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"job": 1}', b"null", b"\xff" * 10])
def test_a_damaged_record_names_nobody(store: DirectoryStore, content: bytes) -> None:
    store.write("owner.json", content)
    assert read_owner(store) is None
    mine = start(store)
    mine.take()
    mine.release()
