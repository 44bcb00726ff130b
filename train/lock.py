"""One live job per checkpoint directory, and no harm from one that should be dead.

Owns the `lock` file: who holds the directory (attempt id, processes, host), how a dead holder is
told from a live one, and the fence an old attempt runs into when a newer one has begun. Knows
nothing of torch or of what is in the checkpoints; `claim` runs before torch is imported.

A launch claims the directory and gets an attempt id. Within it, every start of rank 0 (the first,
and each restart by torchrun) enters a new generation. Whoever writes checks first that its attempt
and generation are still the ones on file, writes under names of its own, and publishes by a rename
that cannot replace a finished checkpoint: so a writer that was fenced off between check and rename
adds at most an intact checkpoint of the same run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from train.errors import TrainError
from train.layout import steps_on_disk
from train.status import replace_file

HEARTBEAT_S = 5.0
# A holder on another machine cannot be looked at; it counts as dead after this long in silence.
SILENCE_S = 60.0
# Nobody beats while a start imports torch and joins the others.
START_SILENCE_S = 180.0
# How long a start waits for the workers of one whose launch script was killed: they write a
# checkpoint and end, or torchrun kills them after 30 s.
LAST_WORDS_S = 45.0


class FencedOffError(Exception):
    """Another attempt, or a restart of this one, has begun: this process must stop writing."""


class HeldByLiveJobError(TrainError):
    """The checkpoint directory belongs to a job that is still running."""


@dataclass(frozen=True)
class Holder:
    """What the lock file says. `starts`: the newest step each generation of the attempt
    found committed."""

    attempt: str
    generation: int
    job: str
    host: str
    boot: str
    launcher: tuple[int, int]
    writer: tuple[int, int] | None = None
    starts: tuple[int, ...] = ()
    since: float = 0.0


def claim(directory: Path, job: str, launcher_pid: int) -> str:
    """Take `directory` for a new attempt and return the attempt's id.

    Raises HeldByLiveJobError when another job is alive in it, OSError when it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _await_last_words(directory)
    with _exclusive(directory):
        holder = read_lock(directory)
        if holder is not None and _is_alive(directory, holder):
            raise HeldByLiveJobError(_describe(directory, holder))
        attempt = secrets.token_hex(6)
        mine = Holder(
            attempt=attempt,
            generation=0,
            job=job,
            host=socket.gethostname(),
            boot=_boot(),
            launcher=(launcher_pid, _start_time(launcher_pid)),
            since=time.time(),
        )
        _write_lock(directory, mine)
    # Where the file system has no locks, two claims may both have got here: the last write won.
    if _attempt_on_file(directory) != attempt:
        raise HeldByLiveJobError(f"another job took {directory} at the same moment; try again")
    return attempt


class Fence:
    """The right of this generation of this attempt to write. Entered by rank 0 alone."""

    def __init__(self, directory: Path, attempt: str) -> None:
        """Begin a new generation of `attempt`.

        Raises FencedOffError when it is no longer the holder, and TrainError when it keeps crashing
        where it stands.
        """
        self._directory = directory
        with _exclusive(directory):
            holder = read_lock(directory)
            if holder is None or holder.attempt != attempt:
                raise FencedOffError(_fenced_message(directory, attempt, holder))
            step = max(steps_on_disk(directory), default=0)
            _check_progress(holder, step)
            self._holder = replace(
                holder,
                generation=holder.generation + 1,
                writer=(os.getpid(), _start_time(os.getpid())),
                starts=(*holder.starts, step),
            )
            _write_lock(directory, self._holder)
        self.lost: FencedOffError | None = None
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    @property
    def attempt(self) -> str:
        return self._holder.attempt

    @property
    def generation(self) -> int:
        return self._holder.generation

    def check(self) -> None:
        """Raise FencedOffError when a newer attempt or generation has begun."""
        holder = read_lock(self._directory)
        if holder is None or (holder.attempt, holder.generation) != (self.attempt, self.generation):
            raise FencedOffError(_fenced_message(self._directory, self.attempt, holder))

    def close(self) -> None:
        """Stop the heartbeat. The lock itself ends with the processes it names."""
        self._ended.set()
        self._heart.join()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                self.check()
                os.utime(self._directory / "lock")
            except FencedOffError as error:
                self.lost = error
                return
            except OSError:
                continue  # a file server that is away for a moment


def _check_progress(holder: Holder, step: int) -> None:
    """Give up when the generation that ended last began here too, and was a restart itself."""
    if len(holder.starts) >= 2 and holder.starts[-1] == step:
        raise TrainError(
            f"crashed twice without committing a step after step {step}; giving up. The first error "
            "above is the cause; if it strikes at random, a shorter checkpoint.every gets past it"
        )


def read_lock(directory: Path) -> Holder | None:
    """The holder on file, or None when there is none (or nothing readable, which holds nobody off)."""
    try:
        data: dict[str, Any] = json.loads((directory / "lock").read_text("utf-8"))
        data["launcher"] = tuple(data["launcher"])
        data["writer"] = tuple(data["writer"]) if data["writer"] else None
        data["starts"] = tuple(data["starts"])
        return Holder(**data)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return None


def _write_lock(directory: Path, holder: Holder) -> None:
    replace_file(directory / "lock", json.dumps(asdict(holder), indent=1).encode() + b"\n")


def _attempt_on_file(directory: Path) -> str | None:
    holder = read_lock(directory)
    return holder.attempt if holder else None


@contextlib.contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    with open(directory / ".lock.guard", "a") as guard:
        # Object-store mounts have no locks; there the read-back after the write has to do.
        with contextlib.suppress(OSError):
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _is_alive(directory: Path, holder: Holder) -> bool:
    if holder.boot == _boot():
        return any(_is_running(p) for p in (holder.launcher, holder.writer) if p)
    return _heart_beats(directory, holder)


def _await_last_words(directory: Path) -> None:
    """Where the holder's launch script is dead, its workers are about to end: wait for them."""
    holder = read_lock(directory)
    if holder is None or holder.boot != _boot() or _is_running(holder.launcher):
        return
    if holder.writer is None or not _is_running(holder.writer):
        return
    print(
        f"ddpgen: the launch script of attempt {holder.attempt} was killed; waiting for its workers "
        "to write their checkpoint and end",
        file=sys.stderr,
    )
    deadline = time.monotonic() + LAST_WORDS_S
    while _is_running(holder.writer) and time.monotonic() < deadline:
        time.sleep(0.1)  # not a child of this process, so there is nothing to wait on


def _heart_beats(directory: Path, holder: Holder) -> bool:
    """Whether a holder on another machine shows life within the time it may be silent.

    Both times compared come from the file server, so no two machines' clocks have to agree.
    """
    probe = directory / f".clock.{os.getpid()}"
    try:
        silence = SILENCE_S if holder.generation else START_SILENCE_S
        deadline = time.monotonic() + silence
        first = _mtime(directory / "lock")
        while first is not None:
            probe.touch()
            if probe.stat().st_mtime - first > silence:
                return False
            if time.monotonic() > deadline:
                return False
            if _mtime(directory / "lock") != first:
                return True
            time.sleep(0.5)  # a file on a network mount has no event to wait for
        return False
    finally:
        probe.unlink(missing_ok=True)


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _is_running(process: tuple[int, int]) -> bool:
    pid, started = process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _start_time(pid) == started


def _start_time(pid: int) -> int:
    """Clock ticks from boot to the start of `pid` (proc_pid_stat(5)): tells a reused pid apart.

    A zombie counts as ended. 0 where there is no /proc, so there a reused pid looks alive.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1 if os.path.isdir("/proc/self") else 0
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot() -> str:
    """Names the set of processes this one can see: this boot of this host, this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _describe(directory: Path, holder: Holder) -> str:
    pid = holder.launcher[0]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    return (
        f"{directory} is in use by job {holder.job!r}, attempt {holder.attempt}, process {pid} on "
        f"{holder.host}, since {since}; wait for it, stop it cleanly with "
        f"'touch {directory}/stop', or give this job another checkpoint.dir"
    )


def _fenced_message(directory: Path, attempt: str, holder: Holder | None) -> str:
    now = f"attempt {holder.attempt} on {holder.host}" if holder else "nobody"
    return f"attempt {attempt} no longer holds {directory} ({now} does); it stops writing and ends"
