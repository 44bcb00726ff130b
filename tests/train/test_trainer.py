"""How a training comes to its end: by its steps, or by what the ranks agree on after one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.train.workers import run
from train.distributed.gradients import AllReduceGradients, TreeGradients
from train.distributed.process_group import World
from train.distributed.step_exchange import StepResult
from train.distributed.timing import StepClock
from train.health.phase import (
    BACKWARD,
    BUFFERS,
    DATA,
    EXCHANGE,
    FORWARD,
    NOW,
    SNAPSHOT,
    UPDATE,
)  # fmt: skip
from train.trainer import Outcome, Trainer


class Scripted(Trainer):
    """Four steps that nothing is computed in: after each it is known whether a rank wants to end."""

    def __init__(
        self, stop: int | None = None, leave: int | None = None, until: int | None = None
    ) -> None:
        self.ends: Any = stop, leave
        self.config: Any = SimpleNamespace(eval_every=0, until=until)
        self.state: Any = SimpleNamespace(step=0, selection=SimpleNamespace(metric="", verdict=""))
        self.last_step = 4
        self.learning_rate: Any = SimpleNamespace(set_for=lambda step: 0.1)
        self.gradients: Any = SimpleNamespace(ddp=SimpleNamespace(train=list))
        self.seen: list[tuple[int, float]] = []
        self.shares: Any = SimpleNamespace(stepped=lambda step, times: False)
        self.records: Any = SimpleNamespace(
            stepped=lambda state, result, lr: self.seen.append((state.step, result.loss)),
            commit=lambda state, due, is_best: None,
        )

    def train_step(self, batches: Iterator[Any]) -> StepResult:
        now = self.state.step + 1
        stop, leave = self.ends
        return StepResult(float(now), now == stop, now == leave, False, [], [])


@pytest.mark.parametrize(
    ("stop", "leave", "outcome", "steps"),
    [
        (None, None, Outcome.DONE, 4),
        (2, None, Outcome.STOPPED, 2),
        (None, 3, Outcome.LEFT, 3),
        (2, 2, Outcome.STOPPED, 2),  # a stop is a stop, whoever else is about to leave
        (3, 2, Outcome.LEFT, 2),
        (4, None, Outcome.DONE, 4),  # after the last step there is nothing left to stop
        (None, 4, Outcome.DONE, 4),
    ],
)
def test_the_end(stop: int | None, leave: int | None, outcome: Outcome, steps: int) -> None:
    trainer = Scripted(stop, leave)
    assert trainer.take_steps(iter(())) is outcome
    assert trainer.seen == [(i, float(i)) for i in range(1, steps + 1)], (
        "a step that is done counts"
    )


@pytest.mark.parametrize(
    ("until", "at", "outcome", "steps"),
    [(3, 0, Outcome.STOPPED, 3), (4, 0, Outcome.DONE, 4), (9, 0, Outcome.DONE, 4), (2, 3, Outcome.STOPPED, 3), (2, 4, Outcome.DONE, 4)],
)  # fmt: skip
def test_until_is_a_stop_after_that_step(until: int, at: int, outcome: Outcome, steps: int) -> None:
    trainer = Scripted(until=until)
    trainer.state.step = at
    assert (trainer.take_steps(iter(())), trainer.state.step) == (outcome, steps)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_step_says_what_it_does_and_when_it_waits(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, bool]] = []

    def says(*arguments: Any) -> Any:
        said.append((NOW.name, NOW.waits > 0))
        loss = {"detach": int, "is_cuda": on_gpu}
        return SimpleNamespace(
            **loss, stop_requested=False, leave_requested=False, loss=0.0, changed_buffers=[]
        )

    monkeypatch.setattr(NOW, "name", "before")
    trainer: Any = Scripted()
    trainer.shares = SimpleNamespace(own=range(1), times_due=lambda step: False)
    trainer.config.elastic = False
    trainer.clock = StepClock()
    trainer.stop = SimpleNamespace(by_file=False, by_signal=False)
    trainer.gradients = SimpleNamespace(
        begin=list, add_micro_batch=list, missing=list, ddp=SimpleNamespace(no_sync=nullcontext)
    )
    trainer.buffers = SimpleNamespace(begin=list, record_changes=bool, changed=list, combine=says)
    trainer.exchange = SimpleNamespace(add_losses=bool, send=says, receive=says)
    trainer.records = SimpleNamespace(
        checkpointer=SimpleNamespace(wait_copied=says), due=lambda step: False
    )
    trainer._forward = trainer._backward = trainer._update = says
    Trainer.train_step(trainer, (says() for _ in range(1)))
    # A GPU is given its backward pass before anything waits for it.
    last = (
        [(BACKWARD, False), (EXCHANGE, False)] if on_gpu else [(EXCHANGE, False), (BACKWARD, False)]
    )
    assert said == [
        (DATA, False), (FORWARD, False), *last, (SNAPSHOT, False),
        (UPDATE, False), (EXCHANGE, True), (BUFFERS, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by_file", "by_signal", "elastic", "due", "stop", "leave"),
    [
        (False, False, False, True, False, False),
        (True, False, False, False, True, False),
        (False, True, False, False, True, False),
        (False, True, True, False, False, True),  # the others go on without this one
        (True, True, True, True, True, True),
    ],
)
def test_what_a_rank_is_asked_to_do(
    by_file: bool, by_signal: bool, elastic: bool, due: bool, stop: bool, leave: bool
) -> None:
    trainer: Any = Scripted()
    trainer.records.due = lambda step: due and step == 1
    trainer.config.elastic = elastic
    trainer.stop = SimpleNamespace(by_file=by_file, by_signal=by_signal)
    assert trainer._requests() == (stop, leave, due)


@pytest.mark.parametrize("kind", [TreeGradients, AllReduceGradients])
def test_groups_are_not_freed_at_the_end(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To free those of gloo may take for ever (process_group.leave)."""
    for holder in (kind, World):
        monkeypatch.setattr(holder, "__del__", lambda _: print("GROUPS GONE"), raising=False)
    reduction = "tree" if kind is TreeGradients else "allreduce"
    done = run(tmp_path, "toy", 2, f"--reduction={reduction}")
    assert done.codes == [0, 0], done.output
    assert "GROUPS GONE" not in done.output
