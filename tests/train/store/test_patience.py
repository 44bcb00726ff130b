"""A call to a store that never comes back holds up nobody but itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.train.store.faults import Faulty
from train.checkpoint.store import retries
from train.checkpoint.store.places import DirectoryStore
from train.checkpoint.store.retries import BoundedStore, HangsError


class Hanging:
    """A store whose operations on one object hang until they are let go."""

    def __init__(self, place: Path, name: str = "") -> None:
        self.name = name
        self.free = threading.Event()
        self.store = Faulty(DirectoryStore(place), self._hook)

    def _hook(self, _: int, kind: str, name: str) -> None:
        if self.name and name == self.name:
            assert self.free.wait(60)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    made = Hanging(tmp_path / "bucket")
    yield made
    made.free.set()


def until(reached: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def test_after_a_while_it_is_given_up_and_the_others_until_it_is_back(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LIMIT_S", 0.2)
    store = BoundedStore(hanging.store)
    store.write("status", b"a")
    store.limit()
    hanging.name = "status"
    began = time.monotonic()
    with pytest.raises(HangsError, match=r" for \d+ s \(status\)"):
        store.write("status", b"b")
    assert 0.2 <= time.monotonic() - began < 5
    before = len(hanging.store.done)
    with pytest.raises(HangsError, match="status"):
        store.write("manifest.json", b"")
    assert len(hanging.store.done) == before, "no call is added to it"
    hanging.name = ""
    hanging.free.set()

    def answers() -> bool:
        try:
            return store.read("status") == b"b"
        except HangsError:
            return False

    until(answers)


def test_a_large_object_may_take_longer(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LIMIT_S", 0.05)
    monkeypatch.setattr(retries, "_SLOWEST", 400_000 / 60)
    large = tmp_path / "model.pt"
    large.write_bytes(bytes(400_000))
    store = BoundedStore(hanging.store)
    store.limit()
    hanging.name = "model.pt"
    threading.Timer(0.25, hanging.free.set).start()
    store.put("model.pt", large)
    assert hanging.store.list("") == {"model.pt": 400_000}


def test_a_start_waits_and_says_what_for(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def hear(words: str) -> None:
        said.append(words)
        if len(said) == 2:
            hanging.free.set()

    monkeypatch.setattr(retries, "SAY_EVERY_S", 0.1)
    monkeypatch.setattr(retries, "LIMIT_S", 0.0)
    monkeypatch.setattr(retries, "say", hear)
    store = BoundedStore(hanging.store)
    hanging.store.write("status", b"a")
    hanging.name = "status"
    began = time.monotonic()
    assert store.read("status") == b"a"
    line = rf"waiting for {re.escape(store.name)} \(status\), \d+ s so far"
    assert all(re.fullmatch(line, words) for words in said)
    assert 2 <= len(said) <= (time.monotonic() - began) / 0.1


def test_what_a_call_raises_is_raised(hanging: Hanging) -> None:
    with pytest.raises(FileNotFoundError):
        BoundedStore(hanging.store).read("nothing")
