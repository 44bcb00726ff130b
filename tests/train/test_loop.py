"""How a training comes to its end: by its steps, or by what the ranks agree on after one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from train import loop
from train.control import Decision
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
from train.loop import Outcome, train, train_step


class Books:
    """A watcher that only counts."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def stepped(self, state: Any, loss: float, lr: float) -> None:
        self.seen.append((state.step, loss))


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
def test_the_end(
    monkeypatch: pytest.MonkeyPatch,
    stop: int | None,
    leave: int | None,
    outcome: Outcome,
    steps: int,
) -> None:
    def step(job: Any, state: Any, machinery: Any, batches: Any, watcher: Any) -> Decision:
        now = state.step + 1
        return Decision(float(now), now == stop, now == leave, [])

    monkeypatch.setattr(loop, "train_step", step)
    job: Any = SimpleNamespace(last_step=4, learning_rate=SimpleNamespace(set_for=lambda step: 0.1))
    machinery: Any = SimpleNamespace(gradients=SimpleNamespace(ddp=SimpleNamespace(train=list)))
    state: Any = SimpleNamespace(step=0)
    books: Any = Books()
    assert train(job, state, machinery, iter(()), books) is outcome
    assert books.seen == [(i, float(i)) for i in range(1, steps + 1)], "a step that is done counts"


def test_a_step_says_what_it_does_and_when_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, bool]] = []

    def says(*arguments: Any) -> Any:
        said.append((NOW.name, NOW.waits > 0))
        return SimpleNamespace(detach=int, stop=False, leave=False, loss=0.0, changed_buffers=[])

    for name in ("_forward", "_backward", "_update"):
        monkeypatch.setattr(loop, name, says)
    monkeypatch.setattr(NOW, "name", "before")
    machinery: Any = SimpleNamespace(
        gradients=SimpleNamespace(
            begin=list, keep=list, missing=list, ddp=SimpleNamespace(no_sync=nullcontext)
        ),
        buffers=SimpleNamespace(begin=list, take=bool, changed=list, combine=says),
        control=SimpleNamespace(ask=says, answer=says),
    )
    watcher: Any = SimpleNamespace(stop_requested=bool, leave_requested=bool, state_may_change=says)
    job: Any = SimpleNamespace(mine=range(1), config=None)
    batches = (says() for _ in range(1))
    train_step(job, SimpleNamespace(step=0), machinery, batches, watcher)  # type: ignore[arg-type]
    assert said == [
        (DATA, False), (FORWARD, False), (EXCHANGE, False), (BACKWARD, False), (SNAPSHOT, False),
        (UPDATE, False), (EXCHANGE, True), (BUFFERS, True),
    ]  # fmt: skip
