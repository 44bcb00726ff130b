"""Whatever a model does that can be trained at all, it trains to the same bits, or is told why not."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.real.jobs import assert_same_bits, checkpoints
from tests.train import odd_models
from tests.train.workers import Run, run
from train.distributed.buffers import Buffers
from train.training import rng
from train.training.data import BatchPlan, SampleOrder

MODELS = Path(__file__).with_name("odd_models.py")


def trained(place: Path, name: str, processes: int, *arguments: str) -> Run:
    return run(place / f"{name}-{processes}", f"{MODELS}:{name}", processes, *arguments)


def first_step(micro_batch_size: int) -> list[list[int]]:
    """The samples of each of its micro-batches."""
    plan = BatchPlan(SampleOrder(64, 0), 0, 12, micro_batch_size)
    return list(plan.indices(range(12 // micro_batch_size), range(1)))


def by_plain_torch(name: str) -> dict[str, torch.Tensor]:
    """One step of the same batch by nothing but torch: close, though not the same bits."""
    rng.set_global(rng.derive(0, rng.INIT), torch.device("cpu"))
    built = getattr(odd_models, name)(None)
    optimizer = torch.optim.SGD(built.model.parameters(), lr=0.05, momentum=0.9)
    # In one batch: accumulated in place, gradients that share memory go wrong in torch itself.
    samples = [i for batch in first_step(1) for i in batch]
    built.loss(built.model, (built.dataset.x[samples], built.dataset.y[samples])).backward()
    optimizer.step()
    state: dict[str, torch.Tensor] = built.model.state_dict()
    return state


@pytest.mark.parametrize("name", ["plain", "channels_last", "transposed", "one_gradient_for_two"])
def test_a_step_is_the_step_that_plain_torch_takes(name: str, tmp_path: Path) -> None:
    expected = by_plain_torch(name)
    for processes in (1, 2):
        done = trained(tmp_path, name, processes, "--steps=1")
        assert set(done.codes) == {0}, done.output
        for key, value in done.tensors().items():
            assert torch.allclose(value, expected[key], atol=1e-5), (key, processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "channels_last",
        pytest.param("transposed", marks=pytest.mark.nightly),
        "one_gradient_for_two",
        pytest.param("tied", marks=pytest.mark.nightly),
        "changed_now_and_then",
        pytest.param("changed_in_evaluation", marks=pytest.mark.nightly),
        pytest.param("table_that_grows", marks=pytest.mark.nightly),
    ],
)
def test_any_number_of_processes_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    alone = trained(tmp_path, name, 1, "--eval-every=2")
    assert alone.codes == [0], alone.output
    assert "gave two results" not in alone.output
    for shares in ("6,6", "1,7,4"):
        processes = 1 + shares.count(",")
        together = trained(tmp_path, name, processes, "--eval-every=2", f"--shares={shares}")
        assert set(together.codes) == {0}, together.output
        assert_same_bits(together.tensors(), alone.tensors())


def test_buffers_become_the_mean_over_the_micro_batches(tmp_path: Path) -> None:
    done = trained(tmp_path, "mixed_buffers", 1, "--micro-batch-size=3", "--steps=1")
    assert done.codes == [0], done.output
    found = done.tensors()
    points = odd_models.Points().x[[i for batch in first_step(3) for i in batch]]
    assert torch.allclose(found["norm.running_mean"], 0.1 * points.mean(0), atol=1e-6)
    assert (found["seen"], found["norm.num_batches_tracked"]) == (12, 4)
    assert torch.equal(found["mask"], torch.full((3, 3), float("-inf")).triu(1))


@pytest.mark.slow
def test_buffers_of_all_kinds_have_the_same_bits_on_any_number_of_processes(tmp_path: Path) -> None:
    alone = trained(tmp_path, "mixed_buffers", 1, "--micro-batch-size=2")
    assert alone.codes == [0], alone.output
    for shares in ("2,4", "1,2,3", "2,2,1,1"):
        processes = 1 + shares.count(",")
        size = ("--micro-batch-size=2", f"--shares={shares}")
        together = trained(tmp_path, "mixed_buffers", processes, *size)
        assert set(together.codes) == {0}, together.output
        assert_same_bits(together.tensors(), alone.tensors())


@pytest.mark.slow
def test_many_buffers_cost_no_more_than_a_look_at_each() -> None:
    """3000 buffers took 0.14 s a micro-batch when each was looked for in a list of them all."""
    model = torch.nn.Sequential(*(torch.nn.BatchNorm1d(1) for _ in range(1000)))
    buffers = Buffers(model, Alone(), range(4), 4)
    times = []
    for _ in range(2):
        buffers.begin()
        for v in range(4):
            buffers.restore()
            model(torch.ones(2, 1))
            began = time.perf_counter()
            buffers._newly_changed()
            times.append(time.perf_counter() - began)
            buffers.record_changes(v == 3)
        buffers.combine(buffers.changed())
    assert min(times[4:]) < 0.05


class Alone:
    """Reduces for one process."""

    def reduce(self, rows: list[torch.Tensor], last: torch.Tensor) -> Any:
        return SimpleNamespace(wait=lambda: torch.stack(rows).sum(0))


@pytest.mark.parametrize("reduction", ["tree", "allreduce"])
def test_evaluations_leave_no_trace_in_the_weights(reduction: str, tmp_path: Path) -> None:
    flags = (f"--reduction={reduction}", "--eval-every=2")
    often = trained(tmp_path / "often", "changed_in_evaluation", 1, *flags)
    never = trained(tmp_path / "never", "changed_in_evaluation", 1, flags[0])
    assert often.codes == never.codes == [0], often.output + never.output
    assert_same_bits(often.tensors(), never.tensors())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch_norm_computed_twice", "one_module_two_names"])
def test_batch_norm_in_odd_places_gives_the_same_bits_and_resumes(
    name: str, tmp_path: Path
) -> None:
    size = "--micro-batch-size=3"
    alone = trained(tmp_path, name, 1, size)
    assert alone.codes == [0], alone.output
    together = trained(tmp_path, name, 2, size, "--steps=3")
    assert set(together.codes) == {0}, together.output
    together = trained(tmp_path, name, 2, size)
    assert "resuming at step 3 of 6" in together.output
    assert_same_bits(together.tensors(), alone.tensors())


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("not_saved", (), "'n' of Functional changes during training, but it is not saved"),
        ("replaced", (), "buffer 'mean' of Functional was replaced by a new tensor"),
        ("flag", (), "'on' of Functional changes during training, but it is of type torch.bool"),
        ("created_late", (), "'mean' of Functional was created by the forward pass"),
        ("from_infinity", (), "'high' of Functional changes during training, but it starts from"),
        ("sparse", (), "(EmbeddingBag) has sparse gradients"),
        ("unused", ("--arg=after=0",), "no gradient to reduce in step 1 for extra"),
        ("unused", ("--arg=after=71",), "no gradient to reduce in step 6 for extra"),
        ("metric", ('--arg=kind="vector"',), "metric 'accuracy' has the shape (2,)"),
        ("metric", ('--arg=kind="word"',), "metric 'accuracy' is a str, not a scalar"),
    ],
)
def test_what_cannot_be_trained_or_measured_is_named(
    name: str, arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    done = trained(tmp_path, name, 1, *arguments)
    assert done.codes == [1]
    assert why in done.output
    assert done.status.startswith("failed ")
    assert why in done.status


def test_a_step_with_an_unreduced_parameter_is_never_committed(tmp_path: Path) -> None:
    # Two passes more than in three steps: those of the micro-batch that is computed twice at the start.
    done = trained(tmp_path, "unused", 1, "--arg=after=38", "--checkpoint-every=1 steps")
    assert "for extra; set train.find_unused_parameters" in done.output
    # Or one before it: while a checkpoint is being written, none is due.
    assert checkpoints(done.directory)[-1].name <= "step-000000003"


@pytest.mark.slow
def test_a_layer_left_out_now_and_then_gets_the_same_gradient_everywhere(tmp_path: Path) -> None:
    flag = "--find-unused-parameters"
    alone = trained(tmp_path, "branching", 1, flag)
    assert alone.codes == [0], alone.output
    for shares in ("6,6", "1,7,4"):
        together = trained(tmp_path, "branching", 1 + shares.count(","), flag, f"--shares={shares}")
        assert set(together.codes) == {0}, together.output
        assert_same_bits(together.tensors(), alone.tensors())


def test_a_fault_in_the_last_evaluation_does_not_cost_the_training(tmp_path: Path) -> None:
    done = trained(tmp_path, "metric", 2, '--arg=kind="vector"')
    assert done.codes != [0, 0]
    assert [p.name for p in checkpoints(done.directory)] == ["step-000000006"]


def test_a_fault_on_one_rank_only_is_the_reason_the_status_gives(tmp_path: Path) -> None:
    done = trained(tmp_path, "bad_on_one_rank", 2)
    assert done.codes[1] == 1
    assert "loss returned list; " in done.status


def test_epochs_are_counted_exactly(tmp_path: Path) -> None:
    size = ("--epochs=1.1", "--global-batch-size=10", "--micro-batch-size=5")
    done = run(tmp_path, f"{MODELS}:hundred_samples", 1, *size)
    assert done.codes == [0], done.output
    assert [p.name for p in checkpoints(done.directory)] == ["step-000000011"]
