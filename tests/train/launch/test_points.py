"""The points of a sweep: the command of each, and the order in which one machine trains them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from train.base.errors import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, Refusal
from train.launch import points
from train.launch.points import Training, commands, is_done, mark
from train.launch.words import Command

LISTED = {
    "local": {
        "lr=1": {"words": ["--lr=1"], "id": "a"},
        "lr=2": {"words": ["--lr=2", "--seed=3"], "id": "b"},
        "lr=3": {"words": [], "id": "c"},
    },
    "slurm": {"lr=1": {"words": ["--lr=1"], "id": "d"}},
}


def command(*options: str, arguments: Sequence[str] = ()) -> Command:
    own = ("local", "--points", "--checkpoint-dir=../ck/grid", "--store=s3://b/grid/", *options)
    return Command(own, ("torchrun",), ("run", "--steps=4"), tuple(arguments))


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bundle").mkdir()
    monkeypatch.chdir(tmp_path / "bundle")
    Path("points.json").write_text(json.dumps(LISTED))
    return tmp_path / "bundle"


def test_a_point_has_its_own_words_directory_and_store(bundle: Path) -> None:
    (point,) = commands(command("--point=lr=2", arguments=["--x"]), "local", bundle)
    assert point.options == (
        "local", "--checkpoint-dir=../ck/grid/lr=2", "--store=s3://b/grid/lr=2", "--point=lr=2", "--point-id=b",
    )  # fmt: skip
    assert point.program == ("run", "--steps=4", "--lr=2", "--seed=3")
    assert (point.launcher, point.arguments) == (("torchrun",), ("--x",))


def test_local_means_all_points_and_every_other_tier_one(bundle: Path) -> None:
    assert [c.options[-1] for c in commands(command(), "local", bundle)] == [
        "--point-id=a", "--point-id=b", "--point-id=c",
    ]  # fmt: skip
    with pytest.raises(Refusal, match="name one point by --point=NAME; the points are lr=1") as refused:  # fmt: skip
        commands(command(), "slurm", bundle)
    assert refused.value.code == EXIT_USAGE


def test_a_job_that_is_no_sweep_has_one_command_and_no_points(bundle: Path) -> None:
    plain = Command(("local",), ("torchrun",), ("run",), ())
    assert commands(plain, "local", bundle) == [plain]
    asked = Command(("local", "--point=lr=1"), ("torchrun",), ("run",), ())
    with pytest.raises(Refusal, match="this job is no sweep"):
        commands(asked, "local", bundle)


@pytest.mark.parametrize("content", ["", "[]", '{"local": {}}', '{"local": {"a": {"words": 1}}}'])
def test_a_damaged_points_json_is_refused(bundle: Path, content: str) -> None:
    Path("points.json").write_text(content)
    with pytest.raises(Refusal, match=re.escape("points.json cannot be read")):
        commands(command(), "local", bundle)


def test_an_unknown_point_is_refused_with_the_known_ones(bundle: Path) -> None:
    with pytest.raises(Refusal, match="no such point; the points are lr=1, lr=2, lr=3"):
        commands(command("--point=lr=9"), "local", bundle)


def test_done_means_this_very_training_and_no_other(tmp_path: Path) -> None:
    training = Training("a", ("--x",))
    assert not is_done(tmp_path, training)
    mark(tmp_path, training)
    assert not is_done(tmp_path, training)
    (tmp_path / "status").write_text("done 1f 4\n")
    assert is_done(tmp_path, training)
    assert not is_done(tmp_path, Training("b", ("--x",)))
    assert not is_done(tmp_path, Training("a", ()))
    (tmp_path / "status").write_text("stopped 1f 3\n")
    assert not is_done(tmp_path, training)


class Machine:
    """This machine, on which a program that becomes another one only starts it, and whose points end as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **codes: int) -> None:
        self.codes, self.trained = codes, list[str]()
        monkeypatch.setattr(os, "execv", self._become)

    def _become(self, _: str, words: Sequence[str]) -> None:
        split = "\0".join(words[4:]).split("\0--\0")
        options, launcher, program, *arguments = (tuple(s.split("\0")) for s in split)
        raise BecameError(Command(options, launcher, program, arguments[0] if arguments else ()))

    def train(self, point: Command) -> int:
        name = point.options[-2].removeprefix("--point=")
        self.trained.append(name)
        code = self.codes.get(name.replace("=", ""), 0)
        if code == 0:
            directory = Path(point.options[1].partition("=")[2])
            directory.mkdir(parents=True, exist_ok=True)
            mark(directory, Training(point.options[-1].partition("=")[2], point.arguments))
            (directory / "status").write_text("done 1f 4\n")
        return code

    def run(self, whole: Command) -> int:
        while True:
            try:
                return points.train(whole, "local", self.train)
            except BecameError as became:
                whole = became.command


class BecameError(Exception):
    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command


def test_points_are_trained_in_their_order_and_a_done_one_not_again(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(monkeypatch)
    assert machine.run(command("--point=lr=2")) == 0
    assert machine.run(command()) == 0
    assert machine.trained == ["lr=2", "lr=1", "lr=3"]
    assert "lr=2 is done" in capsys.readouterr().err
    assert machine.run(command(arguments=["--steps=9"])) == 0
    assert machine.trained[3:] == ["lr=1", "lr=2", "lr=3"]


def test_a_failed_point_is_named_at_the_end_and_the_others_are_trained(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(monkeypatch, lr1=EXIT_FAILED)
    assert machine.run(command()) == EXIT_FAILED
    assert machine.trained == ["lr=1", "lr=2", "lr=3"]
    assert "failed: lr=1;" in capsys.readouterr().err


def test_a_stopped_point_ends_the_sweep(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(monkeypatch, lr2=EXIT_STOPPED)
    assert machine.run(command()) == EXIT_STOPPED
    assert machine.trained == ["lr=1", "lr=2"]
    assert "the same command goes on with it" in capsys.readouterr().err


def test_a_preflight_checks_one_point(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.run(command("--preflight")) == 0
    assert machine.trained == ["lr=1"]
