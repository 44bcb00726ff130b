"""Checks of the arguments that a spec's `train.args` give to a built-in workload.

Owns the message "this argument cannot be used". Knows nothing of any model: names and ranges
come from the caller. Every check raises TrainError.
"""

from __future__ import annotations

from typing import Any

from train.base.errors import TrainError


def whole_number(name: str, value: Any, at_least: int = 1) -> None:
    """Check for a whole number >= `at_least`. `true` is not a number here, although it is one in Python."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= at_least
    _require(fits, name, value, f"a whole number of at least {at_least}")


def number(name: str, value: Any, above: float) -> None:
    """Check for a finite number > `above`."""
    fits = _is_number(value) and above < value < float("inf")
    _require(fits, name, value, f"a number above {above:g}")


def probability(name: str, value: Any) -> None:
    """Check that 0 <= value < 1."""
    _require(_is_number(value) and 0 <= value < 1, name, value, "at least 0 and below 1")


def flag(name: str, value: Any) -> None:
    """Check for `true` or `false`."""
    _require(isinstance(value, bool), name, value, "true or false")


def text(name: str, value: Any) -> None:
    """Check for a string that is not empty."""
    _require(isinstance(value, str) and bool(value), name, value, "a string that is not empty")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(is_valid: bool, name: str, value: Any, expected: str) -> None:
    if not is_valid:
        raise TrainError(
            f"train.args.{name}: is {value!r}, but must be {expected}; correct it there"
        )
