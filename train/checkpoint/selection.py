"""The best evaluation so far, and the early stop when none has been better for long.

Owns the comparison and its state. Every rank gets the same metrics and so decides the same. A checkpoint holds the
state, so a resumed run decides the same as the undisturbed one. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from train.base.errors import TrainError
from train.base.words import did_you_mean
from train.run.config import RunConfig

_STATE = ("metric", "mode", "evaluated", "best_step", "best", "reference", "waited")


class Selection:
    """The best evaluation and the count for early stop.

    `evaluated`: the step of the last evaluation. `best`, `best_step`: the best value and its step. `reference`: the
    value on which an evaluation has to improve by more than `min_delta`. `waited`: the number of evaluations in a row
    that have not improved on it.
    """

    def __init__(self, config: RunConfig) -> None:
        self.metric, self.mode = config.best_metric, config.best_mode
        self._patience, self._min_delta = config.patience, config.min_delta
        self.evaluated = 0
        self.best_step = 0
        self.best: float | None = None
        self.reference: float | None = None
        self.waited = 0

    def check(self, has_split: bool, names: Iterable[str] | None) -> None:
        """Before the first step, raise TrainError unless the evaluation gives this metric.

        `names`: the names of the metrics, or None if they are not known yet.
        """
        if not has_split:
            raise TrainError(
                f"train.best asks for the best {self.metric}, and the workload has no eval_dataset; give "
                "it one, or take train.best out"
            )
        if names is not None and self.metric not in names:
            meant = did_you_mean(self.metric, names)
            raise TrainError(
                f"train.best: the workload has no metric {self.metric!r}{meant} (it has "
                f"{', '.join(sorted(names))})"
            )

    def observe(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Take in the evaluation of `step`, and return whether it is the best so far. Raises TrainError."""
        self.evaluated = step
        if not self.metric:
            return False
        value = metrics.get(self.metric)
        if not isinstance(value, float):
            got = "is missing" if value is None else "is a list of numbers"
            raise TrainError(
                f"train.best: metric {self.metric!r} {got} in the evaluation of step {step}"
            )
        if self._improves(value, self.reference, self._min_delta):
            self.reference, self.waited = value, 0
        else:
            self.waited += 1
        if not self._improves(value, self.best, 0.0):
            return False
        self.best, self.best_step = value, step
        return True

    def _improves(self, value: float, reference: float | None, margin: float) -> bool:
        if reference is None:
            return value == value  # any number is an improvement on no value, NaN is not
        return value > reference + margin if self.mode == "max" else value < reference - margin

    @property
    def verdict(self) -> str:
        """Why training ends now; "" while it goes on."""
        if not self._patience or self.waited < self._patience:
            return ""
        at_best = (
            "never a number" if self.best is None else f"{self.best:.6g} at step {self.best_step}"
        )
        by = f" by more than {self._min_delta:g}" if self._min_delta else ""
        return (
            f"early stop: {self.metric} has not improved{by} in {self.waited} evaluations; "
            f"best: {at_best}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, unless it belongs to another metric or mode."""
        if (state["metric"], state["mode"]) == (self.metric, self.mode):
            for name in _STATE:
                setattr(self, name, state[name])
