"""Which steps of a run can be computed again, by what, and what is said where none can.

With real runs: tests/real/test_verify.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from train.base.errors import Refusal, TrainError
from train.checkpoint.disk import BadCheckpointError
from train.run import bundle
from train.run.config import Period, parse
from train.run.provenance import library_flags
from train.tools.verify import command, record, workplace
from train.tools.verify.compare import Difference, Rank
from train.tools.verify.record import ReplayRange
from train.tools.verify.replay import replayed
from train.tools.verify.workplace import check_workload, copy_checkpoint, processes_that_fit

SETTINGS = {"lr": 0.1, "global_batch_size": 8, "micro_batch_size": 2, "threads": 1, "reduction": "tree"}  # fmt: skip


def start(attempt: str, from_step: int, **other: Any) -> dict[str, Any]:
    return {
        "attempt": attempt, "generation": 1, "tier": "local", "started": 1.0 + from_step, "from_step": from_step,
        "last_step": 30, "bundle": "", "argv": [], "settings": SETTINGS, "code": "c", "world_size": 2, "shares": [2, 2],
        "hosts": {"desk": {"ranks": [0, 1], "environment": "e"}}, "data": {}, **other,
    }  # fmt: skip


def run(place: Path, *starts: dict[str, Any], kept: tuple[int, ...] = (10, 20, 30)) -> Path:
    """A checkpoint directory: each start went on for ten steps and then some that are done again."""
    rows = [
        {"kind": "step", "step": step, "time": 1.0, "loss": 1 / step, "attempt": each["attempt"], "generation": 1}
        for each in starts
        for step in range(each["from_step"] + 1, min(each["from_step"] + 14, 31))
    ]  # fmt: skip
    (place / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    manifest = {"schema": 2, "environments": {"e": {"torch": "2"}}, "starts": starts}
    (place / "manifest.json").write_text(json.dumps(manifest))
    for step in kept:
        (place / f"step-{step:09d}").mkdir()
        (place / f"step-{step:09d}" / "checkpoint.json").write_text("{}")
    return place


THREE = start("a", 0), start("b", 10), start("c", 20)


@pytest.mark.parametrize(
    ("begin", "steps", "kept", "expected"),
    [
        (None, None, (10, 20, 30), (20, 30)),
        (None, None, (20,), (0, 20)),
        (None, None, (), (0, 30)),
        (0, None, (10, 20), (0, 20)),
        (10, 4, (10, 20), (10, 14)),
        (20, 99, (10, 20), (20, 30)),
        (15, None, (10, 20), "--from=15: there is no such checkpoint; there is 0, 10, 20"),
        (20, None, (10, 20), "--from=20: no step after it is on record"),
    ],
)
def test_which_steps_are_meant(
    tmp_path: Path, begin: int | None, steps: int | None, kept: tuple[int, ...], expected: Any
) -> None:
    found = record.read_record(run(tmp_path, *THREE, kept=kept))
    if isinstance(expected, str):
        with pytest.raises(Refusal, match=expected) as refused:
            record.choose(found, begin, steps)
        assert refused.value.code == 2
    else:
        assert record.choose(found, begin, steps) == expected


def test_a_random_checkpoint_is_one_with_steps_after_it(tmp_path: Path) -> None:
    found = record.read_record(run(tmp_path, *THREE))
    assert {record.choose(found, None, 3) for _ in range(200)} == {(0, 3), (10, 13), (20, 23)}


def test_steps_of_several_starts_are_one_part_up_to_where_something_else_is_computed(
    tmp_path: Path,
) -> None:
    def parted(
        place: str, before: Sequence[dict[str, Any]] = THREE[:2], **other: Any
    ) -> tuple[ReplayRange, dict[str, Any]]:
        (tmp_path / place).mkdir()
        last = start("c", 20, **other)
        found = record.read_record(run(tmp_path / place, *before, last))
        return record.replay_range(found, 0, 30), last

    part, last = parted("same", world_size=4, shares=[2] * 4, tier="slurm")
    assert part == ReplayRange(0, 30, last, [10, 20, 30])
    part, _ = parted("settings", settings={**SETTINGS, "lr": 0.2})
    assert part == ReplayRange(
        0, 20, THREE[1], [10, 20], "from step 21 on the run had other settings: lr: 0.1 -> 0.2"
    )
    part, _ = parted("code", code="d")
    assert (part.end, part.border) == (20, "from step 21 on the run had other code")
    part, _ = parted("module", bundle="0123456789ab")
    assert (part.end, part.border) == (
        20, "from step 21 on the run had another version of ddpgen's training module"
    )  # fmt: skip
    summed = {**SETTINGS, "reduction": "allreduce"}
    before = [start(name, step, settings=summed) for name, step in (("a", 0), ("b", 10))]
    part, _ = parted("shares", before, settings=summed, shares=[3, 1])
    assert (part.end, part.border) == (
        20, "from step 21 on the run had other shares of the ranks, in whose order an all-reduce adds"
    )  # fmt: skip


def test_bundles_that_differ_in_their_launch_only_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for script in ("two processes", "three"):
        here = tmp_path / script
        (here / "train").mkdir(parents=True)
        files = {"local.sh": script, "train/a.py": "1"}
        for name, text in files.items():
            (here / name).write_text(text)
        (here / "bundle.json").write_text(json.dumps({"files": dict.fromkeys(files, "")}))
        names.append(bundle.keep_archive(tmp_path, here))
    starts = (
        start("a", 0, bundle=names[0]),
        start("b", 10, bundle=names[1]),
        start("c", 20, bundle=names[0]),
    )
    assert names[0] != names[1]
    read = MagicMock(wraps=record.contents)
    monkeypatch.setattr(record, "contents", read)
    assert record.replay_range(record.read_record(run(tmp_path, *starts)), 0, 30).border == ""
    assert read.call_count == 2, "once for each bundle of a start, not for each step"


def test_steps_that_no_start_on_record_has_computed_are_not_replayed(tmp_path: Path) -> None:
    run(tmp_path, *THREE)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["starts"][1]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TrainError, match="step 11 cannot be replayed"):
        record.replay_range(record.read_record(tmp_path), 10, 30)


def test_a_replay_computes_what_the_run_did_and_tells_nobody() -> None:
    argv = [
        "--workload=m.py:build", "--steps=40", "--global-batch-size=8", "--micro-batch-size=2", "--seed=7",
        "--checkpoint-dir=/run", "--checkpoint-store=s3://run", "--code-dir=code", "--world-size=3", "--shares=2,1,1",
        "--weight=3", "--tracker=wandb", "--eval-every=5", "--profile=2..3", "--data-workers=2",
    ]  # fmt: skip
    was = parse(argv)
    now = replayed(was, "/again", (10, 15, 20), "gloo", 3)
    changed = {name: value for name, value in vars(now).items() if value != getattr(was, name)}
    assert changed == {
        "checkpoint_dir": "/again", "checkpoint_store": "", "checkpoint_every": Period(at=(10, 15, 20)),
        "checkpoint_keep": 4, "until": 20,
        "code_dir": str(Path("code").absolute()), "world_size": None, "shares": None, "weight": Fraction(1),
        "backend": "gloo", "eval_every": 0, "trackers": (), "profile": None, "accept_changes": True,
    }  # fmt: skip
    best = parse([*argv, "--best-metric=loss"])
    # A checkpoint remembers the best one.
    assert replayed(best, "/again", (10, 15, 20), "gloo", 3).eval_every == 5


@pytest.mark.parametrize(
    ("reduction", "processes", "shares"),
    [("allreduce", 2, (3, 1)), ("allreduce", 3, None), ("tree", 2, None)],
)
def test_a_replay_of_an_all_reduce_has_the_shares_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reduction: str, processes: int, shares: Any
) -> None:
    (tmp_path / "bundle.json").write_text("{}")
    monkeypatch.setattr(workplace, "unpack", lambda *_: tmp_path)
    argv = [f"--reduction={reduction}", "--steps=40", "--global-batch-size=8", "--micro-batch-size=2"]  # fmt: skip
    settings = {**SETTINGS, "reduction": reduction}
    was = start("a", 0, argv=["--workload=gpt", *argv, "--checkpoint-dir=/run"], settings=settings, shares=[3, 1])  # fmt: skip
    words = workplace.Replay(tmp_path, tmp_path, was, False, processes)._command([10])
    recorded = words[words.index("gloo") + 1 :]
    assert replayed(parse(recorded), "/again", (10,), "gloo", processes).shares == shares


@pytest.mark.parametrize(
    ("argv", "is_inside"),
    [
        (["--workload=gpt"], True),
        (["--workload=m.py:build"], True),
        (["--workload", "models/../m.py:build"], True),
        (["--workload=..m.py:build"], True),
        (["--workload=../../x.py:build"], False),
        (["--workload=m.py:build", "--workload", "models/../../x.py:build"], False),
        (["--workload=/tmp/x.py:build"], False),
    ],
)
def test_a_replay_runs_no_code_from_outside_of_the_bundle(argv: list[str], is_inside: bool) -> None:
    if is_inside:
        check_workload(argv)
        return
    with pytest.raises(TrainError, match="outside of the bundle"):
        check_workload(argv)


def test_only_the_variables_that_a_run_records_reach_a_replay() -> None:
    flags = {
        "MKL_CBWR": "AVX2",
        "PYTHONPATH": "../x",
        "LD_PRELOAD": "x.so",
        "NVIDIA_TF32_OVERRIDE": 0,
    }
    assert library_flags({"library_flags": flags}) == {"MKL_CBWR": "AVX2"}
    assert library_flags({"library_flags": ["MKL_CBWR"]}) == library_flags({}) == {}


@pytest.mark.parametrize(
    "changed",
    [{"bundle": "../../elsewhere"}, {"bundle": "0123456789abc"}, {"argv": [["--steps=1"]]}],
)
def test_a_start_that_no_run_writes_is_a_damaged_manifest(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(TrainError, match="is damaged: starts"):
        record.read_record(run(tmp_path, start("a", 0, **changed)))


def test_a_copied_checkpoint_has_the_files_that_it_lists_and_follows_no_link(
    tmp_path: Path,
) -> None:
    kept, elsewhere = tmp_path / "step-000000010", tmp_path / "elsewhere"
    kept.mkdir()
    elsewhere.mkdir()
    (elsewhere / "large").write_text("not ours")
    (kept / "model.pt").write_text("model")
    about = {"step": 10, "files": {"model.pt": {"size": 5, "sha256": ""}}}
    (kept / "checkpoint.json").write_text(json.dumps(about))
    (kept / "linked").symlink_to(elsewhere)
    copy_checkpoint(kept, 10, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "checkpoint.json", "model.pt",
    ]  # fmt: skip


def test_a_checkpoint_that_lists_files_elsewhere_is_not_copied(tmp_path: Path) -> None:
    about = {"step": 10, "files": {"../secret": {"size": 5, "sha256": ""}}}
    (tmp_path / "checkpoint.json").write_text(json.dumps(about))
    with pytest.raises(BadCheckpointError):
        copy_checkpoint(tmp_path, 10, tmp_path / "copy")


def test_the_processes_are_what_fits_or_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3), raising=False)
    assert processes_that_fit(SETTINGS, 2, None) == 3
    assert processes_that_fit({**SETTINGS, "threads": 2}, 2, None) == 1
    assert processes_that_fit({**SETTINGS, "reduction": "allreduce"}, 2, None) == 2
    assert processes_that_fit(SETTINGS, 2, 4) == 4
    with pytest.raises(Refusal, match=r"--procs=5: .* 4 micro-batches, so 1 to 4"):
        processes_that_fit(SETTINGS, 2, 5)


def test_the_gpus_limit_the_processes_and_do_not_ask_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr(command, "Replay", replay := MagicMock())
    monkeypatch.setattr(command, "_compare_with_record", lambda *_: None)
    run(tmp_path, start("a", 0), kept=())
    environments = {"e": {"device": "NVIDIA H100"}}
    fit = []
    for settings in (SETTINGS, {**SETTINGS, "reduction": "allreduce"}):
        found = dataclasses.replace(record.read_record(tmp_path), environments=environments)
        part = ReplayRange(0, 10, start("a", 0, settings=settings), [])
        command._replay(found, part, None, tmp_path)
        fit.append(replay.call_args.args[-1])
    assert fit == [4, 2], "as many as micro-batches; with allreduce as many as in the run"


def test_the_likely_cause_is_in_the_first_line() -> None:
    part = ReplayRange(10, 30, start("a", 0), [20, 30])
    other = Difference(Rank.BITS, "torch", "2.12", "2.13")
    damage = command.Damage(20, "model.pt differs in a: 9 of 9 elements, by at most 1", "")
    found = command.Result(part, 3, 10, 4, 12, [damage], [other])
    assert list(command._verdict(found)) == [
        "not identical: the loss of step 12 has other bits: torch: 2.12 -> 2.13",
        "the checkpoint of step 20: model.pt differs in a: 9 of 9 elements, by at most 1",
        "",
        "bits          what   on record  here",
        "changes bits  torch  2.12       2.13",
    ]


def test_a_record_that_was_changed_is_named_and_no_cause_is_looked_for() -> None:
    part = ReplayRange(10, 30, start("a", 0), [20, 30])
    other = Difference(Rank.BITS, "torch", "2.12", "2.13")
    found = command.Result(part, 3, 20, 4, None, [], [other], rows=[12], weights=[30])
    assert found.explained
    assert not found.identical
    assert list(command._verdict(found)) == [
        (
            "not identical: the loss of step 12 in metrics.jsonl was changed: the replay has other bits, and the same "
            "tensors after it"
        ),
        "weights in manifest.json is not the hash of the weights of step 30",
    ]
    damage = command.Damage(20, "checkpoint.json was changed", "model.pt does not match", same=True)
    found = command.Result(part, 3, 20, 4, None, [damage], [])
    assert list(command._verdict(found)) == [
        "not identical: the checkpoint of step 20: checkpoint.json was changed",
        "the losses of steps 10 to 30 are those on record: the checkpoint was changed after it was written",
    ]


def test_a_hash_of_weights_counts_while_no_later_start_did_its_step_again(tmp_path: Path) -> None:
    ended = {"end": "stopped", "step": 14, "weights": "a" * 64}
    last = {"end": "done", "step": 30, "weights": "c" * 64}
    nothing_left = start("d", 30, end="done", step=30, weights="d" * 64)
    starts = start("a", 0, **ended), start("b", 10), start("c", 20, **last), nothing_left
    found = record.read_record(run(tmp_path, *starts))
    assert found.weights == {30: "d" * 64}


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert command.main(argv) == 69
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("python -m train verify: ").rstrip()


def test_what_cannot_be_replayed_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert said(capsys, str(tmp_path)).startswith(f"{tmp_path}/manifest.json is not there; ")
    (tmp_path / "status").write_text("done a 0\n")
    assert "(train.script)" in said(capsys, str(tmp_path))
    run(tmp_path, *THREE, kept=())
    keep = tmp_path / "again"
    assert "not come from a bundle" in said(capsys, str(tmp_path), f"--keep={keep}")
    assert not keep.exists()
    (tmp_path / "metrics.jsonl").unlink()
    assert "has no losses" in said(capsys, str(tmp_path))
    run(tmp_path, *THREE, kept=())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert said(capsys, str(tmp_path)).startswith("torch is not installed ")
    assert not list(tmp_path.parent.glob(".*verify*"))
