"""Checks of what a spec's `train.args` hand to a built-in workload.

Owns the wording of "this argument cannot be used". Knows nothing of any model: names and ranges
come from the caller. Every check returns the value it was given or raises TrainError.
"""

from __future__ import annotations

from typing import Any

from train.errors import TrainError


def whole(name: str, value: Any, at_least: int = 1) -> int:
    """A whole number >= `at_least`. `true` is not a number here, though Python thinks so."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise _refused(name, value, f"a whole number of at least {at_least}")
    return value


def number(name: str, value: Any, above: float) -> float:
    """A finite number > `above`."""
    if _is_number(value) and above < value < float("inf"):
        return float(value)
    raise _refused(name, value, f"a number above {above:g}")


def probability(name: str, value: Any) -> float:
    """0 <= value < 1."""
    if _is_number(value) and 0 <= value < 1:
        return float(value)
    raise _refused(name, value, "at least 0 and below 1")


def flag(name: str, value: Any) -> bool:
    """`true` or `false`."""
    if isinstance(value, bool):
        return value
    raise _refused(name, value, "true or false")


def text(name: str, value: Any) -> str:
    """A string that is not empty."""
    if isinstance(value, str) and value:
        return value
    raise _refused(name, value, "a string that is not empty")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refused(name: str, value: Any, wanted: str) -> TrainError:
    return TrainError(f"train.args.{name}: is {value!r}, but must be {wanted}; correct it there")
