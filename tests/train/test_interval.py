"""How far apart checkpoints are, where something interrupts the training every now and then."""

from __future__ import annotations

import argparse
import math

import pytest

from train.checkpoint.interval import FIRST_S, Interval, best_interval
from train.config import Period, period


@pytest.mark.parametrize(
    ("cost", "mean", "interval"),
    [
        (10.0, 7200.0, math.sqrt(2 * 10 * 7200)),  # Young
        (100.0, 120.0, 200.0),  # slower than it is interrupted: half of the time is for checkpoints
        (0.5, 100.0, 10.0),
        (40.0, 100.0, 89.44271909999159),
        (49.0, 50.0, 98.0),
        (30.0, 50.0, 60.0),
        (20.0, 50.0, math.sqrt(2000.0)),
        (0.0, 7200.0, 0.0),
    ],
)
def test_youngs_interval_and_its_bounds(cost: float, mean: float, interval: float) -> None:
    assert best_interval(cost, mean) == pytest.approx(interval)


def test_it_follows_what_a_checkpoint_takes_and_says_so_when_it_matters() -> None:
    said: list[str] = []
    interval = Interval(7200.0, said.append)
    assert interval.seconds == FIRST_S
    interval.measured(10.0)
    assert interval.seconds == pytest.approx(379.47, abs=0.01)
    interval.measured(12.0)
    assert interval.seconds == pytest.approx(415.69, abs=0.01)
    interval.measured(40.0)
    assert said == [
        "a checkpoint takes 10.0 s and an interruption is expected every 7200 s: the next ones are 379 s apart",
        "a checkpoint takes 40.0 s and an interruption is expected every 7200 s: the next ones are 759 s apart",
    ]


def test_interruptions_that_come_more_often_than_the_first_checkpoint_would() -> None:
    assert Interval(20.0, print).seconds == 20.0


def test_auto_is_a_period_of_the_command_line() -> None:
    assert period("auto:2h") == Period(mean_s=7200.0)
    assert period("auto:1h30min") == Period(mean_s=5400.0)
    for text in ("auto:", "auto", "auto:200 steps", "auto:0s"):
        with pytest.raises(argparse.ArgumentTypeError):
            period(text)
