"""One lease: a directory and a store are held by one job at a time, on hosts that stop, fall silent and disagree about
the time.

The hosts are threads in virtual time: one runs until it sleeps, then the one that wakes first goes on. Claim, fence,
heartbeat and watch are the program's own code; only the clock, the threads and the file server are replaced.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from train.base import files
from train.checkpoint.store import owner, retries
from train.checkpoint.store.owner import Owner, Ownership
from train.run import lock
from train.run.lock import Fence, FencedOffError, HeldByLiveJobError, claim

STEP_S = 7.0
END_S = 600.0
_AWAY = OSError(107, "Transport endpoint is not connected")


class _Over(BaseException):
    """The example has ended, and so do its threads."""


@dataclass(frozen=True)
class Host:
    """A start of `job` on a host of its own. `paused`: from when to when it stands still. `cut_off`: from when to when
    the place does not answer it. `ends`: when it gives up the place. `skew`: of its clock. `latency`: of each of its reads and writes."""

    name: str
    comes: float = 0.0
    job: str = ""
    restarts: int = 0
    paused: tuple[float, float] = (0.0, 0.0)
    cut_off: tuple[float, float] = (0.0, 0.0)
    ends: float = math.inf
    skew: float = 0.0
    latency: float = 0.0


@dataclass
class World:
    """Virtual time, and what came of the hosts in it: `holds`, `refused` or `fenced`, when they took the place, and
    when they wrote."""

    server_skew: float = 0.0
    now: float = 0.0
    came: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    wrote: list[tuple[float, str]] = field(default_factory=list)
    _queue: list[tuple[float, int, threading.Semaphore]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=itertools.count)
    _local: threading.local = field(default_factory=threading.local)
    _threads: list[threading.Thread] = field(default_factory=list)
    _guarded: set[str] = field(default_factory=set)
    _is_over: bool = False

    @property
    def host(self) -> Host:
        host: Host = self._local.host
        return host

    @property
    def server_time(self) -> float:
        return 1e9 + self.server_skew + self.now

    def sleep(self, seconds: float) -> None:
        self._await(self._turn(self.now + seconds))

    def spawn(self, host: Host, work: Callable[[], Any]) -> None:
        turn = self._turn(self.now, host)

        def run() -> None:
            self._local.host = host
            turn.acquire()
            with contextlib.suppress(_Over):
                if not self._is_over:
                    work()
            self._go_on()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def run(self, hosts: list[Host], live: Callable[[], None]) -> None:
        self._local.host = Host("nobody")
        for host in hosts:
            self.spawn(host, live)
        self.sleep(END_S)
        self._is_over = True
        for _, _, turn in self._queue:
            turn.release()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def io(self) -> None:
        """Every read and write of a place goes through here."""
        if self.host.latency:
            self.sleep(self.host.latency)
        if self.host.cut_off[0] <= self.now < self.host.cut_off[1]:
            raise _AWAY

    @contextlib.contextmanager
    def locked(self, guard: Path) -> Iterator[bool]:
        self.io()
        while str(guard) in self._guarded:
            self.sleep(0.01)
        self._guarded.add(str(guard))
        try:
            yield True
        finally:
            self._guarded.discard(str(guard))

    def _turn(self, at: float, host: Host | None = None) -> threading.Semaphore:
        begin, end = (host or self.host).paused
        turn = threading.Semaphore(0)
        heapq.heappush(self._queue, (end if begin <= at < end else at, next(self._number), turn))
        return turn

    def _await(self, turn: threading.Semaphore) -> None:
        self._go_on()
        turn.acquire()
        if self._is_over and self.host.name != "nobody":
            raise _Over

    def _go_on(self) -> None:
        if self._queue and not self._is_over:
            self.now, _, turn = heapq.heappop(self._queue)
            turn.release()

    # --- in place of the modules `time` and `threading` -------------------------------------------

    def clock(self) -> Any:
        return SimpleNamespace(
            monotonic=lambda: self.now, time=lambda: 1e9 + self.now + self.host.skew,
            sleep=self.sleep, strftime=lambda *_: "then", localtime=lambda _: None,
        )  # fmt: skip

    def threading(self) -> Any:
        world = self

        class Event:
            def __init__(self) -> None:
                self._is_set = False

            def set(self) -> None:
                self._is_set = True

            def is_set(self) -> bool:
                return self._is_set

            def wait(self, timeout: float) -> bool:
                world.sleep(timeout)
                return self._is_set

        class Thread:
            def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
                self._target = target

            def start(self) -> None:
                world.spawn(world.host, self._target)

        return SimpleNamespace(Event=Event, Thread=Thread, Lock=threading.Lock)


class ADirectory:
    """A checkpoint directory on a file server."""

    silence_s, renew_s, look_s = lock.SILENCE_S, lock.HEARTBEAT_S, lock.HEARTBEAT_S

    def __init__(self, world: World, patch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        read_lock = lock.read_lock

        def read(directory: Path) -> lock.Holder | None:
            world.io()
            return read_lock(directory)

        def write(path: Path, content: bytes) -> None:
            world.io()
            files.replace_file(path, content, sync=False)
            os.utime(path, (world.server_time,) * 2)

        def renew(path: Path) -> None:
            world.io()
            os.utime(path, (world.server_time,) * 2)

        patch.setattr(lock, "read_lock", read)
        patch.setattr(lock, "replace_file", write)
        patch.setattr(lock, "os", SimpleNamespace(utime=renew, getpid=os.getpid, environ={}))
        patch.setattr(lock, "_server_time", lambda _: world.server_time)
        patch.setattr(lock, "locked", world.locked)
        patch.setattr(lock, "machine", lambda: world.host.name)

    def take(self, host: Host) -> tuple[Callable[[], None], Callable[[], None]]:
        scheduler = f"slurm {host.job} {host.restarts}" if host.job else ""
        attempt = claim(self._root, host.job, os.getpid(), host.name, scheduler)
        return Fence(self._root, attempt).check, (self._root / "lock").unlink


class ABucket:
    """A store of whole objects."""

    silence_s, renew_s, look_s = owner.SILENCE_S, owner.RENEW_S, owner.LOOK_S
    name = "a bucket"

    def __init__(self, world: World, patch: pytest.MonkeyPatch, root: Path) -> None:
        self._world, self._objects = world, dict[str, bytes]()
        patch.setattr(owner, "BoundedStore", lambda store: store)

    def take(self, host: Host) -> tuple[Callable[[], None], Callable[[], None]]:
        lease = Ownership(self, Owner(host.job or host.name, host.name, host.name, host.restarts))
        lease.take()
        return lease.check, lease.release

    def limit(self) -> None:
        pass

    def list(self, prefix: str) -> dict[str, int]:
        self._world.io()
        return {name: len(content) for name, content in self._objects.items()}

    def read(self, name: str) -> bytes:
        self._world.io()
        if name not in self._objects:
            raise FileNotFoundError(name)
        return self._objects[name]

    def write(self, name: str, content: bytes) -> None:
        self._world.io()
        self._objects[name] = content

    def put(self, name: str, source: Path) -> None:
        raise NotImplementedError

    def get(self, name: str, target: Path) -> None:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        self._world.io()
        self._objects.pop(name, None)


Place = type[ADirectory] | type[ABucket]
both = pytest.mark.parametrize("kind", [ADirectory, ABucket])


def passes(kind: Place, *hosts: Host, server_skew: float = 0.0, renews: bool = True) -> World:
    """Let each host take the place if it can, and write every few seconds while it holds it. Return the outcome."""
    world = World(server_skew)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as root:
        for module in (lock, owner, retries):
            patch.setattr(module, "time", world.clock())
        if not renews:
            patch.setattr(lock, "HEARTBEAT_S", 2 * END_S)
            patch.setattr(owner, "LOOK_S", 2 * END_S)
        for module in (lock, owner):
            patch.setattr(module, "threading", world.threading())
            patch.setattr(module, "say", lambda _: None)
        place = kind(world, patch, Path(root))

        def live() -> None:
            host = world.host
            world.sleep(host.comes)
            try:
                check, give_up = place.take(host)
            except (HeldByLiveJobError, FencedOffError):
                world.came[host.name] = "refused"
                return
            world.came[host.name], world.took[host.name] = "holds", world.now
            while world.now < host.ends:
                world.sleep(min(STEP_S, host.ends - world.now))
                try:
                    check()
                    world.io()  # what it writes goes to the same place
                except FencedOffError:
                    world.came[host.name] = "fenced"
                    return
                except OSError:
                    continue
                world.wrote.append((world.now, host.name))
            give_up()
            world.came[host.name] = "ended"

        world.run(list(hosts), live)
    return world


times = st.floats(0.0, 200.0).map(lambda seconds: round(seconds, 1))
few = settings(max_examples=20, deadline=None)


@both
@given(
    apart=st.floats(-3.0, 3.0) | times,
    latencies=st.tuples(*[st.sampled_from([0.0, 0.1, 1.0])] * 2),
)
@example(apart=-2.5, latencies=(0.0, 1.0))  # `a` comes and takes it between b's look and b's write
@few
def test_of_two_jobs_one_holds_the_place_in_the_end(
    kind: Place, apart: float, latencies: tuple[float, float]
) -> None:
    a, b = Host("a", 3.0, latency=latencies[0]), Host("b", 3.0 + apart, latency=latencies[1])
    world = passes(kind, a, b)
    assert list(world.came.values()).count("holds") == 1
    (holder,) = {name for at, name in world.wrote if at > END_S / 2}
    assert world.came[holder] == "holds"
    if kind is ADirectory:  # a file lock decides between the two; in a bucket the last write wins
        assert "fenced" not in world.came.values()
    if apart > 20:
        assert world.came == {"a": "holds", "b": "refused"}


@both
@given(begin=times, lasts=times, comes=times, cut_off=st.booleans())
@few
def test_a_holder_that_falls_silent_is_replaced_once_at_most_and_never_writes_again(
    kind: Place, begin: float, lasts: float, comes: float, cut_off: bool
) -> None:
    silent = (1.0 + begin, 1.0 + begin + lasts)
    first = Host("first", cut_off=silent) if cut_off else Host("first", paused=silent)
    world = passes(kind, first, Host("second", 1.0 + comes))
    assert sorted(world.came.values()) in (["fenced", "holds"], ["holds", "refused"])
    if kind.renew_s + lasts + kind.look_s < kind.silence_s:
        assert world.came == {"first": "holds", "second": "refused"}, "it lives"
    if world.came["second"] == "holds":
        assert all(at <= world.took["second"] for at, name in world.wrote if name == "first")


@both
@given(comes=times)
@few
def test_a_dead_holder_keeps_the_place_for_its_silence_and_no_longer(
    kind: Place, comes: float
) -> None:
    # The one that was replaced by it wakes up, and must not renew what is another's.
    replaced = Host("replaced", paused=(1.0, 140.0))
    dead = Host("dead", 2.0, paused=(150.0, 2 * END_S))
    world = passes(kind, replaced, dead, Host("next", 150.0 + comes))
    assert world.came == {"replaced": "fenced", "dead": "holds", "next": "holds"}
    assert world.took["next"] > 150.0 + kind.silence_s - kind.renew_s - kind.look_s
    assert world.took["next"] - (150.0 + comes) <= kind.silence_s + 6.0


@pytest.mark.slow
@both
@given(
    skews=st.tuples(*[st.integers(-10**6, 10**6)] * 3),
    begin=times, lasts=times, comes=times,
)  # fmt: skip
@few
def test_no_two_clocks_have_to_agree(
    kind: Place, skews: tuple[int, int, int], begin: float, lasts: float, comes: float
) -> None:
    paused = (1.0 + begin, 1.0 + begin + lasts)
    agree = passes(kind, Host("a", paused=paused), Host("b", 1.0 + comes))
    differ = passes(
        kind, Host("a", paused=paused, skew=skews[0]), Host("b", 1.0 + comes, skew=skews[1]),
        server_skew=skews[2],
    )  # fmt: skip
    assert (differ.came, differ.wrote) == (agree.came, agree.wrote)


@both
@given(restarts=st.lists(st.integers(0, 3), min_size=1, max_size=5))
@few
def test_of_the_starts_of_one_job_the_latest_has_the_place_at_once(
    kind: Place, restarts: list[int]
) -> None:
    starts = [Host(str(n), 20.0 * n, "7", count) for n, count in enumerate(restarts)]
    world = passes(kind, *starts)
    newest = -1
    for start in starts:
        may = start.restarts >= newest
        newest = max(newest, start.restarts)
        assert (start.name in world.took) == may
        assert world.took.get(start.name, start.comes) == start.comes, "nobody is watched"
    holders = [start.name for start in starts if start.name in world.took]
    assert [name for name, word in world.came.items() if word == "holds"] == holders[-1:]


@both
@given(comes=st.floats(1.0, 20.0), later=st.floats(1.0, 20.0))
@few
def test_a_place_that_is_given_up_while_it_is_watched_is_free_at_once(
    kind: Place, comes: float, later: float
) -> None:
    first = Host("first", ends=comes + later)
    world = passes(kind, first, Host("second", comes), renews=False)
    assert world.came == {"first": "ended", "second": "holds"}
    assert world.took["second"] - first.ends <= 6.0
