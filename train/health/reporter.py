"""The heartbeats of a training process: once a second, the position of its main thread.

Owns the thread that looks and writes, and the last lines of a process that timed out waiting for the others. Nothing
here may break or hold up a training. A full disk costs only heartbeats, and a store that does not answer blocks only a
thread of its own. Knows nothing of models or checkpoints.
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
from train.health.stacks import Position, ThreadSampler, innermost_user_line
from train.health.view import addresses, diagnose

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

EVERY_S = 1.0
# The limits for all ranks together: heartbeats into the store, and renamed files in a directory that they may share.
_BEATS_A_SECOND = 1000
_FILES_A_SECOND = 64
# How long a file server may keep an ending process.
_LAST_WRITE_S = 2.0
# How long the last lines wait for news of the others.
NEWS_S = 3.0
# If the thread, which beats once a second, did nothing for this long, its process was frozen or its host asleep.
_STOOD_S = 10.0
# For this long after a standstill, the standstill is the most likely reason for the silence of the others.
_STOOD_LATELY_S = 60.0
# If torch ends the process itself (NCCL's watchdog), the last lines come at this part of the timeout.
_SPEAK_AT = 0.9


class Steps(Protocol):
    """An object that knows how many steps are complete."""

    step: int


class Reporter:
    """Sends heartbeats from `start` to the process' end, or to `stop`, which removes the heartbeat files."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str],
        host: str = "",
        interval_s: float = EVERY_S,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`env`: torchrun's variables. `host`: the name that the other hosts have for this one; by default its own.
        `may_write`: returns true while the directory is still this job's."""
        self._directory, self._may_write = directory, may_write
        self._size = int(env.get("WORLD_SIZE", "1"))
        self._interval_s = max(interval_s, self._size / _BEATS_A_SECOND)
        self._env = dict(env)
        self._watch = ThreadSampler()
        # Never held during a write, so that a file server that hangs holds up no other thread.
        self._change = threading.Lock()
        self._ended = threading.Event()
        self._nudged = threading.Event()  # to beat at once
        self._steps: Steps | None = None
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._file_interval_s = self._filed_at = 0.0
        self._exchange: Exchange | None = None
        self._durations = Durations()
        self._standstill = Standstill(self._interval_s)
        self._timeout_s = 0.0
        self._print_line: Callable[[str], None] | None = None
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
            every=self._interval_s,
        )

    def start(self) -> None:
        self._thread.start()

    def meet(self, world: str, store: Store | None) -> None:
        """Note that the processes have met, and are called `world`. `store`: a separate connection to the store through
        which they met, if there are several hosts."""
        with self._change:
            self.beat = replace(self.beat, world=world)
        if store is not None:
            self._exchange = Exchange(store, self.beat)
            self._exchange.start()
        self._filed_at = 0.0
        self._nudged.set()

    def follow(self, steps: Steps) -> None:
        """Put the step of `steps` into the heartbeats from now on."""
        self._steps = steps
        self._nudged.set()

    @property
    def step(self) -> int:
        """The number of complete steps, or -1 if it is not known yet."""
        return self._steps.step if self._steps is not None else -1

    def speak_before(self, timeout_s: float, print_line: Callable[[str], None]) -> None:
        """If torch ends a process after a wait of `timeout_s`, have `print_line` print the reason shortly before."""
        self._timeout_s, self._print_line = timeout_s, print_line

    def stop(self) -> None:
        """End well: stop the heartbeats and remove their files."""
        self._end_thread()
        if self._exchange is not None:
            self._exchange.close()
        if not self._may_write():
            return
        if self.beat.local_rank == 0:
            heartbeats.clear(self._directory, keep_ranks_below=self._size)
        with contextlib.suppress(OSError):
            heartbeats.rank_file(self._directory, self.beat.rank).unlink()
        with contextlib.suppress(OSError):  # only the last process finds it empty
            (self._directory / heartbeats.NAME).rmdir()

    def fail(self, error: BaseException, peer_failed: bool) -> None:
        """Publish that this process is about to end by this error. `peer_failed`: the error is that this process lost
        another one, or timed out waiting for another one."""
        self._standstill.check(_now())  # the thread may not have looked yet
        self._end_thread()
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        where = "" if peer_failed else innermost_user_line(error.__traceback__)
        self.beat = replace(
            self.beat, ended=text, waited=peer_failed, where=where or self.beat.where
        )
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
        """Name the rank that holds the others up; [] unless this is the first process of its host that asks.

        `wait`: take three seconds for news of the others, and then about two for the network.
        """
        if not self.beat.world or self._size == 1 or not self._may_write():
            return []
        with contextlib.suppress(OSError):  # two explanations are better than none
            if not heartbeats.is_first(self._directory, self.beat.host, self.beat.world):
                return []
        if stood_s := self._standstill.recent_s(_now()):
            standstill = (
                f"{self.beat.host} itself stood still for {stood_s:.0f} s, frozen or asleep"
            )
            return [f"{standstill}; the others may have gone on without it"]
        return self._diagnose(wait)

    def _run(self) -> None:
        nic, address, head = network.own_endpoint(self._env)
        self._file_interval_s = heartbeats.write_interval_s(
            self._directory, max(self._interval_s, self._size / _FILES_A_SECOND)
        )
        with self._change:
            self.beat = replace(self.beat, nic=nic, address=address, head=head)
        while not self._ended.is_set():
            position = self._watch.sample()
            with self._change:
                if not self._ended.is_set():
                    self.beat = self._durations.update(self.beat, position, self.step)
            self._publish()
            self._speak_in_time()
            self._standstill.begin(_now())
            self._nudged.wait(self._interval_s)
            self._standstill.end(_now())
            self._nudged.clear()

    def _publish(self) -> None:
        beat = self.beat
        if self._exchange is not None:
            self._exchange.send(beat)
        if time.monotonic() - self._filed_at < self._file_interval_s - 0.5 * self._interval_s:
            return
        self._filed_at = time.monotonic()
        if not self._may_write():
            return
        with contextlib.suppress(OSError):  # a full or missing disk costs only heartbeats
            (self._directory / heartbeats.NAME).mkdir(exist_ok=True)
            heartbeats.write_beat(self._directory, replace(beat, every=self._file_interval_s))
            if self._exchange is not None and beat.local_rank == 0:
                host_view = self._exchange.host_view()
                every = max(host_view.every, self._file_interval_s)
                heartbeats.write_host_view(self._directory, replace(host_view, every=every))

    def _speak_in_time(self) -> None:
        if self._print_line is None or self._timeout_s <= 0 or self.beat.phase not in TRAINING:
            return
        if self.beat.in_step > _SPEAK_AT * self._timeout_s:
            for line in self.explain():
                self._print_line(line)

    def _diagnose(self, wait: bool) -> list[str]:
        host_view = None
        if self._exchange is not None and self._exchange.reads:
            self._exchange.refresh(NEWS_S if wait else 0.0)
            host_view = self._exchange.host_view()
        diagnosis = diagnose(self._directory, host_view)
        if wait:
            other_hosts = addresses(diagnosis, self.beat.host)
            results = network.check_connections(
                other_hosts, self.beat.head, self.beat.nic, self.beat.address
            )
            answers = [says for well, says in results if not well]
            if other_hosts and not answers:
                answers = ["every host asked answers"]
            return [*diagnosis.sentences, *(f"the network now: {says}" for says in answers)]
        ends = {p.condition for p in diagnosis.members if p.rank in diagnosis.blamed}
        # If only ended ranks are blamed, say nothing: each has printed itself why it ended.
        return [] if ends <= {ENDED} else list(diagnosis.sentences)


class Standstill:
    """Measures how long this process did not run, by waits of `interval_s` seconds that took longer.

    It measures only waits. A write may take long although the process runs, because a file server holds it up.
    """

    def __init__(self, interval_s: float) -> None:
        self._limit_s = interval_s + _STOOD_S
        self._wait_started_at: float | None = None
        self._stood_s, self._ended_at = 0.0, 0.0

    def begin(self, now: float) -> None:
        """Note that a wait begins."""
        self._wait_started_at = now

    def check(self, now: float) -> None:
        """Note that the process runs now, even if the wait has not ended yet."""
        started_at = self._wait_started_at
        if started_at is not None and now - started_at > self._limit_s:
            self._stood_s, self._ended_at = now - started_at, now

    def end(self, now: float) -> None:
        """Note that the wait is over."""
        self.check(now)
        self._wait_started_at = None

    def recent_s(self, now: float) -> float:
        """Seconds of the last standstill if it ended within the last minute; else 0."""
        return self._stood_s if now - self._ended_at < _STOOD_LATELY_S else 0.0


def _now() -> float:
    """Seconds of a monotonic clock, which on Linux also counts the time that the host is asleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Durations:
    """Measures how long the present step and phase last, and how long a step usually takes."""

    def __init__(self) -> None:
        self._step, self._phase = -1, ""
        self._step_at = self._phase_at = time.monotonic()
        self._usual, self._warm = 0.0, False

    def update(self, beat: Beat, position: Position, step: int) -> Beat:
        """Return the next heartbeat: `beat` with this position and step, and the times of now."""
        now = time.monotonic()
        if step != self._step:
            # Leave out the first step, because it compiles, connects and warms up.
            if self._warm and self._step < step:
                seconds_per_step = (now - self._step_at) / (step - self._step)
                self._usual = (
                    0.8 * self._usual + 0.2 * seconds_per_step if self._usual else seconds_per_step
                )
            self._warm = 0 <= self._step < step
            self._step, self._step_at = step, now
        elif position.phase == EVALUATION:
            self._step_at = now  # an evaluation belongs to no step
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
