"""The checkpoint directory of a job of Slurm, between and during its starts.

Owns the files that the batch supervisor keeps there. `slurm-job` names the job that has the directory, also while it
waits in the queue. `slurm-starts` lists the job's starts and their ends. `slurm-failed` names the node that ended a
start first. `slurm-bundle-JOBID` is a copy of the submitted bundle. Owns the stop file, too, if Slurm's signals are
the reason for it. `bad-nodes` is launch/bad_nodes.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from train.base import typed
from train.base.console import say
from train.base.errors import EXIT_STOPPED, EXIT_UNAVAILABLE, Refusal
from train.base.files import locked, read_file, replace_file
from train.base.scheduler import Scheduled
from train.launch import bad_nodes
from train.launch.directory import steps_saved
from train.launch.slurm.decision import AGAIN, Begun, Failure
from train.launch.slurm.job import Controller, is_over
from train.run import lock
from train.run.bundle import LISTING
from train.run.layout import steps_on_disk
from train.run.status import Status, read_status, write_status
from train.run.stop import create_stop_file, is_for, reason_in

FAILED = "slurm-failed"
_SNAPSHOT = "slurm-bundle-"
# A directory without this file in it is never removed, and never taken for a copy of the bundle.
_MARK = ".ddpgen-snapshot"


@dataclass(frozen=True)
class Starts:
    """The content of `slurm-starts`: the starts of `job`, and the number of requeues and restarts that it may have.

    `head`, `began`: the first node of the newest start, and its beginning in seconds since the epoch. `left_out`: the
    nodes that ddpgen has Slurm leave out. `refused`: Slurm has refused to leave nodes out.
    """

    job: str
    requeues: int = 0
    restarts: int = 0
    starts: tuple[Begun, ...] = ()
    head: str = ""
    began: float = 0.0
    left_out: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class Directory:
    """The checkpoint directory at `path` for the start of `job` after `requeue_count` requeues. `job`: the job's name
    in Slurm (JobRecord.name). `number`: SLURM_JOB_ID; each task of an array has its own number."""

    path: Path
    job: str
    number: str
    requeue_count: int
    cluster: str = ""

    @property
    def launch(self) -> str:
        return f"slurm.{self.job}.{self.requeue_count}"

    @property
    def scheduler(self) -> str:
        return f"slurm {self.job} {self.requeue_count}"

    @property
    def _start(self) -> Scheduled:
        return Scheduled("slurm", self.job, self.requeue_count)

    # --- the job that has the directory -------------------------------------------------------------

    def make(self) -> None:
        """Make the directory if it is missing. Raises Refusal."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable("cannot be made", error, "DIR001") from None

    def take(self, controller: Controller) -> None:
        """Take the directory for this job. No file of it is changed before it is certainly free. Raises Refusal."""
        try:
            with locked(self.path / ".slurm-job.guard"):
                self._check_free(controller)
                replace_file(self.path / "slurm-job", self._mark.encode() + b"\n")
        except lock.HeldByLiveJobError as error:
            raise Refusal(EXIT_UNAVAILABLE, f"{error} (DIR004)") from None
        except OSError as error:
            raise self._unusable("cannot be written to", error, "DIR002, DIR003") from None

    @property
    def _mark(self) -> str:
        return f"{self.job} {self.requeue_count} {self.cluster}".rstrip()

    def _unusable(self, what: str, error: OSError, codes: str) -> Refusal:
        where = f"the checkpoint directory {self.path} {what} on {os.uname().nodename}"
        remedy = "set checkpoint.dir to a place you can write to"
        return Refusal(EXIT_UNAVAILABLE, f"{where}: {error.strerror}; {remedy} ({codes})")

    def _check_free(self, controller: Controller) -> None:
        holder, cluster = self._holder()
        if holder is not None and not self._start.is_same_job(holder):
            self._check_over(holder.job, cluster or self.cluster, controller)
        lock.refuse_earlier_start(self._start, holder, self.path / "slurm-job")
        lock.check_free(self.path, self.scheduler)

    def _holder(self) -> tuple[Scheduled | None, str]:
        """Return the start that has the directory, if any, and its cluster."""
        words: list[str] = []
        with contextlib.suppress(OSError):
            words = read_file(self.path / "slurm-job").decode("utf-8", "replace").split()
        start = Scheduled.parse(" ".join(["slurm", *words[:2]]))
        # A file that an earlier version wrote has only the job's number.
        return start or Scheduled.parse(" ".join(["slurm", *words[:1], "0"])), " ".join(words[2:])

    def _check_over(self, job: str, cluster: str, controller: Controller) -> None:
        whose = f"{self.path} belongs to Slurm job {job}"
        if cluster != self.cluster:
            remedy = f"if it is over, rm {self.path / 'slurm-job'}"
            raise lock.HeldByLiveJobError(f"{whose} of the cluster {cluster}", remedy)
        state = controller.state_of(job)
        if not is_over(state):
            remedy = f"wait for it, end it (scancel {job}), or give this job another checkpoint.dir"
            raise lock.HeldByLiveJobError(f"{whose}, which is {state or 'unknown'}", remedy)

    @property
    def is_ours(self) -> bool:
        """True if this start of the job has taken the directory, or if an earlier one has and no later one."""
        holder, _ = self._holder()
        return self._start.is_same_job(holder) and not self._start.is_replaced_by(holder)

    def release(self) -> None:
        """Free the directory for another job, because this one does not come back."""
        if self.is_ours:
            os.chdir("/")
            _remove(self.snapshot)
            (self.path / "slurm-job").unlink(missing_ok=True)

    # --- the starts and their ends ------------------------------------------------------------------

    @property
    def newest_step(self) -> int:
        """The step of the newest complete checkpoint, also of a user's script; 0 without one."""
        return max([0, *steps_on_disk(self.path), *steps_saved(self.path)])

    def progress(self, of_script: bool) -> int | None:
        """Return the newest step; None for a user's program that was not seen to save anything."""
        return self.newest_step or (None if of_script else 0)

    def starts(self) -> Starts:
        """Return the starts of this job that are on file, the first one first."""
        kept = typed.read(Starts, self.path / "slurm-starts")
        return kept if kept is not None and kept.job == self.number else Starts(self.number)

    def keep_starts(self, starts: Starts) -> None:
        """Put the starts on file. Ignore a failed write: the job can go on without it."""
        content = json.dumps(asdict(starts))
        with contextlib.suppress(OSError):
            replace_file(self.path / "slurm-starts", content.encode() + b"\n")

    @property
    def bad_nodes(self) -> Path:
        return self.path / bad_nodes.FILE

    def say_running(self) -> None:
        """Write the status `running`, in place of the status that an earlier start or job has left."""
        with contextlib.suppress(OSError):
            write_status(self.path, Status("running", self.launch, self.newest_step))

    def say_ended(self, word: str, why: str) -> None:
        """Write the job's end into the status, if a start has left `running` there, or `stopped` for a next start."""
        status = read_status(self.path)
        if status is None or status.word not in ("running", "stopped") or status.word == word:
            return
        if status.attempt.rpartition(".")[0] == f"slurm.{self.job}":
            with contextlib.suppress(OSError):
                write_status(self.path, Status(word, status.attempt, status.step, why))

    def status(self) -> Status | None:
        """Return the status that this start has put on file, if any."""
        status = read_status(self.path)
        return status if status is not None and status.attempt == self.launch else None

    def failure(self) -> Failure | None:
        """Return the failure of the node that has ended this start by itself, if any."""
        with contextlib.suppress(OSError, ValueError):
            text = read_file(self.path / FAILED).decode("utf-8", "replace")
            launch, code, node, *words = text.split(maxsplit=3)
            if launch == self.launch:
                return Failure(int(code), node, " ".join(words).strip())
        return None

    def keep_failure(self, code: int, node: str, words: str) -> None:
        """Put a node's failure on file for the batch supervisor, because srun may drop what the node has printed.

        The first failure of a start stays on file, because a node that waited for the failed one refuses after it.
        """
        if self.failure() is not None:
            return
        line = " ".join(f"{self.launch} {code} {node} {words}".split())
        with contextlib.suppress(OSError):
            replace_file(self.path / FAILED, line.encode() + b"\n")

    # --- the stop file ------------------------------------------------------------------------------

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    def request_stop(self, why: str) -> None:
        """Make the stop file, unless there is one for this start. Raises OSError."""
        if self.stop_file.exists() and not is_for(reason_in(self.stop_file), self.scheduler):
            self.stop_file.unlink(missing_ok=True)  # left by another job, or an earlier start
        create_stop_file(self.stop_file, f"{self.scheduler} {why}")

    def whose_stop(self) -> str:
        """Return the maker of the stop file. `job`: a signal for this job. `user`: somebody who wants the job to stop.
        `other`: a signal for another job. "": there is no stop file."""
        try:
            words = read_file(self.stop_file).decode("utf-8", "replace").split()
        except FileNotFoundError:
            return ""
        except OSError:
            return "user" if self.stop_file.exists() else ""
        if words[:1] != ["slurm"] or len(words) < 2:
            return "user"
        return "job" if words[1] == self.job else "other"

    def obey_stop(self, submitted: float | None) -> None:
        """Remove the stop file that is there as a start begins. Raises Refusal if a user made it while the job was in
        the queue, or if it cannot be removed."""
        whose = self.whose_stop()
        try:
            made = self.stop_file.stat().st_mtime
            self.stop_file.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            why = f"{self.stop_file} would stop this job, and cannot be removed: {error.strerror}"
            raise Refusal(EXIT_UNAVAILABLE, f"{why}; move it away") from None
        fresh = submitted is not None and made > submitted + 1
        if whose == "user" and (self.requeue_count > 0 or fresh):
            said = "there is a stop file, made while the job was in the queue"
            raise Refusal(EXIT_STOPPED, f"{said}; to start it: {AGAIN}")

    def remove_stop(self) -> None:
        """Remove the stop file, which was obeyed. If that fails, say so, because the next start would find it."""
        try:
            self.stop_file.unlink(missing_ok=True)
        except OSError as error:
            say(f"{self.stop_file} cannot be removed: {error.strerror}; move it away")

    # --- the copy of the submitted bundle -----------------------------------------------------------

    @property
    def snapshot(self) -> Path:
        return self.path / f"{_SNAPSHOT}{self.number}"

    def keep_snapshot(self, bundle: Path, submitted: float | None) -> Path:
        """Copy the bundle for all starts of the job; return the path of the copy. Raises Refusal.

        Copies of other jobs are removed. Those jobs are over, because this one has taken the directory.
        """
        if self.requeue_count == 0:
            for path in self.path.glob(f"{_SNAPSHOT}*"):
                if path.resolve() != bundle.resolve():
                    _remove(path)
        if bundle.parent.name == ".submitted" or bundle == self.snapshot:
            return bundle  # nobody writes there again
        if not _is_ours(self.snapshot):
            changed = _changed_since(bundle, submitted)
            if changed:
                say(
                    f"warning: {changed} has changed since the job was submitted; it runs as it is "
                    "now, and so in later starts"
                )
            try:
                _copy(bundle, self.snapshot)
            except OSError as error:
                raise Refusal(
                    EXIT_UNAVAILABLE,
                    f"the bundle cannot be copied to {self.snapshot}: {_in_words(error)}; is the "
                    "bundle gone, the file system full, or the name taken?",
                ) from None
        return self.snapshot


def _is_ours(path: Path) -> bool:
    """Return True if a start of a job has made this copy of a bundle, or this part of a copy."""
    return (path / _MARK).is_file()


def _remove(snapshot: Path) -> None:
    if _is_ours(snapshot):
        shutil.rmtree(snapshot, ignore_errors=True)


def _copy(bundle: Path, snapshot: Path) -> None:
    part = snapshot.with_name(f"{snapshot.name}.part")
    _remove(part)
    part.mkdir()
    try:
        (part / _MARK).touch()
        shutil.copytree(bundle, part, symlinks=True, dirs_exist_ok=True)
        part.rename(snapshot)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _in_words(error: OSError) -> str:
    """Return why a copy failed. shutil.Error has a list of (source, target, reason)."""
    if not isinstance(error, shutil.Error):
        return error.strerror or str(error)
    source, _, reason = error.args[0][0]
    return f"{source}: " + re.sub(r"^\[Errno [0-9]+\] |: '.*", "", reason)


def _changed_since(bundle: Path, submitted: float | None) -> str:
    """Return a file that bundle.json lists and that has changed since the job was submitted; "" without one."""
    if submitted is None:
        return ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for name in sorted(json.loads((bundle / LISTING).read_bytes())["files"]):
            with contextlib.suppress(OSError):
                if (bundle / name).lstat().st_mtime > submitted + 1:
                    return str(name)
    return ""


def checkpoint_directory(bundle: Path, option: str, index: str) -> Path:
    """Return the checkpoint directory. A relative path starts at the bundle. Each task of an array has its own."""
    if (bundle.parent / "slurm-job").exists() and _is_ours(bundle):
        return bundle.parent  # started from the snapshot, because the bundle is gone
    # `ddpgen launch` submits a copy in build/.submitted. Its checkpoints have the same place as those of build/NAME.
    base = bundle.parent if bundle.parent.name == ".submitted" else bundle
    path = os.path.abspath(os.path.join(base, os.path.expanduser(option)))
    return Path(f"{path}-{index}" if index else path)
