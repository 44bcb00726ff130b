"""The sections of the supervisor's command line, and what its words become."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace

import pytest

from train.launch.words import Command, displayed, fill, split, workers

NAMES = (
    "nodes head port address node_rank first_rank world_size launch is_head checkpoint_dir store"
)
VALUES = {name: f"<{name}>" for name in NAMES.split()}


def command(*program: str, launcher: tuple[str, ...] = ("torchrun", "--x")) -> Command:
    return Command(("local",), launcher, program, ())


def test_the_first_three_dashes_divide_and_later_ones_are_the_users() -> None:
    found = split(["local", "--job=j", "--", "torchrun", "--", "run", "--steps=1", "--", "a", "--"])
    assert found == Command(("local", "--job=j"), ("torchrun",), ("run", "--steps=1"), ("a", "--"))


@pytest.mark.parametrize(
    "argv", [[], ["local"], ["local", "--", "torchrun"], ["local", "--", "--", "run"]]
)
def test_a_missing_section_is_told(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="usage: supervise TIER"):
        split(argv)


def test_only_the_names_that_are_known_are_placeholders() -> None:
    text = "".join(f"{{{name}}}" for name in VALUES)
    assert fill(text, VALUES) == "".join(VALUES.values())
    for other in ("{", "{}", "{x}", "{ port }", "{port", "${PORT}", "{Port}", '{"a": 1}'):
        assert fill(other, VALUES) == other
    assert fill("{port}", {}) == "{port}"


def test_torchrun_hands_the_programs_words_on_as_they_are() -> None:
    got = workers(command("run", "--arg=a=$$5 {port}", "--log={port}"), VALUES)
    own = ["-m", "torch.distributed.run", "--x", "-m", "--", "train"]
    assert got == [sys.executable, *own, "run", "--arg=a=$$$$5 {port}", "--log=<port>"]


def test_a_workloads_name_may_look_like_a_placeholder() -> None:
    assert (
        workers(command("run", "--workload=m{port}.py:f"), VALUES)[-1] == "--workload=m{port}.py:f"
    )


def test_in_the_words_of_a_script_a_few_names_are_filled_in() -> None:
    values = {**VALUES, "job": "<job>", "--": "--", "store": ""}
    words = ("--x={port}", "{job}/{checkpoint_dir}", "{{job}} {jobs} ${job}", "{--}")
    got = workers(command("script", "code/a.py", *words), values)
    assert got[-4:] == ["--x={master-port}", "<job>/<checkpoint_dir>", "{job} {jobs} $${job}", "--"]
    # Where machines go away, what it keeps is in the bucket.
    in_bucket = workers(command("script", "a.py", "{checkpoint_dir}"), {**values, "store": "/b"})
    assert in_bucket[-1] == "/b"
    # What is typed behind the launch script's name stays as it is.
    typed = replace(command("script", "code/a.py"), arguments=("{job}", "--", "x"))
    assert workers(typed, values)[-3:] == ["{job}", "--", "x"]


def test_the_newest_checkpoint_is_for_the_words_with_which_a_script_goes_on() -> None:
    values = {**VALUES, "job": "<job>", "--": "--", "store": ""}
    words = ("--resume-arg={job}/{newest}", "--resume-arg={{newest}}", "a.py", "{newest}")
    got = workers(command("script", *words), values)
    asked = ["--resume-arg=<job>/{newest-checkpoint}", "--resume-arg={newest}"]
    assert got[-4:] == [*asked, "a.py", "{newest}"]


def test_spawn_takes_the_words_as_they_are() -> None:
    launcher = ("spawn", "--procs=2", "--first-rank={first_rank}")
    got = workers(command("run", "--arg=a=$$5", launcher=launcher), VALUES)
    own = ["-m", "train", "spawn", "--procs=2", "--first-rank=<first_rank>", "--"]
    assert got == [sys.executable, *own, sys.executable, "-m", "train", "run", "--arg=a=$$5"]


def test_another_launcher_is_refused() -> None:
    with pytest.raises(ValueError, match="torchrun or spawn, not 'mpirun'"):
        workers(command("run", launcher=("mpirun",)), VALUES)


def test_a_command_that_is_shown_can_be_typed() -> None:
    words = ["python", *(f"--option-{i}=it's {i}" for i in range(20)), "new\nline"]
    text = displayed(words)
    assert shlex.split(text.replace(" \\\n", " ")) == words
    assert max(map(len, text.splitlines())) <= 112
