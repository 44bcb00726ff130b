"""The heartbeats of a training process: once a second, where its main thread stands.

Owns the thread that looks and writes, and the last lines of a process that timed out waiting for the
others. Nothing here may break or hold up a training: a disk that is full costs heartbeats, a store
that does not answer blocks a thread of its own. Knows nothing of models or checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from train.base import processes
from train.health import heartbeats, network
from train.health.diagnosis import ENDED
from train.health.exchange import Exchange
from train.health.heartbeats import Beat
from train.health.phase import EVALUATION, TRAINING
from train.health.stacks import Position, Watch, innermost_user_line
from train.health.view import addresses, diagnose

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

EVERY_S = 1.0
# So many heartbeats a second of all ranks together go to the store, and so many files are renamed in a
# directory that may be everybody's.
_BEATS_A_SECOND = 1000
_FILES_A_SECOND = 64
# How long a file server may keep an ending process.
_LAST_WRITE_S = 2.0
# How long the last lines wait for news of the others.
NEWS_S = 3.0
# A thread that beats once a second and did nothing for so long was frozen with its process, or its host asleep.
_STOOD_S = 10.0
# For so long after it the others' silence is most likely of that time.
_STOOD_LATELY_S = 60.0
# Where torch ends the process itself (NCCL's watchdog), the last lines come this much before.
_BEFORE = 0.9


class Steps(Protocol):
    """What knows how many steps are complete."""

    step: int


class Reporter:
    """Beats from `start` to `stop`, which removes every trace of it, or to the process' end."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str],
        host: str = "",
        every: float = EVERY_S,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`env`: torchrun's variables. `host`: what the others call this one, if not its own name.
        `may_write`: whether the directory is this job's still."""
        self._directory, self._may_write = directory, may_write
        self._size = int(env.get("WORLD_SIZE", "1"))
        self._every = max(every, self._size / _BEATS_A_SECOND)
        self._env = dict(env)
        self._watch = Watch()
        # Never held while something is written: a file server that hangs holds nobody else up.
        self._change = threading.Lock()
        self._ended = threading.Event()
        self._nudged = threading.Event()  # to beat at once
        self._steps: Steps | None = None
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._files_every = self._filed_at = 0.0
        self._exchange: Exchange | None = None
        self._clock = StepClock()
        self._standstill = Standstill(self._every)
        self._timeout_s = 0.0
        self._say: Callable[[str], None] | None = None
        pid = os.getpid()
        self.beat = Beat(
            rank=int(env.get("RANK", "0")),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            world_size=self._size,
            host=host or socket.gethostname(),
            pid=pid,
            machine=processes.machine(),
            started=processes.start_time(pid),
            born=time.time(),
            every=self._every,
        )

    def start(self) -> None:
        self._thread.start()

    def meet(self, world: str, store: Store | None) -> None:
        """The processes have met, and are called `world`. `store`: a connection of its own to
        where they met, if there are several hosts."""
        with self._change:
            self.beat = replace(self.beat, world=world)
        if store is not None:
            self._exchange = Exchange(store, self.beat)
            self._exchange.start()
        self._filed_at = 0.0
        self._nudged.set()

    def follow(self, steps: Steps) -> None:
        """From here on the heartbeats know the step."""
        self._steps = steps
        self._nudged.set()

    @property
    def step(self) -> int:
        """How many steps are complete; -1 where that is not known yet."""
        return self._steps.step if self._steps is not None else -1

    def speak_before(self, timeout_s: float, say: Callable[[str], None]) -> None:
        """Where torch ends a process after a wait of `timeout_s`: say why shortly before."""
        self._timeout_s, self._say = timeout_s, say

    def stop(self) -> None:
        """A good end: remove what it has left."""
        self._end_thread()
        if self._exchange is not None:
            self._exchange.close()
        if not self._may_write():
            return
        if self.beat.local_rank == 0:
            heartbeats.clear(self._directory, but_below=self._size)
        with contextlib.suppress(OSError):
            heartbeats.rank_file(self._directory, self.beat.rank).unlink()
        with contextlib.suppress(OSError):  # the last one of this directory
            (self._directory / heartbeats.NAME).rmdir()

    def fail(self, error: BaseException, waited: bool) -> None:
        """The process is about to end by this error. `waited`: it lost another, or timed out waiting for it."""
        self._standstill.look(_now())  # the thread may not have come to it yet
        self._end_thread()
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        where = "" if waited else innermost_user_line(error.__traceback__)
        self.beat = replace(self.beat, ended=text, waited=waited, where=where or self.beat.where)
        self._filed_at = 0.0
        writer = threading.Thread(target=self._publish, daemon=True)
        writer.start()
        writer.join(_LAST_WRITE_S)

    def _end_thread(self) -> None:
        self._ended.set()
        self._nudged.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_LAST_WRITE_S)

    def explain(self, wait: bool = True) -> list[str]:
        """Which rank the others wait for, for the first process of this host that asks; else nothing.

        `wait`: three seconds for news of the others, and then about two for the network.
        """
        if not self.beat.world or self._size == 1 or not self._may_write():
            return []
        with contextlib.suppress(OSError):  # twice is better than not at all
            if not heartbeats.is_first(self._directory, self.beat.host, self.beat.world):
                return []
        if stood_s := self._standstill.lately(_now()):
            stood = f"{self.beat.host} itself stood still for {stood_s:.0f} s, frozen or asleep"
            return [f"{stood}; the others may have gone on without it"]
        return self._diagnose(wait)

    def _run(self) -> None:
        nic, address, head = network.own_place(self._env)
        self._files_every = heartbeats.pace(
            self._directory, max(self._every, self._size / _FILES_A_SECOND)
        )
        with self._change:
            self.beat = replace(self.beat, nic=nic, address=address, head=head)
        while not self._ended.is_set():
            position = self._watch.look()
            with self._change:
                if not self._ended.is_set():
                    self.beat = self._clock.take(self.beat, position, self.step)
            self._publish()
            self._speak_in_time()
            self._standstill.begin(_now())
            self._nudged.wait(self._every)
            self._standstill.end(_now())
            self._nudged.clear()

    def _publish(self) -> None:
        beat = self.beat
        if self._exchange is not None:
            beat = replace(beat, misses_rank_0=self._exchange.misses_rank_0)
            self._exchange.send(beat)
        if time.monotonic() - self._filed_at < self._files_every - 0.5 * self._every:
            return
        self._filed_at = time.monotonic()
        if not self._may_write():
            return
        with contextlib.suppress(OSError):  # full, read-only, gone: no reason to say so
            (self._directory / heartbeats.NAME).mkdir(exist_ok=True)
            heartbeats.write_beat(self._directory, replace(beat, every=self._files_every))
            if self._exchange is not None and beat.rank == 0:
                received = self._exchange.received()
                every = max(received.every, self._files_every)
                heartbeats.write_received(self._directory, replace(received, every=every))

    def _speak_in_time(self) -> None:
        if self._say is None or self._timeout_s <= 0 or self.beat.phase not in TRAINING:
            return
        if self.beat.in_step > _BEFORE * self._timeout_s:
            for line in self.explain():
                self._say(line)

    def _diagnose(self, wait: bool) -> list[str]:
        received = None
        if self._exchange is not None and self._exchange.reads_all:
            self._exchange.fresh(NEWS_S if wait else 0.0)
            received = self._exchange.received()
        found = diagnose(self._directory, received)
        if wait:
            others = addresses(found, self.beat.host)
            looks = network.look(others, self.beat.head, self.beat.nic, self.beat.address)
            said = [says for well, says in looks if not well]
            if others and not said:
                said = ["every host asked answers"]
            return [*found.sentences, *(f"the network now: {says}" for says in said)]
        ends = {p.condition for p in found.members if p.rank in found.blamed}
        # A rank that it has lost is not known here, or has said itself why it ended.
        return [] if ends <= {ENDED} else list(found.sentences)


class Standstill:
    """How long this process did not run, by waits of `every` seconds that took longer.

    Nothing but such a wait tells: a thread that writes may be held up by a file server while the process runs.
    """

    def __init__(self, every: float) -> None:
        self._most = every + _STOOD_S
        self._began: float | None = None
        self._stood_s, self._ended_at = 0.0, 0.0

    def begin(self, now: float) -> None:
        """A wait begins."""
        self._began = now

    def look(self, now: float) -> None:
        """It runs now, whether or not the wait has ended yet."""
        began = self._began
        if began is not None and now - began > self._most:
            self._stood_s, self._ended_at = now - began, now

    def end(self, now: float) -> None:
        """The wait is over."""
        self.look(now)
        self._began = None

    def lately(self, now: float) -> float:
        """How long it last stood still, if that has just ended; else 0."""
        return self._stood_s if now - self._ended_at < _STOOD_LATELY_S else 0.0


def _now() -> float:
    """Seconds, those of a sleep among them where the system counts them (Linux)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StepClock:
    """Since when the step and the phase are what they are, and how long a step takes."""

    def __init__(self) -> None:
        self._step, self._phase = -1, ""
        self._step_at = self._phase_at = time.monotonic()
        self._usual, self._warm = 0.0, False

    def take(self, beat: Beat, position: Position, step: int) -> Beat:
        """The next heartbeat."""
        now = time.monotonic()
        if step != self._step:
            # The first step compiles, connects and warms up: it is no measure of the others.
            if self._warm and self._step < step:
                each = (now - self._step_at) / (step - self._step)
                self._usual = 0.8 * self._usual + 0.2 * each if self._usual else each
            self._warm = 0 <= self._step < step
            self._step, self._step_at = step, now
        elif position.phase == EVALUATION:
            self._step_at = now  # it belongs to no step
        if position.phase != self._phase:
            self._phase, self._phase_at = position.phase, now
        return replace(
            beat,
            **vars(position),
            time=time.time(),
            monotonic=now,
            step=step,
            in_step=round(now - self._step_at, 1),
            in_phase=round(now - self._phase_at, 1),
            usual=round(self._usual, 4),
        )
