"""Two runs compared: which difference is named as the cause, the bits of losses, the bits of tensors."""

from __future__ import annotations

import copy
import math
import struct
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.run.metrics import MetricsLog
from train.tools.report.history import load
from train.tools.verify.compare import (
    Origin,
    environment_differences,
    first_loss_difference,
    tensor_differences,
    verdict,
)

START: dict[str, Any] = {
    "tier": "local",
    "settings": {"lr": 0.1, "seed": 1, "reduction": "tree", "args": {"depth": 2}},
    "world_size": 2,
    "shares": [4, 4],
    "hosts": {"desk": {"ranks": [0, 1], "nic": "eth0", "environment": "aa"}},
    "data": {"files": {"/data/a/train.bin": {"size": 9, "mtime": 1.0, "sha256": "0" * 64}}},
}
ENVIRONMENT: dict[str, Any] = {
    "torch": "2.13.0",
    "cpu_capability": "AVX512",
    "python": "3.11.2",
    "threads": 1,
    "library_flags": {},
    "distributions": {"numpy": "2.2.6", "torch": "2.13.0"},
}
FILES = {"code/model.py": b"x = 1\ny = 2\n", "train/training/data.py": b"pass\n"}


def origin(**changes: Any) -> Origin:
    """The run above with other values: `start__world_size=3`, `environment__torch="2.14.0"`, `files={…}`."""
    start, environment = copy.deepcopy(START), copy.deepcopy(ENVIRONMENT)
    for name, value in changes.items():
        kind, _, key = name.partition("__")
        if kind != "files":
            {"start": start, "environment": environment}[kind][key] = value
    return Origin(start, {"aa": environment}, {**FILES, **changes.get("files", {})})


def said(now: Origin) -> list[str]:
    return verdict("the runs part at step 37", environment_differences(origin(), now))


def test_the_likeliest_cause_is_in_the_first_line_and_the_rest_in_a_table() -> None:
    now = origin(
        start__settings={**START["settings"], "seed": 2, "lr": 0.2},
        start__world_size=3,
        start__shares=[3, 3, 2],
        start__data={"files": {"/mnt/train.bin": {"size": 9, "mtime": 5.0, "sha256": "f" * 64}}},
        environment__python="3.12.1",
        environment__library_flags={"ATEN_CPU_CAPABILITY": "default"},
        environment__cpu_capability="DEFAULT",
        environment__threads=2,
        environment__distributions={"numpy": "2.3.0", "torch": "2.13.0"},
        files={"code/model.py": b"x = 1\ny = 3\n"},
    )
    assert said(now) == [
        "the runs part at step 37: seed: 1 -> 2 (and 6 more, below)",
        "",
        "bits          what                 A                    B",
        "changes bits  seed                 1                    2",
        "changes bits  lr                   0.1                  0.2",
        "changes bits  train.bin            sha256 000000000000  sha256 ffffffffffff",
        "changes bits  model.py:2           y = 2                y = 3",
        "changes bits  ATEN_CPU_CAPABILITY  -                    default",
        "changes bits  cpu_capability       AVX512               DEFAULT",
        "changes bits  threads              1                    2",
        "may           numpy                2.2.6                2.3.0",
        "may           python               3.11.2               3.12.1",
        "does not      world_size           2                    3",
        "does not      shares               [4, 4]               [3, 3, 2]",
    ]


def test_data_elsewhere_is_the_same_data_and_one_byte_is_not() -> None:
    there = {"/mnt/other/train.bin": {"size": 9, "mtime": 2.0, "sha256": "0" * 64}}
    assert environment_differences(origin(), origin(start__data={"files": there})) == []
    there["/mnt/other/train.bin"]["sha256"] = "1" * 64
    first = said(origin(start__data={"files": there}))[0]
    assert first == "the runs part at step 37: train.bin has another sha256"


def test_data_that_a_start_had_no_time_to_hash_explains_nothing() -> None:
    assert environment_differences(origin(), origin(start__data={})) == []


def test_data_in_two_places_far_apart_is_the_same_data() -> None:
    facts = [{"size": 9, "sha256": each * 64} for each in "0f1"]
    was = origin(start__data={"files": {"/a/x/1.bin": facts[0], "/data/2.bin": facts[1]}})
    now = origin(start__data={"files": {"/b/1.bin": facts[0], "/data/2.bin": facts[1]}})
    other = origin(start__data={"files": {"/b/1.bin": facts[2], "/data/2.bin": facts[1]}})
    assert environment_differences(was, now) == []
    assert {each.name for each in environment_differences(was, other)} == {"a/x/1.bin", "b/1.bin"}


def test_a_large_file_of_another_time_may_be_the_cause() -> None:
    files = [
        {"/d/x.bin": {"size": 9, "mtime": at, "sha256": "0", "partial": True}} for at in (1, 2)
    ]
    was, now = (origin(start__data={"files": each}) for each in files)
    found = environment_differences(was, now)
    assert verdict("they part", found)[0] == (
        "they part: x.bin has another time, and only its ends were hashed, which may change bits"
    )


def test_without_a_known_cause_the_verdict_says_so() -> None:
    assert said(origin()) == ["the runs part at step 37; nothing on record explains it"]
    dependency = origin(environment__distributions={"numpy": "2.3.0", "torch": "2.13.0"})
    assert said(dependency)[0] == (
        "the runs part at step 37: numpy: 2.2.6 -> 2.3.0, which may change bits"
    )


def test_only_a_bit_probe_that_both_runs_have_can_differ() -> None:
    was, other = origin(environment__bits={"gelu": "a", "sum": "b"}), origin()
    assert environment_differences(was, other) == environment_differences(other, was) == []
    found = environment_differences(was, origin(environment__bits={"gelu": "a", "sum": "c"}))
    assert [str(each) for each in found] == ["the hosts compute other bits in sum"]


def test_the_version_of_what_the_code_imports_is_a_cause() -> None:
    files = {"code/model.py": b"import numpy\n"}
    now = origin(environment__distributions={"numpy": "2.3.0", "torch": "2.13.0"}, files=files)
    found = environment_differences(origin(files=files), now)
    assert verdict("they part", found)[0] == "they part: numpy: 2.2.6 -> 2.3.0"


def test_losses_are_compared_by_their_bits() -> None:
    was = {1: 0.5, 2: math.nan, 3: 0.0, 4: 7.0, 9: 1.0}
    assert first_loss_difference(was, {1: 0.5, 2: math.nan, 3: 0.0, 8: 3.0}) is None
    assert first_loss_difference(was, {1: 0.5, 2: math.nan, 3: -0.0, 4: 8.0}) == 3
    assert first_loss_difference(was, {1: math.nextafter(0.5, 1)}) == 1


@given(st.floats())
def test_a_loss_comes_back_from_its_row_with_the_same_bits(loss: float) -> None:
    """Of a NaN only that it is one: which of them has no meaning."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = MetricsLog(directory / "metrics.jsonl")
        log.write({"kind": "step", "step": 1, "time": 0.0, "attempt": "a", "loss": loss})
        log.close()
        (step,) = load(directory).steps
    if math.isnan(loss):
        assert math.isnan(step.loss)
    else:
        assert struct.pack("<d", step.loss) == struct.pack("<d", loss)


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    was = {"a": torch.zeros(2, 3), "b": torch.ones(4), "n": torch.tensor(3)}
    now = {"a": torch.zeros(2, 3), "b": torch.tensor([1, 1.25, 0.5, 1]), "n": torch.tensor(4)}
    torch.save(was, tmp_path / "was.pt")
    torch.save(now, tmp_path / "now.pt")
    assert tensor_differences(tmp_path / "was.pt", tmp_path / "was.pt") is None
    found = tensor_differences(tmp_path / "was.pt", tmp_path / "now.pt")
    assert str(found) == "b: 2 of 4 elements, by at most 0.5 (and 1 more)"


def test_tensors_stay_in_their_files_until_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a": torch.ones(4)}, tmp_path / "was.pt")
    monkeypatch.setattr(torch, "load", load := MagicMock(wraps=torch.load))
    assert tensor_differences(tmp_path / "was.pt", tmp_path / "was.pt") is None
    assert [call.kwargs["mmap"] for call in load.call_args_list] == [True, True]


def test_bits_count_and_not_values(tmp_path: Path) -> None:
    was = {"z": torch.tensor([0.0, math.nan]), "s": torch.zeros(2), "t": {"m": [1, 2]}}
    others = {
        "z: 1 of 2 elements, by at most 0": {**was, "z": torch.tensor([-0.0, math.nan])},
        "s: torch.float32 [2] and torch.float64 [2]": {**was, "s": torch.zeros(2).double()},
        "t.m.1: 2 and 3": {**was, "t": {"m": [1, 3]}},
        "s: is in the first only": {name: was[name] for name in ("z", "t")},
    }
    torch.save(was, tmp_path / "was.pt")
    for words, now in others.items():
        torch.save(now, tmp_path / "now.pt")
        assert str(tensor_differences(tmp_path / "was.pt", tmp_path / "now.pt")) == words
