"""progress.json: what it says after which rows, when it is written, and what it takes over from an earlier start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.run.metrics import MetricsLog
from train.run.progress import NAME, ProgressFile


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def row(kind: str, step: int, when: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "attempt": "a", "generation": 1, "time": when, **more}


def read(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / NAME).read_text())
    return found


def test_it_says_how_the_run_stands(tmp_path: Path) -> None:
    file = ProgressFile(
        tmp_path, {"last_step": 40, "unit": "tokens"}, clock=iter(range(0, 999, 9)).__next__
    )
    file.add_row(row("start", 0, 1.0))
    assert read(tmp_path) == {"attempt": "a", "last_step": 40, "unit": "tokens"}
    for step in range(1, 5):
        file.add_row(row("step", step, 10.0 + 2 * step, loss=step / 2))
    file.add_row(
        row("ranks", 4, 18.5, seconds=0.5, waiting=[0.1, 0.6], batches=[0.0, 0.05], shares=[4, 4])
    )
    file.add_row(row("shares", 4, 18.5, shares=[5, 3]))
    file.add_row(row("eval", 4, 25.0, loss=0.25, f1="nan", confusion=[[1, 2], [3, 4]]))
    assert read(tmp_path) == {
        "attempt": "a", "last_step": 40, "unit": "tokens", "step": 4, "time": 18.0, "loss": 2.0,
        "losses": [0.5, 1.0, 1.5, 2.0], "steps_per_s": 0.5, "step_s": 2.0, "longest_step_s": 7.0,
        "waiting": [0.2, 1.0], "batches": 0.1, "shares": [5, 3], "evaluation": {"step": 4, "loss": 0.25},
    }  # fmt: skip
    file.add_row(row("stopped", 4, 37.5))
    assert read(tmp_path)["write_s"] == 12.5


def test_steps_are_written_once_a_second_and_an_end_at_once(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path, clock=clock)
    written = []
    for step in range(1, 31):
        clock.now += 0.125
        file.add_row(row("step", step, clock.now))
        written.append(read(tmp_path)["step"])
    assert sorted({*written}) == [1, 9, 17, 25]
    file.add_row(row("done", 30, clock.now))
    assert read(tmp_path)["step"] == 30


@pytest.mark.parametrize(("begins", "known"), [(4, True), (5, True), (3, False)])
def test_a_start_takes_over_what_it_has_not_measured_itself(
    tmp_path: Path, begins: int, known: bool
) -> None:
    first = ProgressFile(tmp_path)
    for each in (
        row("step", 3, 1.0, loss=9.0),
        row("step", 4, 3.0, loss=8.0),
        row("eval", 4, 4.0, loss=7.0),
    ):
        first.add_row(each)
    first.add_row(row("stopped", 4, 9.0))
    later = ProgressFile(tmp_path, {"last_step": 40})
    later.add_row({**row("start", begins, 20.0), "attempt": "b"})
    told = read(tmp_path)
    assert ("evaluation" in told) == known
    assert (told["attempt"], told["step"], told["write_s"], told["longest_step_s"]) == (
        "b", begins, 5.0, 2.0,
    )  # fmt: skip
    same_step = {"loss": 8.0, "losses": [9.0, 8.0]} if begins == 4 else {}
    assert {name: told[name] for name in ("loss", "losses") if name in told} == same_step
    assert not {"time", "steps_per_s"} & told.keys()


@pytest.mark.parametrize(
    "spoilt", [b"", b"{", b"[]", b"\xff", b'{"evaluation": 7}', b'{"evaluation": {"step": "x"}}']
)
def test_what_cannot_be_read_is_not_taken_over(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / NAME).write_bytes(spoilt)
    ProgressFile(tmp_path).add_row(row("start", 0, 1.0))
    assert read(tmp_path) == {"attempt": "a"}


def test_a_disk_that_takes_nothing_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(row("step", 1, 1.0, loss=float("nan")))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == "nan"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
