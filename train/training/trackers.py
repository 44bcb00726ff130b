"""The rows of metrics.jsonl, sent to TensorBoard, Weights & Biases or MLflow while they are written.

Owns a process for each tracker, started by rank 0. The process follows the file, so a library that hangs, crashes
or draws random numbers affects no step. It sends only steps that the tracker lacks, so a restart sends no step twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from train.base.console import say
from train.run.bundle import PACKAGE_ROOT
from train.run.metrics import RESERVED

# How long a tracker may take for its last rows, because the machine may be about to be taken away.
FINISH_S = 10
_POLL_S = 1.0


class Points(NamedTuple):
    """Numbers of one step. `time`: seconds since 1970."""

    step: int
    time: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """The destination of the points. `last`: the last step that the destination has."""

    last: int

    def send(self, points: Sequence[Points]) -> None:
        """Send these points, which come in the order of their steps. Returns when all are sent."""

    def close(self, end: str) -> None:
        """Close the run at the destination. `end`: done, stopped or left; "" after a crash."""


Processes = list["subprocess.Popen[bytes]"]


def start(names: Sequence[str], directory: Path, run: str, step: int, log_every: int) -> Processes:
    """Start a process for each of these trackers, and return the processes. They end when this process does.

    `run`: an id that is the same at every start of a job. `step`: the step where this start begins. `log_every`: steps
    between two measurements of the speed. metrics.jsonl must exist, and must have no row of this start yet.
    """
    size = (directory / "metrics.jsonl").stat().st_size
    about = [str(directory.absolute()), run, str(step), str(size), str(log_every)]
    started: Processes = []
    for name in names:
        command = [sys.executable, "-m", __name__, name, *about]
        try:
            # A session of its own, so that Ctrl-C reaches only the training: the tracker waits for its last row.
            started += [
                subprocess.Popen(
                    command, cwd=PACKAGE_ROOT, stdin=subprocess.PIPE, start_new_session=True
                )
            ]
        except OSError as error:
            say(f"{name} cannot be started ({error.strerror}); training goes on without it", 0)
    return started


def finish(started: Processes) -> None:
    """After the last row is written, wait until the trackers have sent it, at most 2 * FINISH_S seconds each."""
    for process in started:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            # Closing the pipe is not enough, because processes that fetch batches have inherited it.
            process.stdin.write(b"\n")
            process.stdin.close()
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * FINISH_S)


def run_id(directory: Path, resumed: str) -> str:
    """Return the run id of the checkpoint (`resumed`), else an earlier start's (manifest.json), else a new one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        before = json.loads((directory / "manifest.json").read_text("utf-8")).get("tracker_run")
        resumed = resumed or str(before or "")
    return resumed or uuid4().hex


# --- the process of one tracker -------------------------------------------------------------------------


class TensorBoard:
    """A log directory, `tensorboard` in the checkpoint directory."""

    def __init__(self, run: str, name: str, manifest: Mapping[str, Any], step: int) -> None:
        protos = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._event = protos.Event
        writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self.last = step if any(Path("tensorboard").glob("*tfevents*")) else 0
        self._writer = writer("tensorboard")
        # As torch's SummaryWriter(purge_step=…) does, tell readers to drop the steps after `last`, which come again.
        start = protos.SessionLog(status=protos.SessionLog.START)
        self._writer.add_event(protos.Event(step=self.last + 1, session_log=start))

    def send(self, points: Sequence[Points]) -> None:
        for step, when, values in points:
            value = [self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            summary = self._summary(value=value)
            self._writer.add_event(self._event(wall_time=when, step=step, summary=summary))
        self._writer.flush()

    def close(self, end: str) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases. WANDB_PROJECT sets the project, and WANDB_MODE says whether the run is online."""

    def __init__(self, run: str, name: str, manifest: Mapping[str, Any], step: int) -> None:
        wandb = import_module("wandb")
        quiet = wandb.Settings(console="off")  # this process does not print the training's log
        self._run = wandb.init(
            id=run, resume="allow", name=name, config=dict(manifest["settings"]), settings=quiet
        )
        self.last = self._run.starting_step - 1  # W&B refuses earlier steps

    def send(self, points: Sequence[Points]) -> None:
        for step, _, values in points:
            self._run.log(dict(values), step=step)

    def close(self, end: str) -> None:
        self._run.summary["end"] = end or "crashed"
        self._run.finish(exit_code=0 if end else 1)


class MLflow:
    """A run of MLflow. MLFLOW_TRACKING_URI sets the server, and MLFLOW_EXPERIMENT_NAME the experiment."""

    def __init__(self, run: str, name: str, manifest: Mapping[str, Any], step: int) -> None:
        self._mlflow, self._entities = import_module("mlflow"), import_module("mlflow.entities")
        self._client = self._mlflow.MlflowClient()
        query = f"tags.`ddpgen.run` = '{run}'"
        runs = self._mlflow.search_runs(filter_string=query, max_results=1, output_format="list")
        if runs:
            self._run = self._mlflow.start_run(run_id=runs[0].info.run_id).info.run_id
            self.last = int(runs[0].data.tags.get("ddpgen.step", 0))
            return
        self._run = self._mlflow.start_run(run_name=name, tags={"ddpgen.run": run}).info.run_id
        self._mlflow.log_params({k: str(v)[:500] for k, v in manifest["settings"].items()})
        self.last = 0

    def send(self, points: Sequence[Points]) -> None:
        metrics = [
            self._entities.Metric(key, value, int(when * 1000), step)
            for step, when, values in points
            for key, value in values.items()
        ]
        for first in range(0, len(metrics), 1000):  # the most that a request may have
            chunk = metrics[first : first + 1000]
            # Store the last step in the same request: MLflow would keep a point twice if it were sent twice.
            last = self._entities.RunTag("ddpgen.step", str(chunk[-1].step))
            self._client.log_batch(self._run, chunk, tags=[last])

    def close(self, end: str) -> None:
        status = {"done": "FINISHED", "stopped": "KILLED", "left": "RUNNING"}
        self._mlflow.end_run(status.get(end, "FAILED"))


_TRACKERS: dict[str, Callable[[str, str, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def points(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row that are worth a curve, by name."""
    kind = row["kind"]
    if kind == "step":
        return {f"train/{name}": float(row[name]) for name in ("loss", "lr")}
    if kind == "eval":
        return {
            f"eval/{name}": float(value)
            for name, value in row.items()
            if name not in RESERVED and not isinstance(value, list)
        }
    if kind == "ranks":
        waiting = row["waiting"]
        return {
            "ranks/step_seconds": row["seconds"],
            "ranks/waiting_mean": sum(waiting) / len(waiting),
            "ranks/waiting_max": max(waiting),
        }
    return {}


class Follower:
    """Reads the rows of this start, and the rows of earlier starts that count and that the tracker lacks."""

    def __init__(
        self, tracker: Tracker, manifest: Mapping[str, Any], step: int, size: int, log_every: int
    ) -> None:
        self._tracker, self._step, self._size, self._log_every = tracker, step, size, log_every
        self._unit, self._units = manifest["unit"], manifest["units_per_step"]
        self._file = open("metrics.jsonl", "rb")  # noqa: SIM115 (for as long as the process lives)
        self._unfinished_line = b""
        self._before: tuple[int, float] | None = None
        self.end = ""

    def send(self) -> None:
        """Send the new rows. Raises any error of the tracker."""
        begin = self._file.tell() - len(self._unfinished_line)
        *lines, self._unfinished_line = (self._unfinished_line + self._file.read()).split(b"\n")
        rows: dict[tuple[str, int], dict[str, Any]] = {}  # the last row of a step counts
        for line in lines:
            is_of_this_start, begin = begin >= self._size, begin + len(line) + 1
            with contextlib.suppress(ValueError):  # a line that a crash cut off
                row = json.loads(line)
                if is_of_this_start or row["step"] <= self._step:
                    rows[row["kind"], row["step"]] = row
                if is_of_this_start and row["kind"] in ("done", "stopped", "left"):
                    self.end = row["kind"]
        new = list(self._points(sorted(rows.values(), key=lambda row: int(row["step"]))))
        if new:
            self._tracker.send(new)

    def _points(self, rows: Sequence[dict[str, Any]]) -> Iterator[Points]:
        for row in rows:
            values = points(row)
            if row["kind"] == "start":
                self._before = None
            elif row["kind"] == "step" and row["step"] % self._log_every == 0:
                values |= self._speed(row["step"], row["time"])
            if values and row["step"] > self._tracker.last:
                yield Points(row["step"], row["time"], values)

    def _speed(self, step: int, time: float) -> dict[str, float]:
        before, self._before = self._before, (step, time)
        if before is None or time <= before[1]:
            return {}
        speed = (step - before[0]) * self._units / (time - before[1])
        return {f"train/{self._unit}_per_second": speed}


def main(name: str, directory: str, run: str, *numbers: str) -> None:
    """Follow the rows until the training is over."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ended = threading.Event()
    threading.Thread(target=_end, args=(name, ended), daemon=True).start()
    step, size, log_every = map(int, numbers)
    os.chdir(directory)
    try:
        manifest = json.loads(Path("manifest.json").read_bytes())
        tracker = _TRACKERS[name](run, Path(directory).name, manifest, step)
        follower = Follower(tracker, manifest, step, size, log_every)
        over = False
        while not over:
            over = ended.wait(_POLL_S)
            follower.send()
        tracker.close(follower.end)
    except ModuleNotFoundError as error:
        say(
            f"train.trackers names {name}, but {sys.executable} has no module {error.name}: "
            f"pip install {name}; training goes on without it",
            0,
        )
    except Exception as error:  # noqa: BLE001 - an error of the library, reported once
        say(f"{name} failed with {type(error).__name__}: {error}; training goes on without it", 0)


def _end(name: str, ended: threading.Event) -> None:
    """Wait until the training has said that it is over, or has died. Then end this process within FINISH_S seconds."""
    os.read(0, 1)  # not through sys.stdin, because its lock would hold up the exit
    ended.set()
    time.sleep(FINISH_S)
    say(f"{name} has not taken the last rows within {FINISH_S} s; they may be missing there", 0)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
