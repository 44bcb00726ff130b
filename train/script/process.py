"""One worker of a user's own training: its options, and how its end becomes the status.

Owns the worker's side of the contract with the supervisor. The subclasses of Runner run the script or the program, and
stop it.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from train.base.console import say, say_restart
from train.base.errors import EXIT_FAILED, EXIT_STOPPED, exit_at_once
from train.base.placeholders import MASTER_PORT, NEWEST
from train.base.scheduler import VARIABLE, Scheduled
from train.run import saves
from train.run.lock import HeldByLiveJobError, check_not_replaced, keep_alive, read_lock, take
from train.run.node import Node, is_over, record_crash
from train.run.replaced import Replacement
from train.run.status import Status, read_status, write_status
from train.run.stop import is_for, reason_in

EXIT_USAGE = 2  # argparse, click and many others end with it
# How often a process looks for a request to stop.
_LOOK_S = 0.5
# Directories of the launcher in the checkpoint directory.
_LAUNCHERS = re.compile(r"bundles|slurm-bundle-.*|heartbeats|logs|nodes|script|torn")


class Crash(NamedTuple):
    """A crash that is noted in the status. `file` distinguishes it from an earlier crash with the same words."""

    reason: str = ""
    file: tuple[int, int] = (0, 0)


class Runner(ABC):
    """One process of a user's own training."""

    # The field of the spec that has the arguments.
    FIELD = "train.args"

    def __init__(
        self, name: str, options: argparse.Namespace, stop_signal: str, env: Mapping[str, str]
    ) -> None:
        """`name`: the script's name in messages. `stop_signal`: the signal that asks the script to stop, or "". `env`:
        the launcher's variables, and the supervisor's for this launch."""
        self._name, self._options, self._stop_signal = name, options, stop_signal
        self._arguments: Sequence[str] = options.command[1:]
        self._attempt = env.get("DDPGEN_ATTEMPT", "")
        self._rank, self._size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self._is_local_0 = env.get("LOCAL_RANK", "0") == "0"
        self._launcher = int(env.get("DDPGEN_LAUNCHER_PID", os.getpid()))
        self._job = env.get("DDPGEN_JOB", "?")
        self._scheduler = env.get(VARIABLE, "")
        # The directory with the whole job's status, and the directory with this host's.
        self._job_directory = Path(env.get("DDPGEN_CHECKPOINT_DIR", ".")).absolute()
        self._directory = Path(env.get("DDPGEN_NODE_DIR") or self._job_directory).absolute()
        self._stop_file = Path(
            env.get("DDPGEN_STOP_FILE") or self._job_directory / "stop"
        ).absolute()
        self._node = Node.from_environment(env)
        self._store = env.get("DDPGEN_CHECKPOINT_STORE", "")
        self._speaks = env.get("LOCAL_RANK" if self._node else "RANK", "0") == "0"
        self._code = Path("code").absolute()
        self._ended = threading.Event()
        self._signalled = False
        self._crash_before = Crash()
        self._resumes = False  # true if the script got the arguments to resume
        self._correct = self.FIELD  # the field to correct if the script refuses its arguments

    def run(self) -> int:
        """Run this worker and return its exit code."""
        if self._attempt and is_over(self._directory, self._attempt):
            return 0
        self._crash_before = self._crash_noted()
        replaced = Replacement(self._job_directory, os.environ, self._node)
        replaced.end_if_come()
        if self._node is not None and self._is_local_0:
            try:
                self._take_lock(self._node)
            except HeldByLiveJobError as error:
                return self._fail(str(error))
            # From here on this process handles a stop itself.
            self._node.remember(self._node.launch() or self._attempt)
        replaced.watch()
        if self._stop_requested() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return self._conclude(EXIT_STOPPED, 0)  # no restart after a request to stop
        try:
            os.chdir(self._make_workdir())
        except OSError as error:
            return self._fail(f"{error.filename}: {error.strerror}; the workdir cannot be made")
        if self._store:
            # The script's saves must outlive the machine, so they go to the store. The launcher's files stay here.
            os.makedirs(self._store, exist_ok=True)
            os.environ["DDPGEN_CHECKPOINT_DIR"] = self._store
        for place in self._interrupted_saves(say) if self._is_local_0 else ():
            if not self._holds_a_job(place):
                _set_aside(place)
        if self._speaks:
            say_restart(f": {self._crash_before.reason}" if self._crash_before.reason else "")
        return self._run()

    @abstractmethod
    def _run(self) -> int:
        """Run the script or program in the working directory, and return this process' exit code."""

    @abstractmethod
    def _send(self, name: str) -> bool:
        """Send the script or program this signal. Returns False if it does not handle the signal (yet)."""

    # --- before the script ------------------------------------------------------------------------

    def _take_lock(self, node: Node) -> None:
        """Under a scheduler, rank 0 takes the lock of the whole directory. So this start, and any other job, sees when
        a later start of the job begins. Raises HeldByLiveJobError, OSError."""
        if Scheduled.parse(self._scheduler) is None or self._rank:
            return
        launch = node.launch() or node.attempt
        take(self._job_directory, self._job, self._launcher, launch, self._scheduler)
        keep_alive(self._job_directory, launch)

    def _make_workdir(self) -> Path:
        """Make and return the working directory, with links to the files of the job in it. Raises OSError."""
        directory = (self._options.workdir or self._job_directory / "work").expanduser().absolute()
        directory.mkdir(parents=True, exist_ok=True)
        if self._code.is_dir():
            _link_files(self._code, directory)
        return directory

    def _interrupted_saves(
        self, on_skipped: Callable[[str], None] = lambda _: None
    ) -> Iterator[str]:
        """Yield the checkpoint directories whose save was interrupted. `on_skipped` gets a line for each directory that
        is not the script's."""
        for guard in self._options.guard:
            pattern, last = os.path.split(guard)
            for directory in map(os.path.abspath, filter(os.path.isdir, glob.glob(pattern))):
                if glob.glob(os.path.join(glob.escape(directory), last)):
                    continue
                if self._is_of_the_script(directory):
                    yield directory
                else:
                    on_skipped(
                        f"{directory} has no {last} and stays where it is, because it is no checkpoint in the "
                        "working directory; name only those in train.guard"
                    )

    def _is_of_the_script(self, path: str) -> bool:
        """Return True if `path` lies in the working directory, the checkpoint directory or the store, and is neither
        the launcher's nor a running job's."""
        roots = (Path.cwd(), self._job_directory, Path(self._store or self._job_directory))
        real = Path(os.path.realpath(path))
        inside = any(Path(os.path.realpath(root)) in real.parents for root in roots)
        is_launchers = _LAUNCHERS.fullmatch(real.name) and real.parent.samefile(self._job_directory)
        return inside and not is_launchers and not self._holds_a_job(path)

    def _holds_a_job(self, path: str) -> bool:
        """Return True if a job runs in `path`: this one, or another that has its lock there or below."""
        real = Path(os.path.realpath(path))
        own = [Path(os.path.realpath(root)) for root in (Path.cwd(), self._job_directory)]
        if any(real in (root, *root.parents) for root in own):
            return True
        return any(read_lock(file.parent) is not None for file in real.rglob("lock"))

    def _all_arguments(self) -> list[str]:
        """Return the arguments, with `train.resume.args` added if there is a checkpoint to go on from."""
        # Leave out interrupted saves, which rank 0 may not have moved away yet.
        torn = tuple(os.path.join(place, "") for place in self._interrupted_saves())
        there = [
            path
            for pattern in self._options.resume_exists
            for path in glob.glob(os.path.expanduser(pattern))
            if not os.path.join(os.path.abspath(path), "").startswith(torn)
        ]
        newest = saves.newest_of(there)
        added = [word.replace(NEWEST, newest) for word in self._options.resume_arg if there]
        self._resumes = bool(there)
        if added:
            self._correct = (
                f"train.resume.args, which are added where there is progress, or {self.FIELD}"
            )
        words = [*self._arguments, *added]
        return [word.replace(MASTER_PORT, os.environ.get("MASTER_PORT", "")) for word in words]

    # --- stopping ---------------------------------------------------------------------------------

    def _stop_requested(self) -> bool:
        try:
            return self._stop_file.exists() and is_for(reason_in(self._stop_file), self._scheduler)
        except OSError:
            return False  # a file server that is away is no request to stop

    def _watch(self, stop_requested: Callable[[], bool], step: Callable[[], int]) -> None:
        """Wait for a request to stop, pass it on, and end this process if it does not stop in time.

        `stop_requested`: returns whether there is a request. `step`: returns the script's step.
        """
        while not stop_requested():
            if self._ended.wait(_LOOK_S):
                return
        told, until = not self._stop_signal, time.monotonic() + self._options.stop_grace
        while time.monotonic() < until:
            told = told or self._send(self._stop_signal)
            if self._ended.wait(min(_LOOK_S, self._options.stop_grace)):
                return
        if self._send("TERM") and self._ended.wait(self._options.term_grace):
            return
        if self._speaks:
            say(
                f"{self._name} did not stop within {self._options.stop_grace:g} s and is killed; "
                "what it has not saved is lost"
            )
        exit_at_once(self._conclude(EXIT_STOPPED, step()))

    # --- the end ----------------------------------------------------------------------------------

    def _conclude(self, code: int, step: int) -> int:
        """Write the status that the exit code `code` means, and return the exit code of this worker."""
        if code == 0 and self._crash_noted() != self._crash_before:
            return EXIT_FAILED  # another rank has crashed; the restart is for all ranks, so this rank is not done
        if code == 0 and self._speaks:
            self._write_end("done", step)
        elif code == EXIT_STOPPED and self._speaks:
            # The ranks agree on a stop by themselves. Only the host that was asked has the file with the reason.
            asked = self._stop_file
            self._write_end("stopped", step, reason_in(asked) if asked.exists() else "")
        elif code == EXIT_USAGE:
            return self._fail(
                f"{self._name} refused its arguments (exit code {code}); correct {self._correct}"
            )
        elif code not in (0, EXIT_STOPPED):
            self._note_crash(f"{self._name} ended with exit code {code}")
        # Not 75, because torchrun would start the workers again.
        return 0 if code == EXIT_STOPPED else code

    def _crash_noted(self) -> Crash:
        """Return the newest crash of any rank that this host can see."""
        noted = read_status(self._job_directory)
        if noted is None or noted.word != "running" or not noted.reason:
            return Crash()
        try:
            file = os.stat(self._job_directory / "status")
        except OSError:
            return Crash()
        return Crash(noted.reason, (file.st_mtime_ns, file.st_ino))

    def _note_crash(self, reason: str, only_follows: bool = False) -> None:
        """Note a crash, which a restart may cure; if there is no restart, the status has the reason.

        `only_follows`: the crash only follows from the end of another rank.
        """
        what = f"rank {self._rank}: {reason}"
        # A crash that was noted before this start is not the cause of this one.
        only_follows = only_follows and self._crash_noted() != self._crash_before
        # Replace "done" as well, because rank 0 may have ended already.
        record_crash(
            self._job_directory, self._attempt, self._node, what, only_follows, words="running done"
        )

    def _fail(self, reason: str) -> int:
        """Write `failed`, and return the exit code. Each rank that meets the fault calls this. After torchrun's
        restart, all ranks read the status and end."""
        if (read_status(self._directory) or Status("running", "", 0)).reason != reason:
            say(reason)
        self._write_end("failed", None, reason)
        return EXIT_FAILED

    def _write_end(self, word: str, step: int | None, reason: str = "") -> None:
        holder = read_lock(self._directory)
        if not self._attempt or holder is None or holder.attempt != self._attempt:
            return
        if not step:
            step = (read_status(self._directory) or Status(word, self._attempt, 0)).step
        write_status(self._directory, Status(word, self._attempt, step, reason))
        if self._node is not None and self._rank == 0:
            # Write the whole job's status as well as this host's.
            launch = self._node.launch() or self._attempt
            with contextlib.suppress(HeldByLiveJobError):
                check_not_replaced(self._job_directory, self._scheduler)
                write_status(self._job_directory, Status(word, launch, step, reason))


def _link_files(code: Path, workdir: Path) -> None:
    """Make links in `workdir` to all files in `code`; the directories are real ones. Raises OSError.

    Several processes may do this at once. If the script has put its own file in the place of a link, that file stays.
    """
    for here, directories, files in os.walk(code):
        directories[:] = [name for name in directories if name != "__pycache__"]
        inside = Path(here).relative_to(code)
        there = workdir / inside
        there.mkdir(parents=True, exist_ok=True)
        for name in files:
            _link(there / name, Path(here, name))


def _link(link: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # no link, or another process has just removed it
        if os.readlink(link) == str(target):
            return
    if os.path.lexists(link) and not link.is_symlink():
        return
    draft = link.with_name(f".{secrets.token_hex(8)}")  # hosts may share the directory
    draft.symlink_to(target)
    os.replace(draft, link)


def _set_aside(directory: str) -> None:
    """Move a directory with an interrupted save into `torn`, next to its parent folder, where no glob finds it."""
    folder, name = os.path.split(directory)
    aside, count = os.path.join(os.path.dirname(folder), "torn", name), 1
    while os.path.lexists(aside):
        count += 1
        aside = os.path.join(os.path.dirname(folder), "torn", f"{name}.{count}")
    try:
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(directory, aside)
    except FileNotFoundError:  # another host that shares it was faster
        pass
    except OSError as error:  # a bucket cannot rename a directory
        say(f"the saving of {directory} was cut off; it cannot be moved away ({error.strerror})")
    else:
        say(f"the saving of {directory} was cut off; it is now {aside}")
