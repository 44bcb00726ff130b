"""Arguments that a built-in workload refuses after the start are refused before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.lint.workloads import arguments_of
from ddpgen.spec.rules import WORKLOADS
from tests.ddpgen.conftest import GPT, faults


def with_args(args: str, workload: str = "gpt", top: str = "") -> str:
    return GPT.replace("workload: gpt", f"workload: {workload}\n  args: {{{args}}}") + top


TOLD = [
    (with_args("dept: 4"), "depth?"),
    (with_args("depth: 0"), "from 1"),
    (with_args("data_dir: $DATA/x", "mnist"), "$DATA "),
    (with_args("width: 10000000"), "parameters"),
    (with_args("classes: 9", "mnist"), "10 classes"),
    (with_args("sha256: {train: null}", "mnist"), "no file of this workload"),
    (with_args("sha256: {train-images-idx3-ubyte: ab}", "mnist"), "64 hexadecimal digits"),
    (with_args("heads: 3"), "width: 126"),
    (
        with_args("batch_norm: true", "toy").replace("micro_batch_size: 4", "micro_batch_size: 1"),
        "two samples",
    ),
    (
        with_args("holdout: 0").replace(
            "train:\n", "train:\n  best: loss\n  eval_every: 9 steps\n"
        ),
        "nothing to evaluate",
    ),
    (with_args("text: no.txt"), "not in code"),
    (with_args("seq_len: 200, max_bytes: 300"), "300 bytes"),
]


@pytest.mark.parametrize(("text", "word"), TOLD)
def test_what_a_workload_would_refuse_is_refused(text: str, word: str) -> None:
    (fault,) = faults(text)
    assert fault.where.partition(" ")[2].startswith("train.args")
    assert word in fault.text


def test_two_samples_have_a_variance() -> None:
    small = with_args("batch_norm: true", "toy").replace(
        "micro_batch_size: 4", "micro_batch_size: 2"
    )
    assert not faults(small)


def test_pictures_of_the_users_have_any_number_of_classes() -> None:
    args = "classes: 2, data_dir: /data/own, sha256: {train-images-idx3-ubyte.gz: null}"
    assert not faults(with_args(args, "mnist"))


RANGES = [
    ("gpt", "depth", "1 12", "0 -1 1.5 x true 1e3 2000000000"),
    ("gpt", "max_bytes", "1000000000000000", "0"),
    ("gpt", "dropout", "0 0.5", "1 -0.1 x true"),
    ("gpt", "tie_weights", "true false", "1 null"),
    ("gpt", "text", "null /data/x ~/x", "'' 5"),
    ("mnist", "classes", "10 12", "1 true"),
    ("mnist", "download_timeout", "0.5 10", "0 -1"),
    ("mnist", "sha256", "null {}", "5"),
    ("toy", "classes", "2 3", "1"),
]


@pytest.mark.parametrize(("workload", "name", "accepted", "refused"), RANGES)
def test_the_ranges_are_the_workloads(
    workload: str, name: str, accepted: str, refused: str
) -> None:
    def wrong(values: str) -> list[str]:
        return [v for v in values.split() if faults(with_args(f"{name}: {v}", workload))]

    assert (wrong(accepted), wrong(refused)) == ([], refused.split())


def test_every_argument_has_a_range() -> None:
    unchecked = {
        name for workload in WORKLOADS for name, a in arguments_of(workload).items() if not a.check
    }
    assert unchecked == {"sha256"}


def test_a_folder_of_text_is_measured_as_it_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a/texts", "b/texts"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{folder[0]}.txt").write_text("x" * 50)
        (tmp_path / folder / "large.bin").write_text("x" * 500)
    for code in ("a", "b"):
        (tmp_path / code / ".ddpgenignore").write_text("*.bin\n")
    assert not faults(with_args("text: ./texts, seq_len: 49", top="code: [a, b]\n"))
    (fault,) = faults(with_args("text: ./texts, seq_len: 50", top="code: [a, b]\n"))
    assert "100 bytes" in fault.text


@pytest.mark.parametrize("code", [".", "own.txt", "sub", "[own.txt, other.txt]"])
def test_the_length_of_a_text_of_the_users(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for place in (tmp_path, tmp_path / "sub"):
        (place / "own.txt").write_text("x" * 100)
    (tmp_path / "other.txt").write_text("x" * 500)
    top = f"code: {code}\n"
    assert not faults(with_args("text: own.txt, seq_len: 49", top=top))
    (fault,) = faults(with_args("text: own.txt, seq_len: 50", top=top))
    assert "100 bytes" in fault.text
