"""What a workload may bring of its own, and that it costs none of the promises."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.real.jobs import assert_same_bits, checkpoints, rows
from tests.train import own_parts, workers
from tests.train.workers import Run, import_compiler, run
from train.checkpoint import disk
from train.checkpoint.checkpointer import Checkpointer
from train.training import evaluate, repeats

PARTS = Path(__file__).with_name("own_parts.py")


def trained(place: Path, name: str, processes: int, *arguments: str) -> Run:
    return run(place, f"{PARTS}:{name}", processes, *arguments)


def completed(place: Path, name: str, processes: int, *arguments: str) -> Run:
    done = trained(place, name, processes, *arguments)
    assert set(done.codes) == {0}, done.output
    return done


def killed_and_resumed(place: Path, name: str, *arguments: str) -> Run:
    """Two processes until one is killed, then three."""
    flags = [*arguments, "--checkpoint-every=1 steps", f'--arg=killed="{place / "killed"}"']
    assert 0 not in trained(place / "halves", name, 2, *flags).codes
    done = completed(place / "halves", name, 3, *flags)
    assert "resuming at step" in done.output
    return done


@pytest.mark.slow
def test_a_schedule_of_ones_own_sets_the_rate_through_a_restart(tmp_path: Path) -> None:
    whole = completed(tmp_path / "whole", "own_schedule", 1, "--steps=8")
    rates = {row["step"]: row["lr"] for row in rows(whole.directory, "step")}
    assert rates == {s + 1: 0.05 * own_parts.triangle(s, 8) for s in range(8)}
    halves = killed_and_resumed(tmp_path, "own_schedule", "--steps=8")
    assert_same_bits(halves.tensors(), whole.tensors())


@pytest.mark.slow
def test_several_optimizers_step_together_to_the_same_bits(tmp_path: Path) -> None:
    import_compiler()
    flags = ("--steps=8", "--schedule=cosine", "--warmup-steps=2", "--grad-clip=0.5")
    alone = completed(tmp_path / "alone", "two_optimizers", 1, *flags)
    start = own_parts.Gan().state_dict()
    assert {*alone.tensors()} == {*start}
    for processes in (2, 3):
        done = completed(tmp_path / str(processes), "two_optimizers", processes, *flags)
        assert_same_bits(done.tensors(), alone.tensors())
    halves = killed_and_resumed(tmp_path, "two_optimizers", *flags)
    assert_same_bits(halves.tensors(), alone.tensors())
    kept = torch.load(checkpoints(halves.directory)[-1] / "optimizer.pt", weights_only=True)
    assert [len(each["state"]) for each in kept["optimizer"]] == [4, 4]
    rates = [row["lr"] for row in rows(alone.directory, "step")]
    assert rates[:3] == [0.1, 0.2, 0.2]  # of the first optimizer


@pytest.mark.parametrize(
    ("returns", "what"),
    [
        ("dict", "returned a dict; "),
        ("empty", "returned a list with nothing in it; "),
        ("words", "returned a str; return"),
    ],
)
def test_what_is_no_optimizer_is_named_before_the_first_step(
    returns: str, what: str, tmp_path: Path
) -> None:
    import_compiler()
    done = trained(tmp_path, "two_optimizers", 1, f'--arg=returns="{returns}"')
    assert done.status.startswith("failed ")
    assert what in done.status


def test_a_checkpoint_of_other_optimizers_is_refused(tmp_path: Path) -> None:
    import_compiler()
    completed(tmp_path, "two_optimizers", 1, "--steps=2")
    done = trained(tmp_path, "two_optimizers", 1, "--steps=4", '--arg=returns="one"')
    assert done.codes == [1]
    done = trained(tmp_path, "two_optimizers", 1, '--arg=returns="one"', "--accept-changes")
    assert "2 optimizers, and there are 1" in done.status


def test_another_length_is_another_run_where_a_schedule_is_told_of_it(tmp_path: Path) -> None:
    completed(tmp_path, "own_schedule", 1, "--steps=3")
    longer = trained(tmp_path, "own_schedule", 1, "--steps=6")
    assert longer.codes == [1]
    assert "last_step: 3 -> 6" in longer.output


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("bad_schedule", ['--arg=kind="counting"'], "returned another number for step 0"),
        ("bad_schedule", ['--arg=kind="negative"'], "schedule(5, 6) returned -2.5; it has to be"),
        ("bad_schedule", ['--arg=kind="none"'], "schedule(0, 6) returned None; it has to be"),
        ("own_schedule", ["--schedule=cosine"], "take train.schedule and train.warmup_steps out"),
        ("own_schedule", ["--warmup-steps=2"], "take train.schedule and train.warmup_steps out"),
    ],
)
def test_a_schedule_that_cannot_be_followed_ends_the_run_before_a_step(
    name: str, arguments: list[str], why: str, tmp_path: Path
) -> None:
    done = trained(tmp_path, name, 1, *arguments)
    assert done.codes == [1]
    assert why in done.status
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_logger_gets_every_row_once_and_on_rank_0_only(tmp_path: Path) -> None:
    logged = tmp_path / "logged"
    argument = f"--arg=file={json.dumps(str(logged))}"
    completed(tmp_path / "job", "own_log", 3, argument, "--eval-every=2")
    told = [json.loads(line) for line in logged.read_text().splitlines()]
    written = (tmp_path / "job" / "metrics.jsonl").read_text().splitlines()
    assert told == [json.loads(line) for line in written]
    assert {row["kind"] for row in told} == {"start", "step", "eval", "checkpoint", "done"}


def test_a_logger_that_fails_costs_nothing_and_is_told_of_once(tmp_path: Path) -> None:
    logged = tmp_path / "logged"
    flags = [f"--arg=file={json.dumps(str(logged))}"]
    good = completed(tmp_path / "good", "own_log", 2, *flags)
    bad = completed(tmp_path / "bad", "own_log", 2, *flags, "--arg=fails_at=3")
    assert_same_bits(bad.tensors(), good.tensors())
    said = "the workload's log failed with ConnectionError: the tracking server is away ("
    assert bad.output.count(said) == 1
    assert "own_parts.py:" in bad.output.partition(said)[2].splitlines()[0]
    assert bad.output.count("log failed") == 1
    assert len(rows(tmp_path / "bad", "step")) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "samples", [11, 4]
)  # the last batch is smaller; two of three ranks have one
def test_metrics_that_are_no_means_are_the_same_on_any_number_of_processes(
    samples: int, tmp_path: Path
) -> None:
    flags = ["--micro-batch-size=3", "--eval-every=3", f"--arg=samples={samples}"]
    told = []
    for processes in (1, 2, 3):
        done = completed(tmp_path / str(processes), "own_metrics", processes, *flags)
        told.append([{**row, "time": 0, "attempt": 0} for row in rows(done.directory, "eval")])
    assert told[0] == told[1] == told[2]
    last = told[0][-1]
    assert [row["step"] for row in told[0]] == [3, 6]
    matrix = torch.tensor(last["confusion"])
    assert matrix.sum() == samples
    assert last["accuracy"] == pytest.approx(float(matrix.diag().sum()) / samples)
    assert last["perplexity"] > 1.0
    assert f"f1 {last['f1']:.4f}" in done.output


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("wide", "metric 'wide' has the shape (1, 3) "),
        ("ragged", "metrics returned rows of other names or shapes for another batch"),
        ("step", "metric 'step': metrics.jsonl uses kind, step"),
        ("time", "metric 'time': metrics.jsonl uses kind, step"),
        ("word", "metric 'f1': finish returned a str, not a number"),
        ("twice", "metric 'accuracy' comes from metrics and from finish"),
        ("none", "finish returned a NoneType, not names with numbers"),
    ],
)
def test_what_finish_cannot_be_given_or_return_is_named(
    kind: str, why: str, tmp_path: Path
) -> None:
    done = trained(tmp_path, "own_metrics", 2, f'--arg=kind="{kind}"', "--micro-batch-size=3")
    assert 1 in done.codes
    assert why in done.status


BEST = ("--eval-every=2", "--best-metric=quality", "--best-mode=max", "--steps=20")
VALUES = [0.3, 0.6, 0.5, None, 0.61, 0.59, 0.61, 0.2, 0.1]


def values(*found: float | None) -> str:
    return f"--arg=values={json.dumps(found or VALUES)}"


def best_of(directory: Path) -> tuple[int, float]:
    found = json.loads((directory / "best.json").read_text())
    assert (directory / found["weights"]).is_file()
    return found["step"], round(found["value"], 6)


def kept(directory: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoints(directory)]


@pytest.mark.slow
def test_the_best_checkpoint_outlives_the_rotation(tmp_path: Path) -> None:
    flags = (*BEST, "--checkpoint-every=1 steps", "--checkpoint-keep=2")
    done = completed(tmp_path, "measured", 2, *flags, values())
    assert best_of(tmp_path) == (10, 0.61)
    first, *newest = kept(tmp_path)  # one that the disk is not ready for is left out
    assert (first, len(newest), newest[-1]) == (10, 2, 20)
    assert "best quality: 0.61, at step 10; the weights: " in done.output
    at_best = torch.load(tmp_path / "step-000000010" / "model.pt", weights_only=True)
    assert at_best["steps"] == 10


def test_the_last_evaluation_may_be_the_best(tmp_path: Path) -> None:
    completed(tmp_path, "measured", 2, *BEST, "--steps=7", values(0.1, 0.2, 0.15, 0.3))
    assert best_of(tmp_path) == (4, 0.2)
    flags = (*BEST, "--checkpoint-keep=1")
    completed(tmp_path, "measured", 1, *flags, "--steps=8", values(0.1, 0.2, 0.15, 0.3))
    assert best_of(tmp_path) == (8, 0.3)
    assert kept(tmp_path) == [8]


def test_less_may_be_better_and_what_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    flags = ("--eval-every=2", "--best-metric=quality", "--steps=9", values(None, 2.0, 1.5, None))
    completed(tmp_path, "measured", 1, *flags)
    assert best_of(tmp_path) == (6, 1.5)


def test_a_best_checkpoint_waits_for_a_slow_disk_and_nobody_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = disk.write

    def slow(*arguments: Any) -> None:
        time.sleep(2.5)
        real(*arguments)

    monkeypatch.setattr(workers, "due", Checkpointer.due)
    monkeypatch.setattr(disk, "write", slow)
    flags = (*BEST, "--steps=5", "--collective-timeout=1s", "--log-every=1")
    completed(tmp_path, "measured", 2, *flags, values(0.1, 0.2))
    assert best_of(tmp_path) == (4, 0.2)
    assert kept(tmp_path) == [2, 4, 5]


EARLY = (*BEST, "--patience=3", "--min-delta=0.05")
REASON = (
    "early stop: quality has not improved by more than 0.05 in 3 evaluations; best: 0.61 at step 10"
)


@pytest.mark.slow
def test_training_ends_when_no_evaluation_is_better_any_more(tmp_path: Path) -> None:
    whole = completed(tmp_path / "whole", "measured", 1, *EARLY, values())
    # 0.6 at step 4 is what counts: 0.61 is the best, but not better by 0.05.
    assert whole.status.split(maxsplit=3)[0::2] == ["done", "10"]
    assert whole.status.split(maxsplit=3)[3].strip() == REASON
    assert f"done at step 10 ({REASON})" in whole.output
    again = completed(tmp_path / "whole", "measured", 2, *EARLY, values())
    assert "resuming at step 10 of 20" in again.output
    assert again.status.split(maxsplit=3)[2:] == ["10", REASON + "\n"]
    assert len(rows(whole.directory, "eval")) == 5
    # With more patience it goes on from there.
    more = completed(tmp_path / "whole", "measured", 2, *BEST, "--patience=5", values())
    assert more.status.split()[2] == "20"


@pytest.mark.slow
@pytest.mark.parametrize("after", [20, 50])
def test_a_kill_changes_neither_the_best_nor_the_end(after: int, tmp_path: Path) -> None:
    whole = completed(tmp_path / "whole", "measured", 1, *EARLY, values())
    halves = killed_and_resumed(tmp_path, "measured", *EARLY, values(), f"--arg=after={after}")
    assert halves.status.split(maxsplit=3)[2:] == whole.status.split(maxsplit=3)[2:]
    assert best_of(halves.directory) == best_of(whole.directory) == (10, 0.61)
    assert_same_bits(halves.tensors(), whole.tensors())


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 5])
def test_a_longer_run_decides_as_the_undisturbed_one(steps: int, tmp_path: Path) -> None:
    whole = completed(tmp_path / "whole", "measured", 1, *EARLY, values())
    completed(tmp_path / "parts", "measured", 2, *EARLY, f"--steps={steps}", values())
    parts = completed(tmp_path / "parts", "measured", 3, *EARLY, values())
    assert parts.status.split(maxsplit=3)[2:] == whole.status.split(maxsplit=3)[2:]
    assert best_of(parts.directory) == best_of(whole.directory)
    assert_same_bits(parts.tensors(), whole.tensors())


@pytest.mark.parametrize(
    ("name", "flags", "why"),
    [
        (
            "measured",
            ["--best-metric=qualty"],
            "no metric 'qualty'; did you mean 'quality'? (it has",
        ),
        ("augmented", ["--best-metric=f1"], "no metric 'f1' (it has loss)"),
        ("own_metrics", ["--best-metric=confusion"], "metric 'confusion' is a list of numbers"),
        ("no_split", ["--best-metric=loss"], "has no eval_dataset; "),
    ],
)
def test_a_metric_that_is_none_is_named_before_the_first_step(
    name: str, flags: list[str], why: str, tmp_path: Path
) -> None:
    more = [values()] if name == "measured" else []
    done = trained(tmp_path, name, 2, "--eval-every=2", *flags, *more)
    assert why in done.status
    assert name == "own_metrics" or not (tmp_path / "metrics.jsonl").exists()


def test_a_dataset_of_batches_needs_no_single_samples(tmp_path: Path) -> None:
    flags = ["--eval-every=3", "--micro-batch-size=2"]
    batches = completed(tmp_path / "batches", "of_batches", 2, *flags)
    samples = completed(tmp_path / "samples", "plain_samples", 1, *flags)
    assert_same_bits(batches.tensors(), samples.tensors())


@pytest.mark.slow
def test_augmentation_in_the_dataset_gives_the_same_bits(tmp_path: Path) -> None:
    flags = ["--eval-every=2", "--micro-batch-size=2"]
    alone = completed(tmp_path / "alone", "augmented", 1, *flags)
    others = [
        completed(tmp_path / "2", "augmented", 2, *flags, "--data-workers=2"),
        completed(tmp_path / "3", "augmented", 3, *flags),
        killed_and_resumed(tmp_path, "augmented", *flags, "--arg=after=13"),
    ]
    for other in others:
        assert_same_bits(other.tensors(), alone.tensors())
        assert losses(other.directory, "eval") == losses(alone.directory, "eval")
    plain = completed(tmp_path / "plain", "own_schedule", 1, *flags)
    assert losses(plain.directory, "eval") != losses(alone.directory, "eval")


def losses(directory: Path, kind: str) -> dict[int, float]:
    """The last of each step, as some are done again after a kill."""
    return {row["step"]: row["loss"] for row in rows(directory, kind)}


WARNING = "warning: one micro-batch gave two results: "


@pytest.mark.parametrize(
    ("kind", "flags", "what"),
    [
        (
            "generator",
            [],
            r"on rank 0, its loss was [\d.]+, then [\d.]+, the gradient of 0.weight \(",
        ),
        pytest.param(
            "attribute",
            [],
            r"on rank 0, its loss was [\d.]+, then [\d.]+, the gradient of net.0.weight",
            marks=pytest.mark.nightly,
        ),
        ("dataset", [], r"on rank 0, the batch\['x'\] was another one when it was read again"),
        pytest.param(
            "dataset",
            ["--data-workers=2"],
            r"on rank 0, the batch\['x'\] was another one",
            marks=pytest.mark.nightly,
        ),
        ("gradient", [], r"on rank 0, the gradient of 0.weight \(the first of 4 parameters\) was"),
        ("rank", [], r"its loss is [\d.]+ on rank 0 and [\d.]+ on rank 1"),
    ],
)
def test_code_that_does_not_repeat_itself_is_named_at_the_start(
    kind: str, flags: list[str], what: str, tmp_path: Path
) -> None:
    done = completed(tmp_path, "impure", 2, *flags, f'--arg=kind="{kind}"')
    assert done.output.count(WARNING) == 1
    assert re.search(re.escape(WARNING) + what, done.output), done.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["exact_on_any_world_size"] is False


@pytest.mark.parametrize(
    ("of", "processes", "flags", "called"),
    [
        ("loss", 3, [], "in loss calls torch.distributed.all_gather while"),
        ("loss", 1, [], "in loss calls torch.distributed.all_gather while"),
        ("dataset", 2, [], "calls torch.distributed.barrier while"),
        ("loss", 2, ["--reduction=allreduce", "--shares=5,7"], "torch.distributed.all_gather"),
    ],
)
def test_a_collective_of_the_users_is_named_at_the_start(
    of: str, processes: int, flags: list[str], called: str, tmp_path: Path
) -> None:
    """With three processes it waited for ever; with two the weights were other ones."""
    done = trained(tmp_path, "meeting", processes, *flags, f'--arg=of="{of}"')
    assert done.status.startswith("failed ")
    assert called in done.status
    assert not (tmp_path / "metrics.jsonl").exists()


def test_with_equal_shares_ddps_own_way_may_have_collectives(tmp_path: Path) -> None:
    completed(tmp_path, "meeting", 2, "--reduction=allreduce")


def test_computing_a_micro_batch_twice_leaves_nothing_behind() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)
            self.register_buffer("late", None)
            self.register_buffer("replaced", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.late, self.replaced = x, x
            result: torch.Tensor = self.norm(x)
            return result

    layer = Layer()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    buffers = dict(layer.named_buffers())
    found = repeats.repeat(layer, lambda x: layer(x).square().mean() * float("nan"), [X, X.clone()])
    assert found.difference == ""  # what is not a number twice is the same
    assert_same_bits(layer.state_dict(), before)
    assert all(buffers[name] is buffer for name, buffer in layer.named_buffers())
    assert layer.late is None
    assert [p.grad for p in layer.parameters()] == [None, None]


@pytest.fixture
def mode() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


def test_an_evaluation_on_a_gpu_may_be_inexact_and_leaves_the_mode_as_it_was(mode: None) -> None:
    modes: list[int] = []

    def metrics(*_: object) -> dict[str, torch.Tensor]:
        modes.append(torch.get_deterministic_debug_mode())
        return {"loss": X.sum()}

    workload: Any = SimpleNamespace(
        model=torch.nn.Linear(8, 1),
        eval_dataset=X,
        collate=torch.stack,
        metrics=metrics,
        finish=None,
    )
    config: Any = SimpleNamespace(micro_batch_size=4, seed=0)
    torch.set_deterministic_debug_mode("error")
    assert evaluate.names(workload, torch.device("cpu"), config) == {"loss"}
    assert (modes, torch.get_deterministic_debug_mode()) == ([1], 2)


UNKNOWN_OPERATION = "pool_backward does not have a deterministic implementation, but"
CUBLAS = (
    "Deterministic behavior was enabled, but this is not deterministic because it uses CuBLAS and"
)


# The refusal on this rank or "", the operation that another rank names, and a part of the warning.
@pytest.mark.parametrize(
    ("refusal", "elsewhere", "named"),
    [
        ("", "", ""),
        (UNKNOWN_OPERATION, "", "of pool_backward on"),
        (CUBLAS, "", "CUBLAS_WORKSPACE_CONFIG"),
        ("", "pool_backward", "of pool_backward on"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_gpu_trains_in_the_mode_error_if_all_operations_have_a_deterministic_version(
    capsys: pytest.CaptureFixture[str],
    mode: None,
    refusal: str,
    elsewhere: str,
    named: str,
    rank: int,
) -> None:
    layer = torch.nn.Linear(8, 1)
    modes: list[int] = []

    def compute(x: torch.Tensor) -> torch.Tensor:
        modes.append(torch.get_deterministic_debug_mode())
        if modes[-1] == 2 and refusal:  # as torch does on a GPU
            raise RuntimeError(refusal)
        loss: torch.Tensor = layer(x).sum()
        return loss

    def all_gather(value: Any) -> list[Any]:
        return [value, elsewhere if isinstance(value, str) else value]

    world: Any = SimpleNamespace(device=torch.device("cuda"), rank=rank, all_gather=all_gather)
    exact = repeats.check(layer, compute, lambda: [X, X.clone()], world)
    said = capsys.readouterr().err
    assert exact == (not named)
    assert modes == ([2, 2] if exact else [2, 1, 1] if refusal else [2, 2, 1, 1])
    assert torch.get_deterministic_debug_mode() == modes[-1]
    assert ("no deterministic version" in said) == (rank == 0 and not exact)
    assert named in said or rank


X = torch.arange(32.0).reshape(4, 8)
