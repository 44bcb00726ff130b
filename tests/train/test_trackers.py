"""What trackers are sent: every step once, over kills and resumes, and no harm to the training."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.train import workers
from train.training import trackers
from train.training.trackers import Follower, Points

PARTS = Path(__file__).with_name("own_parts.py")
ABOUT = {"unit": "samples", "units_per_step": 12, "settings": {"lr": 0.1}}


def row(kind: str, step: int, **values: Any) -> str:
    head = {"kind": kind, "step": step, "attempt": "a", "generation": 1, "time": 100.0 + step}
    return json.dumps({**head, **values}) + "\n"


def steps(first: int, last: int, lr: float = 0.1) -> str:
    return "".join(
        row("step", n, loss=1 / n, lr=lr, samples=[0, 1]) for n in range(first, last + 1)
    )


def write(text: str) -> int:
    with open("metrics.jsonl", "a") as file:
        file.write(text)
    return Path("metrics.jsonl").stat().st_size


class Sink:
    """A tracker that has everything up to `last`."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.points = last, list[Points]()

    def send(self, points: Any) -> None:
        self.points += points

    def close(self, end: str) -> None:
        """Nothing to do."""


@pytest.fixture(autouse=True)
def _in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def follow(sink: Sink, step: int, size: int, every: int = 5) -> Follower:
    follower = Follower(sink, ABOUT, step, size, every)
    follower.send()
    return follower


def test_a_tracker_is_sent_what_counts_and_what_it_lacks() -> None:
    size = write(row("start", 0) + steps(1, 7) + row("eval", 7, loss=0.5))
    write(row("start", 5) + steps(6, 6, lr=0.2))
    sink = Sink(last=2)
    follower = follow(sink, step=5, size=size)
    assert [point.step for point in sink.points] == [3, 4, 5, 6]
    assert sink.points[-1].values == {"train/loss": 1 / 6, "train/lr": 0.2}
    write(row("eval", 6, loss=0.5, f1="nan", matrix=[[1]]) + row("done", 6)[:9])
    follower.send()
    assert sink.points[-1].values == {
        "eval/loss": 0.5,
        "eval/f1": pytest.approx(float("nan"), nan_ok=True),
    }
    assert follower.end == ""
    write(row("done", 6)[9:])
    follower.send()
    assert (len(sink.points), follower.end) == (5, "done")


def test_a_line_that_a_crash_cut_off_is_passed_over() -> None:
    size = write(steps(1, 2)[:-9])
    write("\n" + steps(2, 3))
    sink = Sink()
    follow(sink, step=1, size=size)
    assert [point.step for point in sink.points] == [1, 2, 3]


def test_speed_and_waiting_are_curves() -> None:
    write(
        row("start", 0)
        + steps(1, 10)
        + row("ranks", 10, seconds=0.4, waiting=[0.1, 0.3], batches=[0, 0])
    )
    sink = Sink()
    follow(sink, step=0, size=0)
    assert sink.points[9].values["train/samples_per_second"] == 12
    assert sink.points[10].values == {
        "ranks/step_seconds": 0.4,
        "ranks/waiting_mean": 0.2,
        "ranks/waiting_max": 0.3,
    }


def read_events(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve as TensorBoard shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    return {
        tag: [(point.step, point.value) for point in log.Scalars(tag)]
        for tag in log.Tags()["scalars"]
    }


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_has_each_step_once_in_tensorboard(tmp_path: Path) -> None:
    args = ("--tracker=tensorboard", "--checkpoint-every=2 steps", "--log-every=1")
    args += (f"--arg=killed={json.dumps(str(tmp_path / 'killed'))}",)
    run = workers.run(tmp_path, f"{PARTS}:augmented", 2, *args)
    assert run.codes != [0, 0]
    run = workers.run(tmp_path, f"{PARTS}:augmented", 2, *args)
    assert run.codes == [0, 0], run.output
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    curves = read_events(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    loss = {each["step"]: each["loss"] for each in rows if each["kind"] == "step"}
    assert curves["train/loss"] == [(step, pytest.approx(loss[step])) for step in range(1, 7)]
    assert [step for step, _ in curves["ranks/waiting_max"]] == [2, 4, 5, 6]  # none in a first step


def test_a_missing_library_and_one_that_fails_cost_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "mlflow.py").write_text("raise ConnectionError('no route')\n")
    monkeypatch.setenv("PYTHONPATH", str(fakes))
    run = workers.run(tmp_path / "a", f"{PARTS}:no_split", 1, "--tracker=wandb", "--tracker=mlflow")
    assert run.codes == [0]
    assert f"{sys.executable} has no module wandb: pip install wandb" in run.output
    assert "mlflow failed with ConnectionError: no route; " in run.output


def test_a_start_goes_on_with_the_run_of_its_checkpoint(tmp_path: Path) -> None:
    new = trackers.run_id(tmp_path, "")
    assert new != trackers.run_id(tmp_path, "")
    assert trackers.run_id(tmp_path, "resumed") == "resumed"
    (tmp_path / "manifest.json").write_text(json.dumps({"tracker_run": new}))
    assert trackers.run_id(tmp_path, "") == new


class FakeRun:
    """wandb.Run as of wandb 0.31: what is used of it."""

    def __init__(self, starting_step: int) -> None:
        self.starting_step, self.summary = starting_step, dict[str, object]()
        self.logged = list[tuple[int | None, dict[str, float]]]()
        self.exit_code: int | None = None

    def log(self, data: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, data))

    def finish(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code


@pytest.mark.parametrize(("end", "said", "code"), [("stopped", "stopped", 0), ("", "crashed", 1)])
def test_wandb_goes_on_after_what_its_server_has(
    monkeypatch: pytest.MonkeyPatch, end: str, said: str, code: int
) -> None:
    run, asked = FakeRun(starting_step=8), dict[str, object]()
    fake: Any = ModuleType("wandb")
    fake.Settings = lambda console: console
    fake.init = lambda **options: asked.update(options) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = trackers.WandB("abc", "gpt", ABOUT, 5)
    assert asked == {
        "id": "abc",
        "resume": "allow",
        "name": "gpt",
        "config": {"lr": 0.1},
        "settings": "off",
    }
    write(row("start", 5) + steps(6, 9))  # 6 and 7 were sent before the crash
    Follower(tracker, ABOUT, 5, 0, 5).send()
    tracker.close(end)
    assert [step for step, _ in run.logged] == [8, 9]
    assert (run.summary, run.exit_code) == ({"end": said}, code)


class FakeMLflow(ModuleType):
    """mlflow 3: what is used of it, with a server that keeps all points."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.info = SimpleNamespace(run_id="from the server")
        self.tags, self.params = dict[str, str](), dict[str, str]()
        self.metrics = list[tuple[str, float, int, int]]()
        self.status = "none"

    def search_runs(self, filter_string: str, max_results: int, output_format: str) -> list[Any]:
        assert filter_string == "tags.`ddpgen.run` = 'abc'"
        return [SimpleNamespace(info=self.info, data=self)] if self.tags else []

    def start_run(self, run_id: str = "", run_name: str = "", tags: Any = ()) -> Any:
        assert (run_id == self.info.run_id) == bool(self.tags)
        self.tags.update(tags)
        self.status = "RUNNING"
        return SimpleNamespace(info=self.info)

    def log_params(self, params: dict[str, str]) -> None:
        assert not self.params  # the server refuses another value
        self.params = params

    def MlflowClient(self) -> FakeMLflow:  # noqa: N802
        return self

    def log_batch(self, run_id: str, metrics: Any, tags: Any) -> None:
        assert run_id == self.info.run_id
        assert len(metrics) <= 1000
        self.metrics += metrics
        self.tags.update(tags)

    def end_run(self, status: str) -> None:
        self.status = status


def test_mlflow_keeps_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entities = FakeMLflow(), ModuleType("mlflow.entities")
    entities.Metric = namedtuple("Metric", "key value timestamp step")  # type: ignore[attr-defined]
    entities.RunTag = lambda *of: of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    size = write(row("start", 0) + steps(1, 700))
    tracker: Any = trackers.MLflow("abc", "gpt", ABOUT, 0)
    Follower(tracker, ABOUT, 0, 0, 1000).send()
    tracker.close("")
    assert (fake.status, fake.params, fake.tags["ddpgen.step"]) == ("FAILED", {"lr": "0.1"}, "700")
    write(row("start", 690) + steps(691, 710) + row("done", 710))
    tracker = trackers.MLflow("abc", "gpt", ABOUT, 690)
    assert fake.status == "RUNNING"
    Follower(tracker, ABOUT, 690, size, 1000).send()
    tracker.close("done")
    assert fake.status == "FINISHED"
    losses = [step for name, _, _, step in fake.metrics if name == "train/loss"]
    assert losses == list(range(1, 711))
    assert fake.metrics[0] == ("train/loss", 1.0, 101_000, 1)


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the training over, or dead: the process knows by its standard input."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "wandb.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(fakes))
    write("")
    Path("manifest.json").write_text(json.dumps(ABOUT))
    started = trackers.start(["wandb"], tmp_path, "abc", 0, 10)
    trackers.finish(started)
    assert started[0].returncode == 1


def test_a_tracker_finds_the_training_module_whatever_the_working_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(trackers.subprocess, "Popen", lambda *_, cwd, **__: started.append(cwd))
    (tmp_path / "metrics.jsonl").touch()
    trackers.start(["tensorboard"], tmp_path, "run", 0, 1)
    (place,) = started
    assert (place / "train" / "__main__.py").is_file()
