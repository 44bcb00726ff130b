"""What a training process says of itself: once a second, where its main thread stands.

Owns the thread that looks and writes, the one that exchanges heartbeats with the other hosts through
the store in which the processes met, and the last words of a process that has waited for the others
in vain. Nothing here may break or hold up a training: a disk that is full costs heartbeats, a store
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

from train import processes
from train.health import heartbeats, network
from train.health.diagnosis import ENDED
from train.health.exchange import Exchange
from train.health.heartbeats import Beat
from train.health.phase import EVALUATION, TRAINING
from train.health.stacks import Position, Watch, innermost_user_line
from train.health.view import addresses, diagnose, settled

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

EVERY_S = 1.0
# So many beats a second of all ranks together go to the store, and so many files are renamed in a directory
# that may be everybody's.
_BEATS_A_SECOND = 1000
_FILES_A_SECOND = 64
# How long a file server may keep an ending process.
_LAST_WORD_S = 2.0
# How long the last words wait for news of the others.
NEWS_S = 3.0
# Where torch ends the process itself (NCCL's watchdog), the last words come this much before.
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
        self._files_every = 0.0
        self._filed_at = 0.0
        self._exchange: Exchange | None = None
        self._moved = _Moves()
        self._held = False
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
        """Begin to beat."""
        self._thread.start()

    def meet(self, world: str, store: Store | None) -> None:
        """The processes have met, and are called `world`. `store`: a connection of its own to
        where they met, if there are several hosts."""
        with self._change:
            self.beat = replace(self.beat, world=world)
        if self.beat.local_rank == 0 and self._may_write():
            heartbeats.clear(self._directory, but_below=self._size)
        if store is not None:
            self._exchange = Exchange(store, self.beat)
            self._exchange.start()
        self._filed_at = 0.0
        self._nudged.set()

    def follow(self, steps: Steps) -> None:
        """From here on the beats know the step."""
        self._steps = steps
        self._nudged.set()

    @property
    def step(self) -> int:
        """How many steps are complete; -1 where that is not known yet."""
        return self._steps.step if self._steps is not None else -1

    def hold(self) -> None:
        """The training has ended, well or not: where it stood then is what counts from here on."""
        with self._change:  # a look that is under way comes first
            self._held = True

    def speak_before(self, timeout_s: float, say: Callable[[str], None]) -> None:
        """Where torch ends a process that waited `timeout_s` in vain: say why shortly before."""
        self._timeout_s, self._say = timeout_s, say

    def stop(self) -> None:
        """A good end: remove what it has left."""
        self._quiet()
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
        """The process is about to end by this error. `waited`: it waited for another in vain, or lost it."""
        self._quiet()
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        where = "" if waited else innermost_user_line(error.__traceback__)
        self.beat = replace(self.beat, ended=text, waited=waited, where=where or self.beat.where)
        self._filed_at = 0.0
        writer = threading.Thread(target=self._publish, daemon=True)
        writer.start()
        writer.join(_LAST_WORD_S)

    def _quiet(self) -> None:
        self._ended.set()
        self._nudged.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_LAST_WORD_S)

    def explain(self, timeout_s: float = NEWS_S) -> list[str]:
        """What became of the others, for the first process of this host that asks; else nothing.

        Takes `timeout_s` for news of the others, and then about two seconds for the network.
        """
        if not self.beat.world or self._size == 1 or not self._may_write():
            return []
        path = heartbeats.said_file(self._directory, self.beat.host, self.beat.world)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return []
        except OSError:
            pass  # twice is better than not at all
        lines = self._diagnose(timeout_s)
        with contextlib.suppress(OSError):
            path.write_text("\n".join(lines) + "\n", "utf-8")
        return lines

    def _run(self) -> None:
        nic, address, head = network.own_place(self._env)
        self._files_every = heartbeats.pace(
            self._directory, max(self._every, self._size / _FILES_A_SECOND)
        )
        with self._change:
            self.beat = replace(self.beat, nic=nic, address=address, head=head)
        while not self._ended.is_set():
            self._look()
            self._publish()
            self._speak_in_time()
            self._nudged.wait(self._every)
            self._nudged.clear()

    def _look(self) -> None:
        step = self.step
        position = self._watch.look()
        with self._change:
            if self._held:
                self.beat = replace(self.beat, time=time.time(), monotonic=time.monotonic())
            elif not self._ended.is_set():
                self.beat = self._moved.take(self.beat, position, step)

    def _publish(self) -> None:
        beat = self.beat
        if self._exchange is not None:
            self._exchange.send(beat)
        if time.monotonic() - self._filed_at < self._files_every - 0.5 * self._every:
            return
        self._filed_at = time.monotonic()
        if not self._may_write():
            return
        with contextlib.suppress(OSError):  # full, read-only, gone: no reason to say a word
            (self._directory / heartbeats.NAME).mkdir(exist_ok=True)
            path = heartbeats.rank_file(self._directory, beat.rank)
            heartbeats.write(path, replace(beat, every=self._files_every).as_json())
            if self._exchange is not None and beat.local_rank == 0:
                heard = self._exchange.heard()
                every = max(heard.every, self._files_every)
                heartbeats.write_host_view(self._directory, replace(heard, every=every))

    def _speak_in_time(self) -> None:
        if self._say is None or self._timeout_s <= 0 or self.beat.phase not in TRAINING:
            return
        if self.beat.in_step > _BEFORE * self._timeout_s:
            for line in self.explain():
                self._say(line)

    def _diagnose(self, timeout_s: float) -> list[str]:
        if self._exchange is not None:
            self._exchange.fresh(timeout_s)
            found = diagnose(self._directory, self._exchange.heard())
        else:
            found = settled(self._directory, timeout_s)
        blamed = set(found.blamed)
        ends = {p.condition for p in found.members if p.rank in blamed}
        if timeout_s == 0.0 and ends <= {ENDED}:
            return []  # whom it has lost is not known here, or has said so itself
        lines = list(found.sentences)
        others = addresses(found, self.beat.host)
        if timeout_s > 0.0:
            looks = network.look(others, self.beat.head, self.beat.nic, self.beat.address)
            lines += [f"the network now: {says}" for well, says in looks if not well]
            if others and all(well for well, _ in looks):
                lines.append("the network now: every host asked answers")
        return lines


class _Moves:
    """Since when the step and the phase are what they are, and how long a step takes."""

    def __init__(self) -> None:
        self._step, self._phase = -1, ""
        self._step_at = self._phase_at = time.monotonic()
        self._usual, self._warm = 0.0, False

    def take(self, beat: Beat, position: Position, step: int) -> Beat:
        """The next beat."""
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
            time=time.time(),
            monotonic=now,
            step=step,
            phase=position.phase,
            waits=position.waits,
            busy=position.busy,
            where=position.where,
            stack=position.stack,
            in_step=round(now - self._step_at, 1),
            in_phase=round(now - self._phase_at, 1),
            usual=round(self._usual, 4),
        )
