"""The chain over losses and weights: the same wherever it is computed, and each change of it named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.train.test_verify import start
from tests.train.workers import Run, run
from train.run.chain import Digest, first_link, link, receipt
from train.tools.report import history
from train.tools.verify import chained, command, record
from train.tools.verify.diff import diff

# `spare` has no influence on any loss. Before the first step, one micro-batch is computed twice.
MODEL = """
import os, signal, torch
from pathlib import Path
from train.workload import Workload

def build(context):
    drift, death = (int(os.environ.get(name, -9)) for name in ("DRIFT", "DEATH"))
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 1), "spare": torch.nn.Linear(2, 2)})
    model.forward = lambda x: model.used(x) + 0 * sum(p.sum() for p in model.spare.parameters())
    computed = 0
    def loss(ddp, batch):
        nonlocal computed
        computed += 1
        if computed == drift + 2:
            with torch.no_grad():
                model.spare.bias += 1
        if computed == death + 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return ddp(batch).square().mean()
    data = torch.arange(96.0).reshape(24, 4).sin()
    return Workload(model, data, loss)
"""
ARGUMENTS = (
    "--digest",
    "--micro-batch-size=6",
    "--log-every=2",
    "--steps=12",
    "--checkpoint-every=3 steps",
)


def test_a_link_depends_on_each_of_its_parts() -> None:
    one, other = (Digest(4, root, "00000000") for root in ("a", "b"))
    links = [
        link(before, step, loss, digest)
        for before in ("x", "y")
        for step in (1, 2)
        for loss in (0.5, -0.5, float("nan"))
        for digest in (None, one, other)
    ]
    assert len(set(links)) == len(links)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Train the model in a directory of this name."""
    top = tmp_path_factory.mktemp("chains")
    (top / "model.py").write_text(MODEL)

    def train(name: str, *more: str, processes: int = 1, digest: bool = True) -> Run:
        words = (*ARGUMENTS[not digest :], *more)
        return run(top / name, f"{top / 'model.py'}:build", processes, *words)

    return train


@pytest.fixture(scope="module")
def undisturbed(train: Callable[..., Run]) -> Path:
    done = train("undisturbed")
    assert done.codes == [0], done.output
    return done.directory


def ending(directory: Path) -> dict[str, Any]:
    newest = json.loads((directory / "manifest.json").read_text())["starts"][-1]
    return {name: newest.get(name) for name in ("weights", "receipt")}


@pytest.mark.slow
def test_processes_kills_and_stops_leave_the_chain_as_it_is(
    train: Callable[..., Run], undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEATH", "8")
    assert train("resumed", processes=2).codes[0] == -9
    monkeypatch.delenv("DEATH")
    assert train("resumed", "--until=9", processes=2).codes == [0, 0]
    assert train("resumed").codes == [0]
    resumed = undisturbed.with_name("resumed")
    froms = [row["step"] for row in rows_of(resumed) if row["kind"] == "start"]
    assert froms[0] == 0
    assert froms[1] in (3, 6)
    assert froms[2] == 9
    assert ending(resumed) == ending(undisturbed)
    assert record.read_rows(resumed).digests == record.read_rows(undisturbed).digests
    assert list(record.read_rows(resumed).digests) == [2, 4, 6, 8, 10, 12]
    chains = [
        {row["step"]: row["chain"] for row in rows_of(place) if row["kind"] == "step"}
        for place in (resumed, undisturbed)
    ]
    assert chains[0] == chains[1]
    for place in (resumed, undisturbed):
        assert record.chain_faults(place) == []


def test_a_chain_may_begin_and_end_at_any_start(
    train: Callable[..., Run], undisturbed: Path
) -> None:
    assert train("later", "--until=4", digest=False).codes == [0]
    assert train("later", "--until=7").codes == [0]
    later = undisturbed.with_name("later")
    assert list(record.read_rows(later).digests) == [6]
    assert ending(later)["receipt"] not in (None, ending(undisturbed)["receipt"])
    assert train("later", digest=False).codes == [0]
    assert record.chain_faults(later) == []
    assert ending(later) == {**ending(undisturbed), "receipt": None}


def test_the_first_tensor_that_differs_is_named_with_its_step(
    train: Callable[..., Run], undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFT", "10")  # the second micro-batch of step 5
    drifted = train("drifted").directory
    monkeypatch.delenv("DRIFT")
    recorded = record.read_record(drifted)
    replay_range = record.replay_range(recorded, 0, 12)
    result = command._compare_with_record(recorded, replay_range, 1, undisturbed)
    assert result.loss is None
    assert not result.identical
    first = "the weights of step 6 have another digest, first in spare.bias"
    assert result.digest == first
    assert command._as_json(result, [])["first_digest"] == first
    assert first in "\n".join(command._verdict(result))
    assert record.chain_faults(drifted) == []
    found = diff(undisturbed, drifted)
    assert not found.same
    assert found.verdict.startswith("the weights differ at step 6, first in spare.bias")
    assert command._compare_with_record(recorded, replay_range, 1, drifted).digest == ""


# Chains that no training wrote.

KEY = {"attempt": "a", "generation": 1}


def rows(steps: int = 40, every: int = 4, parted: int = 0, times: int = 1) -> list[dict[str, Any]]:
    """A run's rows. `parted`: from this step on the losses are others. `times`: how often the steps are done."""
    last, made = first_link(0), list[dict[str, Any]]()
    pending: Digest | None = None
    links = [last]
    losses = [1 / step if step < parted or not parted else 2 / step for step in range(1, steps + 1)]
    for number, loss in enumerate(losses, 1):
        row: dict[str, Any] = {"kind": "step", "step": number, "time": 1.0, "loss": loss, **KEY}
        digest = pending if number % every == 0 else None
        if digest is not None:
            row["digest"] = asdict(digest)
        if number % every == 0:
            pending = Digest(number, f"{number:064x}", "0123456789abcdef")
        last = link(last, number, loss, digest)
        links.append(last)
        made += [
            {**row, "chain": last},
            *[{"kind": "ranks", "step": number, "time": 1.0}] * (number % 7 == 0),
        ]
    begin = {"kind": "start", "step": 0, "time": 1.0, **KEY, "chain": links[0]}
    half = steps // 2
    again = {**begin, "step": half, "generation": 2, "chain": links[half]}
    whole = [begin, *made, *(times - 1) * [again, *(row for row in made if row["step"] > half)]]
    end = {"kind": "done", "step": steps, "time": 1.0, "attempt": "a", "generation": times}
    return [*whole, {**end, "digest": pending and asdict(pending)}]


def starts(made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The manifest's entries for these rows."""
    last = next(row for row in reversed(made) if row["kind"] == "step")
    digest = Digest(**made[-1]["digest"])
    end = start("a", 0, receipt=receipt(last["chain"], last["step"], digest))
    end["generation"] = made[-1]["generation"]
    return [end] if end["generation"] == 1 else [start("a", 0), end]


def faults_of(made: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]) -> list[str]:
    return [str(fault) for fault in chained.faults((f"{json.dumps(row)}\n" for row in made), known)]


def test_a_whole_chain_has_no_fault_nor_has_one_that_was_done_twice() -> None:
    made = rows()
    assert faults_of(made, starts(made)) == []
    twice = rows(times=2)
    assert faults_of(twice, starts(twice)) == []


def rows_of(directory: Path) -> list[history.Row]:
    return list(history.read((directory / "metrics.jsonl").read_text().splitlines()))


def changed(made: Sequence[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield copies with one bit changed in a loss, a link or a digest, each with the number of its line."""
    for number, row in enumerate(made):
        digest = row.get("digest", {})
        others: list[dict[str, Any]] = [
            {name: value[:-1] + chr(ord(value[-1]) ^ 1)}
            for name, value in row.items()
            if name == "chain"
        ]
        others += [{"loss": row["loss"] * (1 + 2**-52)}] if "loss" in row else []
        for name, value in digest.items():
            other = value ^ 1 if isinstance(value, int) else value[:-1] + chr(ord(value[-1]) ^ 1)
            others.append({"digest": {**digest, name: other}})
        for other in others:
            yield number + 1, [*made[:number], {**row, **other}, *made[number + 1 :]]


def test_one_bit_that_was_changed_is_named_with_its_line() -> None:
    made = rows(12, 3)
    known, count = starts(made), 0
    for number, other in changed(made):
        first, *_ = faults_of(other, known)
        named = (
            number + 1 if number == 1 else number
        )  # the link at a start shows in the row after it
        assert first.startswith(f"line {named} of metrics.jsonl, step "), (number, first)
        count += 1
    assert count == 1 + 2 * 12 + 3 * 4


@pytest.mark.parametrize("step", [1, 2, 11, 40])
def test_a_row_that_was_cut_out_or_exchanged_is_named(step: int) -> None:
    made = rows()
    known = starts(made)
    at = next(n for n, row in enumerate(made) if row["kind"] == "step" and row["step"] == step)
    cut = faults_of([*made[:at], *made[at + 1 :]], known)
    assert len(cut) == 1
    if step < 40:
        exchanged = [*made[:at], made[at + 1], made[at], *made[at + 2 :]]
        for found in (cut, faults_of(exchanged, known)):
            assert found[0].startswith(
                f"line {at + 1} of metrics.jsonl, step {step + 1}: it follows step {step - 1}"
            )
    else:
        assert "do not lead to the receipt" in cut[0]
    torn = [f"{json.dumps(row)}\n" for row in made]
    torn[at] = torn[at].replace('"kind"', "'kind\"")
    assert f"; line {at + 1} cannot be read" in "".join(map(str, chained.faults(torn, known)))


def test_an_end_that_was_cut_off_is_named() -> None:
    made = rows()
    known = starts(made)
    for length in range(1, len(made)):
        assert faults_of(made[:length], known), length
    assert faults_of(made[:-1], [start("a", 0)]) == [], "a run that was killed has no end"


def test_rows_that_are_missing_above_a_start_are_a_fault_unless_another_machine_has_them() -> None:
    made = rows(times=2)
    second = next(n for n, row in enumerate(made) if row["kind"] == "start" and n)
    less = [*made[:15], *made[second:]]
    key = {"attempt": "a", "generation": 2}
    follows = [start("a", 0), {**start("a", 20), **key}]
    assert faults_of(less, follows)[0].endswith("rows above this start are missing, up to its step")
    assert faults_of(less, [follows[0], start("b", 5), follows[1]]) == []


def test_a_start_goes_on_from_the_chain_and_after_an_end() -> None:
    made = rows(times=2)
    second = next(n for n, row in enumerate(made) if row["kind"] == "start" and n)
    known = starts(made)
    other = [*made[:second], {**made[second], "chain": "f" * 64}, *made[second + 1 :]]
    assert faults_of(other, known)[0].endswith("this start does not go on from the chain above")
    ended = [{**known[0], "receipt": "e" * 64}, known[1]]
    assert faults_of(made, ended)[0].endswith("the end of the start above is missing")


def write(directory: Path, *parts: Sequence[dict[str, Any]]) -> Path:
    """A checkpoint directory with these rows. The end of all parts but the last is left out, as after a crash."""
    directory.mkdir(exist_ok=True)
    whole = [*itertools.chain(*(part[:-1] for part in parts)), parts[-1][-1]]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in whole))
    manifest = {"schema": 2, "environments": {}, "starts": [start("a", 0)]}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


@pytest.mark.parametrize("times", [1, 2])
def test_two_runs_part_where_their_chains_do(tmp_path: Path, times: int) -> None:
    first = write(tmp_path / "a", rows(60))
    for step in range(1, 61, 3):
        assert diff(first, write(tmp_path / "b", rows(60, parted=step, times=times))).step == step
    assert diff(first, write(tmp_path / "b", rows(60, times=times))).same
    ends = diff(first, write(tmp_path / "b", rows(50)))
    assert (ends.step, ends.same) == (None, False)
    assert diff(first, write(tmp_path / "b", rows(60, every=5))).same, "other chains"


@pytest.mark.parametrize("step", [22, 30, 50])
def test_steps_that_were_done_again_with_other_bits_do_not_count(tmp_path: Path, step: int) -> None:
    first, other = rows(60), rows(60, parted=step)
    at = next(n for n, row in enumerate(other) if row["kind"] == "step" and row["step"] == 20)
    again = {**other[0], "step": 20, "generation": 2, "chain": other[at]["chain"]}
    before_the_fix = rows(40, parted=21)
    runs = write(tmp_path / "a", first), write(tmp_path / "b", before_the_fix, [again, *other[at + 1 :]])  # fmt: skip
    assert diff(*runs).step == step


@pytest.mark.parametrize("change", ["loss", "cut", "exchanged"])
def test_two_runs_of_which_one_was_changed_are_not_the_same(tmp_path: Path, change: str) -> None:
    whole, other = rows(60), rows(60)
    at = next(n for n, row in enumerate(other) if row["kind"] == "step" and row["step"] == 30)
    if change == "loss":
        other[at] = {**other[at], "loss": other[at]["loss"] + 1}
    elif change == "cut":
        del other[at]
    else:
        other[at : at + 2] = reversed(other[at : at + 2])
    found = diff(write(tmp_path / "a", whole), write(tmp_path / "b", other))
    assert found.verdict.startswith(f"B is not as it was written: line {at + 1} of metrics.jsonl")
    assert not found.same


def test_an_evaluation_before_the_first_other_loss_is_told(tmp_path: Path) -> None:
    runs = []
    for name, parted, loss in (("a", 0, 0.5), ("b", 30, 0.25)):
        evaluated = {"kind": "eval", "step": 20, "time": 1.0, "loss": loss, **KEY}
        runs.append(write(tmp_path / name, [evaluated, *rows(60, parted=parted)]))
    assert diff(*runs).verdict.startswith("the evaluations differ at step 20")


def test_few_rows_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = write(tmp_path / "a", rows(2_000)), write(tmp_path / "b", rows(2_000, parted=700))
    monkeypatch.setattr(json, "loads", loads := MagicMock(wraps=json.loads))
    assert diff(*runs).step == 700
    assert loads.call_count < 10
