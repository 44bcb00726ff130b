"""The driver of a sweep: one point after the other, over a fake ssh with real bash and real rsync."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ddpgen.driver.conftest import Stage

Make = Callable[..., Stage]
POINTS = {"lr=1": "a", "lr=2": "b", "lr=3": "c"}


def directory(pair: Stage, host: str, point: str) -> Path:
    return pair.home(host) / "ddpgen/checkpoints/pair" / point


def is_done(pair: Stage, host: str, point: str, **training: object) -> None:
    """The host has recorded that this training of the point is done."""
    place = directory(pair, host, point)
    place.mkdir(parents=True)
    (place / "status").write_text("done 1f 7\n")
    content = {"arguments": [], "id": POINTS[point], **training}
    (place / "point.json").write_text(json.dumps(content))


def started(output: str) -> list[str]:
    """The points whose start the driver has announced."""
    heads = {f"ddpgen: {point}:": point for point in POINTS}
    return [heads[line] for line in output.splitlines() if line in heads]


@pytest.mark.slow
def test_each_point_is_trained_and_the_hosts_are_told_which(stage: Make) -> None:
    pair = stage(points=POINTS)
    code, output = pair.play("--steps=5")
    assert code == 0, output
    assert started(output) == [*POINTS]
    for host in ("desk", "lap"):
        assert len((pair.home(host) / "launches").read_text().splitlines()) == 3
        given = (pair.home(host) / "arguments").read_bytes().split(b"\0")
        assert given[1:] == [b"--point=lr=3", b"--steps=5", b""]


@pytest.mark.slow
def test_a_point_that_is_done_on_a_host_is_not_started_again(stage: Make) -> None:
    pair = stage(points=POINTS)
    is_done(pair, "lap", "lr=1")
    is_done(pair, "desk", "lr=2", id="of other settings")
    is_done(pair, "desk", "lr=3", arguments=["--steps=9"])
    code, output = pair.play()
    assert code == 0, output
    assert "ddpgen: lr=1 is done" in output
    assert started(output) == ["lr=2", "lr=3"]


@pytest.mark.slow
def test_a_failed_point_is_named_at_the_end_and_a_stopped_one_ends_the_sweep(stage: Make) -> None:
    pair = stage(points=POINTS)
    pair.part("desk", "fail", "done")
    pair.part("lap", "lonely", "done")
    code, output = pair.play()
    assert code == 1, output
    assert started(output) == [*POINTS]
    assert "ddpgen: failed: lr=1;" in output
    pair.part("desk", "busy")
    code, output = pair.play()
    assert (code, started(output)) == (69, ["lr=1"]), output


@pytest.mark.parametrize(("words", "points"), [(["--point=lr=2"], ["lr=2"]), (["--point=lr=3", "--point=lr=1"], ["lr=3", "lr=1"])])  # fmt: skip
def test_points_are_chosen_in_front_of_all_else(
    stage: Make, words: list[str], points: list[str]
) -> None:
    pair = stage(points=POINTS)
    code, output = pair.play(*words, "--stop")
    assert (code, started(output)) == (0, points), output
    code, output = pair.play("--point=lr=9")
    assert code == 2
    assert "there is no point lr=9; the points are lr=1, lr=2, lr=3" in output


def test_a_stop_is_asked_for_in_the_directory_of_the_point(stage: Make) -> None:
    pair = stage(points=POINTS)
    place = directory(pair, "lap", "lr=2")
    place.mkdir(parents=True)
    assert pair.play("--stop")[0] == 0
    assert (place / "stop").exists()


@pytest.mark.slow
def test_a_preflight_of_a_point_puts_no_fault_on_file(stage: Make) -> None:
    pair = stage(points=POINTS)
    pair.part("desk", "gpu")
    pair.part("lap", "gpu")
    code, output = pair.play("--preflight")
    assert (code, started(output)) == (69, ["lr=1"]), output
    assert not (pair.logs / "bad-nodes").exists()
    assert pair.play()[0] == 69
    assert (pair.logs / "bad-nodes").exists()
