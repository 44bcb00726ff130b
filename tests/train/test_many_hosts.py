"""Heartbeats of a hundred hosts: who is in trouble is known on each of them, and the traffic is bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.train.counting_store import Store
from train.health import exchange
from train.health.diagnosis import Diagnosis, examine
from train.health.exchange import Exchange
from train.health.heartbeats import Beat
from train.health.phase import EXCHANGE

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
    monkeypatch.setattr(exchange, "time", made)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(EACH))
    return made


class Job:
    """Its store; what rank 0 and the first process of another host know of it."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.kept = clock, Store()
        store: Any = self.kept
        self.zero = Exchange(store, self.beat(0))
        self.other = Exchange(store, self.beat(EACH))

    def beat(self, rank: int) -> Beat:
        host = f"host{rank // EACH}"
        made = Beat(rank, rank % EACH, SIZE, host, 100 + rank, f"machine {host}", world="w")
        return replace(
            made, time=self.clock.now, monotonic=self.clock.now, born=self.clock.now - 500, step=120,
            phase=EXCHANGE, waits=True, where="train/parallel/step_exchange.py:58 in receive",
            in_step=20.0, in_phase=20.0, usual=0.1, every=SIZE / 1000, stack=("a frame of the stack",) * 8,
        )  # fmt: skip

    def round(self, *silent: int) -> None:
        for rank in range(SIZE):
            if rank not in silent:
                self.zero._put(self.beat(rank))
        if 0 not in silent:
            self.zero._listen()
        self.other._listen()

    def seen_elsewhere(self) -> Diagnosis:
        view = self.other.heard()
        assert view.partial
        return examine(view.heard, {}, late=2 * view.every, partial=True)


def test_a_silent_rank_is_known_on_every_host(clock: Clock) -> None:
    job = Job(clock)
    job.round()
    assert not job.seen_elsewhere().blamed
    clock.now += LATE_S
    job.round(321)
    found = job.seen_elsewhere()
    assert found.blamed == (321,)
    assert "host40" in found.sentences[0]
    assert len(job.other.heard().heard) <= exchange._SUMMARY + 1
    clock.now += LATE_S
    job.round()  # it had been slow
    assert not job.seen_elsewhere().blamed


def test_of_a_rank_0_that_is_silent_nobody_else_is_blamed(clock: Clock) -> None:
    job = Job(clock)
    job.round()
    clock.now += LATE_S
    job.round(0)
    assert job.seen_elsewhere().blamed == (0,)


def test_the_traffic_at_the_store_is_bounded(clock: Clock) -> None:
    job = Job(clock)
    job.round()
    clock.now += LATE_S
    before = job.kept.moved
    for rank in range(SIZE):
        job.zero._put(job.beat(rank))
    put = job.kept.moved - before
    job.zero._listen()
    at_zero = job.kept.moved - before - put
    job.other._listen()
    elsewhere = job.kept.moved - before - put - at_zero
    a_second = put / job.beat(0).every + (at_zero + HOSTS * elsewhere) / job.zero.every
    assert a_second < 2 * exchange._BYTES_A_SECOND
    assert job.zero.every < 20


def test_in_a_small_job_every_host_reads_all_of_them(clock: Clock) -> None:
    store: Any = Store()
    one = Exchange(store, Beat(EACH, 0, 2 * EACH, "b", 1, "m", world="w"))
    for rank in range(2 * EACH):
        one._put(Beat(rank, rank % EACH, 2 * EACH, "a", 1, "m", world="w"))
    one._listen()
    assert len(one.heard().heard) == 2 * EACH
    assert not one.heard().partial
