"""One live job per checkpoint directory, and no harm from one that should be dead.

Owns the `lock` file, which names the holder of the directory (attempt id, processes, host). Owns the check that a
holder is alive, and the fence that stops an old attempt when a newer one has begun. Knows nothing of torch or of the
checkpoints' content. `claim` runs before torch is imported.

A launch claims the directory and gets an attempt id. Within the attempt, every start of rank 0 (the first, and each
restart by torchrun) enters a new generation. A writer first checks that its attempt and generation are still the ones
on file. Then it writes under names of its own, and publishes by a rename that cannot replace a finished checkpoint. So
a writer that was fenced off between check and rename adds at most an intact checkpoint of the same run.

If a scheduler starts the job, its later start takes over at once. The earlier start may still run on a host that the
scheduler has lost, and ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Optional

from train.base import typed
from train.base.console import say
from train.base.errors import TrainError
from train.base.files import locked, replace_file
from train.base.processes import ENDED, machine, process_state, start_time
from train.base.scheduler import Scheduled
from train.run.layout import steps_on_disk, stop_file
from train.run.status import read_status

HEARTBEAT_S = 5.0
# The processes of a holder on another machine are not visible. If it does not renew the lock for this long, it counts
# as dead.
SILENCE_S = 60.0
# How long a start waits for the workers of a start whose supervisor was killed. They write a checkpoint and end, or
# torchrun kills them after 30 s.
LAST_WORDS_S = 45.0
_WATCH_S = 0.5
_REMEMBERED = 2  # generations in `starts` and `worlds`
_GUARD = ".lock.guard"
# A process id and its start time.
Process = tuple[int, int]
# `ending`: only the holder's workers are left. `unknown`: it is too early to tell.
Life = Literal["alive", "ending", "unknown", "over"]
_DOUBTS = {"ending": "its last processes are ending", "unknown": "it may still be alive"}
_Writer = Optional[Process]


class FencedOffError(Exception):
    """Another attempt, or a restart of this one, has begun: this process must stop writing."""


class HeldByLiveJobError(TrainError):
    """The checkpoint directory belongs to a job that is still running, or to a later start of this job.

    `job`: the holder's name. `is_certain`: false if the holder may be dead, or is about to end.
    """

    def __init__(self, cause: str, remedy: str, job: str = "", is_certain: bool = True) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause, self.remedy, self.job, self.is_certain = cause, remedy, job, is_certain


@dataclass(frozen=True)
class Holder:
    """The content of the lock file.

    `attempt`: the id of the holder. In the checkpoint directory of a job on several hosts it is the launch id, because
    each host has an attempt of its own.
    `starts`: for each of the last generations, the newest step that was committed when it began.
    `worlds`: the hosts with which each of these generations began (see Start).
    `scheduler`: the scheduler's job and its start (see train.base.scheduler), or "".
    """

    attempt: str
    generation: int
    job: str
    host: str
    boot: str
    launcher: Process
    writer: _Writer = None
    starts: tuple[int, ...] = ()
    since: float = 0.0
    worlds: tuple[str, ...] = ()
    scheduler: str = ""

    @property
    def scheduled(self) -> Scheduled | None:
        return Scheduled.parse(self.scheduler)

    @property
    def is_here(self) -> bool:
        """True if the holder's processes are, or were, on this host, where they are visible."""
        return self.boot == machine()


@dataclass(frozen=True)
class Start:
    """The beginning of a generation: the newest step committed anywhere, and the hosts."""

    step: int
    world: str = ""


def claim(
    directory: Path, job: str, launcher_pid: int, attempt: str = "", scheduler: str = ""
) -> str:
    """Take `directory` for a new attempt and return the attempt's id, by default a fresh one.

    Raises HeldByLiveJobError if another live job or a later start of the scheduler's job holds the directory, and
    OSError if it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    await_last_words(directory, scheduler)
    mine = Holder(
        attempt=attempt or secrets.token_hex(6),
        generation=0,
        job=job,
        host=socket.gethostname(),
        boot=machine(),
        launcher=(launcher_pid, start_time(launcher_pid)),
        since=time.time(),
        scheduler=scheduler,
    )
    while True:
        # Judge outside the file lock, because that may take a minute and a restart of the holder needs the lock.
        judged = check_may_take(directory, scheduler)
        with locked(directory / _GUARD):
            if read_lock(directory) == judged:
                _write_lock(directory, mine)
                break
    # If the file system has no locks, two claims may both have come this far: the last write won.
    on_file = read_lock(directory)
    if on_file is None or on_file.attempt != mine.attempt:
        raise HeldByLiveJobError(f"another job took {directory} at the same moment", "try again")
    return mine.attempt


def check_free(directory: Path, scheduler: str) -> None:
    """Raise HeldByLiveJobError if claim() would, but take nothing. Raises OSError."""
    await_last_words(directory, scheduler)
    check_may_take(directory, scheduler)


def check_may_take(
    directory: Path, scheduler: str, timeout_s: float | None = None
) -> Holder | None:
    """Return the holder (or None) if a new attempt may take `directory`. Raises HeldByLiveJobError if not, and OSError.

    `timeout_s`: how long to watch a holder on another machine; by default until its life or its end is certain.
    """
    holder = check_not_replaced(directory, scheduler)
    # An earlier start, or this start on another host, may be replaced without a look at its processes.
    if holder is None or is_same_job(holder, scheduler):
        return holder
    if timeout_s is None:
        life: Life = "alive" if _is_alive(directory, holder) else "over"
    else:
        life = look(directory, holder, timeout_s)
    if life == "alive":
        cause = f"{directory} is {who_holds(holder)}"
        raise HeldByLiveJobError(cause, how_to_end(directory, holder), holder.job)
    if life != "over":
        cause = f"{directory} was {who_holds(holder, 'held by')}; {_DOUBTS[life]}"
        remedy = "nothing: the launch waits until that is certain"
        raise HeldByLiveJobError(cause, remedy, holder.job, is_certain=False)
    return holder


def check_not_replaced(directory: Path, scheduler: str) -> Holder | None:
    """Return the holder, or None. Raises HeldByLiveJobError if it is a later start of the scheduler's job."""
    holder = read_lock(directory)
    if holder is not None:
        start, here = Scheduled.parse(scheduler), f", on {holder.host}"
        refuse_earlier_start(start, holder.scheduled, directory / "lock", here, holder.job)
    return holder


def refuse_earlier_start(
    start: Scheduled | None, holder: Scheduled | None, file: Path, where: str = "", job: str = ""
) -> None:
    """Raise HeldByLiveJobError if the holder that `file` names is a later start of the same job than `start`.

    `where`: the host of the holder, in words.
    """
    if start is None or holder is None or not start.is_replaced_by(holder):
        return
    raise HeldByLiveJobError(
        f"{file.parent} is held by a later start of {start.name}: start {holder.restarts + 1}{where}, "
        f"and this is start {start.restarts + 1}",
        f"nothing, this start is over; if there is no such job any more, rm {file}",
        job,
    )


def take(directory: Path, job: str, launcher_pid: int, launch: str, scheduler: str = "") -> None:
    """Make `launch`, which has begun on several hosts, the holder of `directory`. Only the host of rank 0 does this.

    An earlier rank 0 of the launch may have taken the directory already, on this host or, if the directory is shared,
    on another. Raises HeldByLiveJobError, OSError.
    """
    holder = read_lock(directory)
    if holder is not None and holder.attempt == launch:
        return
    launcher = (launcher_pid, start_time(launcher_pid))
    if holder is not None and (holder.boot, holder.launcher) == (machine(), launcher):
        # This host's supervisor holds it for an earlier launch id, which the hosts that it has met now do not know.
        (directory / "lock").unlink(missing_ok=True)
    claim(directory, job, launcher_pid, launch, scheduler)


def is_same_job(holder: Holder, scheduler: str) -> bool:
    """True if the holder and `scheduler` are starts of one scheduler's job."""
    mine = Scheduled.parse(scheduler)
    return mine is not None and mine.is_same_job(holder.scheduled)


class Fence:
    """The right of this generation of this attempt to write. Rank 0 has it for the checkpoint directory; one process of
    each host enters a generation in the node directory."""

    def __init__(self, directory: Path, attempt: str, start: Start | None = None) -> None:
        """Begin a new generation of `attempt` at `start`, by default at this directory's newest checkpoint.

        Raises FencedOffError if the attempt is no longer the holder, and TrainError if it keeps crashing at this step.
        """
        self._directory = directory
        with locked(directory / _GUARD):
            holder = check_held(directory, attempt)
            if start is None:
                start = Start(max(steps_on_disk(directory), default=0))
            _check_progress(directory, holder, start)
            self._holder = replace(
                _moved_here(holder),
                generation=holder.generation + 1,
                writer=(os.getpid(), start_time(os.getpid())),
                starts=(*holder.starts, start.step)[-_REMEMBERED:],
                worlds=(*holder.worlds, start.world)[-_REMEMBERED:],
            )
            _write_lock(directory, self._holder)
        self._seen: Holder | None = self._holder
        self._is_lost = threading.Event()
        self._ended = keep_alive(directory, attempt, self._look)

    @property
    def attempt(self) -> str:
        return self._holder.attempt

    @property
    def generation(self) -> int:
        return self._holder.generation

    def check(self) -> None:
        """Raise FencedOffError when a newer attempt or generation has begun."""
        try:
            self._look(read_lock(self._directory))
        except OSError:
            return  # the file server may be away for a moment
        self.check_seen()

    def check_seen(self) -> None:
        """Like check(), but by the heartbeat's last read of the lock, so that no call waits for a file server."""
        if self._is_lost.is_set():
            raise FencedOffError(_fenced_message(self._directory, self.attempt, self._seen))

    def _look(self, holder: Holder | None) -> None:
        mine = self.attempt, self.generation
        if holder is None or (holder.attempt, holder.generation) != mine:
            self._seen = holder
            self._is_lost.set()

    def close(self) -> None:
        """Stop the heartbeat. The lock itself ends with the processes that it names."""
        self._ended.set()


def keep_alive(
    directory: Path, attempt: str, look: Callable[[Holder | None], None] = lambda _: None
) -> threading.Event:
    """Renew the lock's time stamp in a thread, until the returned event is set or `attempt` has lost the directory.

    The thread calls `look` with the holder each time.
    """
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):  # the file server may be away for a moment
                holder = read_lock(directory)
                look(holder)
                if holder is None or holder.attempt != attempt:
                    return
                os.utime(directory / "lock")

    threading.Thread(target=renew, name="heartbeat", daemon=True).start()
    return ended


def _moved_here(holder: Holder) -> Holder:
    """The same holder, with the processes of this host as its sign of life."""
    if holder.is_here:
        return holder
    launcher = int(os.environ.get("DDPGEN_LAUNCHER_PID", os.getpid()))
    return replace(
        holder,
        host=socket.gethostname(),
        boot=machine(),
        launcher=(launcher, start_time(launcher)),
    )


def _check_progress(directory: Path, holder: Holder, start: Start) -> None:
    """Raise TrainError if the last generation began at this step too, and was a restart itself.

    Only generations of the same hosts count, because a generation also ends without a crash if a host comes or goes.
    """
    if holder.starts[-1:] == (start.step,) and holder.worlds[-2:] == (start.world,) * 2:
        noted = read_status(directory)
        last = noted.reason if noted is not None else ""
        raise TrainError(
            f"crashed twice without committing a step after step {start.step}; giving up."
            f"{f' The last crash: {last}.' if last else ''} If it strikes at random, a shorter "
            "checkpoint.every gets past it"
        )


def read_lock(directory: Path) -> Holder | None:
    """Return the holder on file, or None without a valid lock file. An invalid one keeps no job out."""
    try:
        return typed.parse(Holder, (directory / "lock").read_bytes())
    except FileNotFoundError:
        return None


def check_held(directory: Path, attempt: str) -> Holder:
    """Return the holder. Raises FencedOffError if it is not `attempt`."""
    holder = read_lock(directory)
    if holder is None or holder.attempt != attempt:
        raise FencedOffError(_fenced_message(directory, attempt, holder))
    return holder


def look(directory: Path, holder: Holder, timeout_s: float) -> Life:
    """Find out if the holder of `directory` is alive, in at most `timeout_s` seconds. Raises OSError."""
    if not holder.is_here:
        renews = _pulse(directory, timeout_s)
        return "unknown" if renews is None else "alive" if renews else "over"
    if _is_running(holder.launcher):
        return "alive"
    return "ending" if holder.writer and _is_running(holder.writer) else "over"


def ending(directory: Path, scheduler: str) -> Holder | None:
    """Return the holder if only its workers are left on this host. They end by themselves, and claim() waits for that.

    Returns None for an earlier start of the scheduler's job, because its workers are fenced off.
    """
    holder = read_lock(directory)
    if holder is None or not holder.is_here or is_same_job(holder, scheduler):
        return None
    return holder if look(directory, holder, 0.0) == "ending" else None


def _write_lock(directory: Path, holder: Holder) -> None:
    replace_file(directory / "lock", json.dumps(asdict(holder), indent=1).encode() + b"\n")


def _is_alive(directory: Path, holder: Holder) -> bool:
    """True if the holder lives. Watches a holder on another machine until that is certain."""
    if not holder.is_here:
        say(
            f"{directory} was held by {holder.host}, attempt {holder.attempt}; looking for up to "
            f"{SILENCE_S:g} s whether that is still alive"
        )
    return look(directory, holder, SILENCE_S) in ("alive", "ending")


def await_last_words(directory: Path, scheduler: str = "") -> None:
    """Wait for the holder's workers if its supervisor is dead, because then they are about to end."""
    holder = ending(directory, scheduler)
    if holder is None:
        return
    say(
        f"the supervisor of attempt {holder.attempt} was killed; waiting for its workers to write "
        "their checkpoint and end"
    )
    deadline = time.monotonic() + LAST_WORDS_S
    while look(directory, holder, 0.0) == "ending" and time.monotonic() < deadline:
        time.sleep(0.1)  # the writer is not a child of this process, so waitpid cannot wait for it


def _pulse(directory: Path, timeout_s: float) -> bool | None:
    """watch() a holder on another machine, which renews the time of its lock file."""

    def beat() -> tuple[float | None, bool]:
        now = _server_time(directory)
        with contextlib.suppress(FileNotFoundError):
            renewed = (directory / "lock").stat().st_mtime
            return renewed, now - renewed > SILENCE_S
        return None, True

    return watch(beat, timeout_s, _WATCH_S)


def _server_time(directory: Path) -> float:
    """Return the file server's time, because no two machines' clocks agree."""
    probe = directory / f".clock.{os.getpid()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def watch(beat: Callable[[], tuple[object, bool]], timeout_s: float, every_s: float) -> bool | None:
    """True as soon as a holder renews its beat, and false if it gives up its place or is silent for too long. None if
    `timeout_s` seconds are too short to tell.

    `beat`: look at the holder. It returns a value that each renewal changes, or None if nobody holds the place, and
    true if the last renewal is too long ago. The caller must not hold a file lock, because the holder may need it.
    """
    deadline = time.monotonic() + timeout_s
    first, is_silent = beat()
    now = first
    while now is not None and not is_silent:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        # Poll, because neither a network mount nor a bucket has an event to wait for.
        time.sleep(min(every_s, left))
        now, is_silent = beat()
        # This process or the place may have stood still for long, so a renewal counts more than a long silence.
        if now not in (None, first):
            return True
    return False


def _is_running(process: Process) -> bool:
    return process_state(*process) not in ENDED


def who_holds(holder: Holder, otherwise: str = "in use by") -> str:
    """`held by Slurm job 4711, job 'gpt', …`, with everything that helps to find the holder. `otherwise`: the verb
    without a scheduler."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    scheduled = holder.scheduled
    held = f"held by {scheduled.name}," if scheduled else otherwise
    return (
        f"{held} job {holder.job!r}, attempt {holder.attempt}, process {holder.launcher[0]} on "
        f"{holder.host}, since {since}"
    )


def how_to_end(held: Path, holder: Holder) -> str:
    """The remedy against a job that holds `held`."""
    scheduled = holder.scheduled
    cancel = (
        f"end it at once with '{scheduled.cancel_command}', "
        if scheduled and scheduled.cancel_command
        else ""
    )
    return (
        f"wait for it, stop it cleanly with 'touch {stop_file(held)}', {cancel}or give this job "
        "another checkpoint.dir"
    )


def _fenced_message(directory: Path, attempt: str, holder: Holder | None) -> str:
    now = f"attempt {holder.attempt} on {holder.host}" if holder else "nobody"
    return f"attempt {attempt} no longer holds {directory} ({now} does); it stops writing and ends"
