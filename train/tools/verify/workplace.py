"""The place of a replay: the run's own bundle unpacked, a copy of the checkpoint to begin from, the processes.

Owns the directory and its removal. Owns the launch, which is the tier `local`'s, with the bundle's own training module.
The run's directory is only read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.base.errors import EXIT_STOPPED, EXIT_USAGE, Refusal, TrainError
from train.base.files import read_file
from train.base.processes import die_with_parent
from train.run import bundle
from train.run.layout import MARKER, MOST_MARKER_BYTES, step_directory
from train.run.provenance import MANIFEST, Start
from train.run.status import read_status

LOCK = "environment.lock"
BUNDLE, CHECKPOINTS = "bundle", "checkpoints"
_TAIL_LINES = 20  # how many lines of a failed replay to show
_PINNED = ("OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG")


@contextlib.contextmanager
def workplace(directory: Path, keep_in: Path | None) -> Iterator[Path]:
    """Make and yield a directory next to the checkpoint directory, and remove it at the end.

    If that cannot be written, use the directory for temporary files. `keep_in`: use this directory instead, and keep it.
    Raises Refusal when `keep_in` is in use, and OSError.
    """
    if keep_in is not None:
        if keep_in.exists() and any(path.name != BUNDLE for path in keep_in.iterdir()):
            raise Refusal(
                EXIT_USAGE, f"{keep_in} is not empty; name a directory that is not there yet"
            )
        keep_in.mkdir(parents=True, exist_ok=True)
        try:
            yield keep_in
        finally:
            with contextlib.suppress(OSError):
                keep_in.rmdir()  # only if it is still empty
        return
    prefix = f".{directory.name}.verify-"
    try:  # the run's disk usually has more room than the one for temporary files
        place = tempfile.mkdtemp(prefix=prefix, dir=directory.parent)
    except OSError:
        place = tempfile.mkdtemp(prefix=prefix)
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def unpack(directory: Path, start: Start, parent: Path) -> Path:
    """Unpack the bundle of `start` in `parent`, and return its path. Raises Refusal when something else is there,
    TrainError, OSError."""
    target = parent / BUNDLE
    if not start["bundle"]:
        raise TrainError(
            f"the start of {directory} at step {start['from_step']} did not come from a bundle, so its code is not kept; "
            "start the job by ddpgen launch, and a later start can be replayed"
        )
    if target.exists() and bundle.name_of(target) != start["bundle"]:
        raise Refusal(
            EXIT_USAGE, f"{target} is something else; name a directory that is not there yet"
        )
    bundle.unpack(directory, start["bundle"], target)
    return target


class Replay:
    """The steps of one part of a run, computed again below `parent` by `procs` processes."""

    def __init__(
        self, directory: Path, parent: Path, start: Start, on_gpu: bool, procs: int
    ) -> None:
        """Unpack the bundle of `start`. Raises TrainError, OSError."""
        check_workload(start["argv"])
        self._run, self._start, self._procs = directory, start, procs
        self._bundle = unpack(directory, start, parent)
        self.directory = parent / CHECKPOINTS / directory.name
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._backend = "auto" if on_gpu else "gloo"

    def begin_at(self, step: int) -> None:
        """Begin with a copy of the run's checkpoint of `step`; the original is only read. Raises OSError."""
        copy_checkpoint(step_directory(self._run, step), step, step_directory(self.directory, step))

    def run(
        self, points: Sequence[int], flags: Mapping[str, str], on_line: Callable[[str], None]
    ) -> None:
        """Compute up to the last of `points`, with a checkpoint at each. `flags`: the run's environment variables for
        libraries. Raises TrainError."""
        argv, environment = self._command(points), self._environment(flags)
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        with subprocess.Popen(
            argv,
            cwd=self._bundle,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - a call of the kernel
        ) as child:
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    tail.append(line.rstrip())
                    on_line(tail[-1])
                code = child.wait()
            except BaseException:
                for signum in (signal.SIGTERM, signal.SIGINT):  # the second one kills
                    child.send_signal(signum)
                child.wait()
                raise
        if code in (0, EXIT_STOPPED) and all(
            (step_directory(self.directory, step) / MARKER).exists() for step in points
        ):
            return
        status = read_status(self.directory)
        why = "; it said:\n  " + "\n  ".join(tail)
        if status is not None and status.reason:
            why = f": {status.reason}"
        raise TrainError(f"the replay did not reach step {points[-1]}{why}")

    def _command(self, points: Sequence[int]) -> Sequence[str]:
        """Return the command: the launch of the tier `local`, then the run's own arguments."""
        kept = ",".join(name for name in _PINNED if name in self._own_variables())
        supervise = [
            "supervise", "local", "--job=replay", f"--checkpoint-dir={self.directory}", "--no-preflight",
            f"--procs={self._procs}", f"--threads={self._start['settings'].get('threads', 1)}", f"--keep={kept}",
        ]  # fmt: skip
        if (self._bundle / LOCK).exists():
            supervise.append(f"--lock={LOCK}")
        launcher = [
            "torchrun", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={self._procs}",
            "--max-restarts=0", "--monitor-interval=0.1", f"--log-dir={self.directory / 'torchrun'}",
        ]  # fmt: skip
        steps = ",".join(map(str, points))
        replay = [str(self.directory), steps, self._backend, *self._start["argv"]]
        if self._start["settings"]["reduction"] == "allreduce":  # each rank had its own weight
            replay.append(f"--shares={','.join(map(str, self._start['shares']))}")
        command = [*supervise, "--", *launcher, "--", "replay", "--", *replay]
        return [sys.executable, "-m", "train", *command]

    def _environment(self, flags: Mapping[str, str]) -> dict[str, str]:
        foreign = ("DDPGEN_", "TORCHELASTIC_")
        here = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        here.pop("PYTHONSAFEPATH", None)  # it hides the bundle's own train/
        return {**here, **self._own_variables(), **flags}

    def _own_variables(self) -> dict[str, str]:
        """Return the environment variables that the spec sets."""
        listing: Any = json.loads((self._bundle / bundle.LISTING).read_text("utf-8"))
        spec = listing.get("spec", {}).get(self._start["tier"], {})
        return {str(name): str(value) for name, value in spec.get("env", {}).items()}


def check_workload(argv: Sequence[str]) -> None:
    """Raise TrainError when these arguments of a run name a file that is not in its bundle.

    The manifest may come from a stranger. With this check, a user who has read the bundle has read all code that runs.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--workload", nargs="?")
    workload = parser.parse_known_args(argv)[0].workload or ""
    path = os.path.normpath(workload.rpartition(":")[0])
    if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
        raise TrainError(
            f"{MANIFEST} names the workload {workload}, which lies outside of the bundle, and a replay runs the code of the "
            f"bundle only; get {MANIFEST} once more from where the run was made"
        )


def copy_checkpoint(checkpoint: Path, step: int, target: Path) -> None:
    """Copy the files that the checkpoint of `step` lists, and no other file or link in its directory.

    Raises OSError, BadCheckpointError.
    """
    from train.checkpoint.disk import parse_marker

    _, listed = parse_marker(read_file(checkpoint / MARKER, MOST_MARKER_BYTES), step)
    target.mkdir()
    for name in (*listed, MARKER):
        shutil.copyfile(checkpoint / name, target / name)


def processes_that_fit(
    settings: Mapping[str, Any], world_size: int, requested: int | None, gpus: int = 0
) -> int:
    """Return how many processes compute the replay: `requested`, else as many as fit this host. Raises Refusal.

    `gpus`: how many there are for the replay, 0 if it runs on CPUs.
    """
    most = int(settings["global_batch_size"]) // int(settings["micro_batch_size"])
    if requested is not None:
        if not 1 <= requested <= most:
            raise Refusal(
                EXIT_USAGE, f"--procs={requested}: a step has {most} micro-batches, so 1 to {most}"
            )
        return requested
    if settings["reduction"] != "tree":
        return world_size
    has_list = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_list else os.cpu_count() or 1
    return max(1, min(most, gpus or cpus // int(settings["threads"])))
