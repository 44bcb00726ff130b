"""Heartbeats of a hundred hosts: rank 0 knows of all of them, and the traffic is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.counting_store import Store
from train.health import exchange, heartbeats
from train.health.diagnosis import examine
from train.health.exchange import Exchange
from train.health.heartbeats import Beat
from train.health.phase import EXCHANGE
from train.health.view import diagnose

HOSTS, EACH = 100, 8
SIZE = HOSTS * EACH
LATE_S = 60.0


class Clock:
    """The one clock of the store's readers."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (exchange, heartbeats):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(EACH))
    return made


def beat(clock: Clock, rank: int, size: int = SIZE) -> Beat:
    host, now = f"host{rank // EACH}", clock.now
    made = Beat(rank, rank % EACH, size, host, 100 + rank, f"machine {host}", world="w")
    return replace(
        made, time=now, monotonic=now, born=now - 500, step=120, phase=EXCHANGE, waits=True,
        where="train/distributed/step_exchange.py:58 in receive", in_step=20.0, in_phase=20.0,
        usual=0.1, every=SIZE / 1000, stack=("a frame of the stack",) * 8,
    )  # fmt: skip


def test_a_silent_rank_is_known_to_rank_0_and_elsewhere_from_a_shared_directory(
    clock: Clock, tmp_path: Path
) -> None:
    store: Any = Store()
    zero, other = (Exchange(store, beat(clock, rank)) for rank in (0, EACH))
    for silent in ((), (321,)):
        clock.now += LATE_S
        for rank in set(range(SIZE)).difference(silent):
            zero._put_beat(beat(clock, rank))
        zero._read_beats()
    found = examine(zero.host_view().heard, {}, delay=2 * zero.read_interval_s)
    assert found.blamed == (321,)
    assert "host40" in found.sentences[0]
    before = store.moved
    assert not other.reads
    (tmp_path / heartbeats.NAME).mkdir()
    heartbeats.write_beat(tmp_path, beat(clock, EACH))
    heartbeats.write_host_view(tmp_path, replace(other.host_view(), machine=heartbeats.machine()))
    assert [p.rank for p in diagnose(tmp_path).members] == [
        EACH
    ]  # what it cannot know it leaves out
    heartbeats.write_host_view(tmp_path, zero.host_view())
    assert diagnose(tmp_path).blamed == (321,)
    assert store.moved == before


def test_the_traffic_at_the_store_is_bounded(clock: Clock) -> None:
    store: Any = Store()
    zero = Exchange(store, beat(clock, 0))
    for rank in range(SIZE):
        zero._put_beat(beat(clock, rank))
    put = store.moved
    zero._read_beats()
    a_second = put / beat(clock, 0).every + (store.moved - put) / zero.read_interval_s
    assert a_second < exchange._BYTES_A_SECOND
    assert zero.read_interval_s < 20


def test_in_a_small_job_every_host_reads_all_of_them(clock: Clock) -> None:
    store: Any = Store()
    one = Exchange(store, beat(clock, EACH, 2 * EACH))
    for rank in range(2 * EACH):
        one._put_beat(beat(clock, rank, 2 * EACH))
    one._read_beats()
    assert len(one.host_view().heard) == 2 * EACH
    assert not one.host_view().partial
