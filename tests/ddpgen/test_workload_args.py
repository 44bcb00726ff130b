"""`train.args` of a built-in workload: refused before anything starts, as the workload would."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ddpgen.resources import resource
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.reader import read
from ddpgen.spec.rules import Conflict
from ddpgen.spec.workload_args import ARGUMENTS, workload_arguments

SPEC = b"""\
name: a
code: .
train: {workload: gpt, steps: 10, global_batch_size: 16, micro_batch_size: 4}
"""
JOB = read(SPEC, "job.yaml")["local"].job


def found(workload: str, args: dict[str, Any]) -> list[Conflict]:
    job = replace(JOB, train=replace(JOB.train, workload=workload, args=args))
    return list(workload_arguments(job))


def test_a_name_it_does_not_know() -> None:
    assert found("gpt", {"dept": 4, "width": 128}) == [
        Conflict(
            ("train.args.dept", "train.args"),
            "is unknown to workload gpt",
            "did you mean depth?",
        )
    ]
    (conflict,) = found("toy", {"zzz": 1})
    assert conflict.remedy == did_you_mean("zzz", tuple(ARGUMENTS["toy"]))


@pytest.mark.parametrize(
    ("workload", "name", "value", "what"),
    [
        ("gpt", "depth", 0, "is 0, but must be a whole number of at least 1"),
        ("gpt", "depth", True, "is true, but must be a whole number of at least 1"),
        ("gpt", "depth", "4", 'is "4", but must be a whole number of at least 1'),
        ("gpt", "depth", None, "is null, but must be a whole number of at least 1"),
        ("toy", "classes", 1, "is 1, but must be a whole number of at least 2"),
        ("gpt", "dropout", 1.0, "is 1.0, but must be at least 0 and below 1"),
        ("gpt", "dropout", float("nan"), "is nan, but must be at least 0 and below 1"),
        ("mnist", "download_timeout", 0, "is 0, but must be a number above 0"),
        ("mnist", "batch_norm", 1, "is 1, but must be true or false"),
        ("gpt", "text", "", 'is "", but must be a string that is not empty'),
    ],
)
def test_a_value_of_another_kind(workload: str, name: str, value: Any, what: str) -> None:
    (conflict,) = found(workload, {name: value})
    assert (conflict.about, conflict.what) == ((f"train.args.{name}",), what)


def test_what_it_takes() -> None:
    assert not found("gpt", {"depth": 2, "dropout": 0, "text": None, "tie_weights": False})
    assert not found("mnist", {"sha256": None, "download_timeout": 1.5, "data_dir": "~/x"})


def test_a_workload_of_ones_own_may_take_anything() -> None:
    assert not found("model.py:build", {"dept": 4})
    job = replace(JOB, train=replace(JOB.train, workload=None, script="a.py", args={"dept": 4}))
    assert not list(workload_arguments(job))


@pytest.mark.parametrize("workload", ARGUMENTS)
def test_the_table_is_what_the_workload_declares(workload: str) -> None:
    source = (resource("train") / "workloads" / f"{workload}.py").read_text()
    checks = dict(declared_checks(source))
    table = {
        name: (kind.name, kind.wanted) for name, kind in ARGUMENTS[workload].items() if kind.wanted
    }
    assert list(ARGUMENTS[workload]) == declared_names(source)
    assert table == checks


def declared_names(source: str) -> list[str]:
    (build,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "build"
    )
    return [argument.arg for argument in build.args.kwonlyargs]


def declared_checks(source: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Argument → (check, what it wants), from the calls of train.workloads.arguments."""
    wanted = {"flag": "true or false", "text": "a string that is not empty"}
    wanted["probability"] = "at least 0 and below 1"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("arguments."):
            check = ast.unparse(node.func).removeprefix("arguments.")
            name = ast.literal_eval(node.args[0])
            options = {key.arg: ast.literal_eval(key.value) for key in node.keywords}
            if check == "whole":
                yield name, (check, f"a whole number of at least {options.get('at_least', 1)}")
            elif check == "number":
                yield name, (check, f"a number above {options['above']}")
            else:
                yield name, (check, wanted[check])


@pytest.mark.parametrize("workload", ARGUMENTS)
def test_the_workload_itself_refuses_in_the_same_words(workload: str) -> None:
    from train.errors import TrainError
    from train.workloads import arguments

    for name, kind in ARGUMENTS[workload].items():
        if not kind.wanted:
            continue
        options = {"above": 0} if kind.name == "number" else {}
        for value in (None, -1, 0, 1, 0.5, 2.5, float("inf"), True, "", "x", [1]):
            if kind.name == "whole":
                options = {"at_least": int(kind.wanted.split()[-1])}
            try:
                getattr(arguments, kind.name)(name, value, **options)
                refused = ""
            except TrainError as error:
                refused = str(error)
            assert kind.fits(value) == (not refused), (name, value)
            assert not refused or f"must be {kind.wanted};" in refused
