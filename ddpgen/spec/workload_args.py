"""What `train.args` may hold for a built-in workload: its names, and the kind of each value. Pure.

The table repeats what the `build` functions of train/workloads/ declare, because a render imports
neither them nor torch; a test keeps the two equal. What else a workload asks of its arguments, it
says itself when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict


class Kind(NamedTuple):
    """A kind of value, as train/workloads/arguments.py names and words it."""

    name: str
    wanted: str
    fits: Callable[[Any], bool]
    null: bool = False


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def whole(at_least: int = 1) -> Kind:
    """A whole number >= `at_least`."""
    wanted = f"a whole number of at least {at_least}"
    return Kind("whole", wanted, lambda value: _is_whole(value) and value >= at_least)


POSITIVE = Kind("number", "a number above 0", lambda value: _is_number(value) and 0 < value < inf)
PROBABILITY = Kind(
    "probability", "at least 0 and below 1", lambda value: _is_number(value) and 0 <= value < 1
)
FLAG = Kind("flag", "true or false", lambda value: isinstance(value, bool))
TEXT = Kind(
    "text", "a string that is not empty", lambda value: isinstance(value, str) and value != ""
)
TEXT_OR_NULL = TEXT._replace(null=True)
ANYTHING = Kind("anything", "", lambda value: True, null=True)

ARGUMENTS: Mapping[str, Mapping[str, Kind]] = {
    "gpt": {
        "depth": whole(),
        "width": whole(),
        "heads": whole(),
        "seq_len": whole(),
        "dropout": PROBABILITY,
        "tie_weights": FLAG,
        "text": TEXT_OR_NULL,
        "max_bytes": whole(),
        "holdout": PROBABILITY,
    },
    "mnist": {
        "data_dir": TEXT,
        "url": TEXT,
        "sha256": ANYTHING,
        "download_timeout": POSITIVE,
        "channels": whole(),
        "hidden": whole(),
        "classes": whole(at_least=2),
        "dropout": PROBABILITY,
        "batch_norm": FLAG,
    },
    "toy": {
        "features": whole(),
        "classes": whole(at_least=2),
        "hidden": whole(),
        "samples": whole(),
        "eval_samples": whole(),
        "dropout": PROBABILITY,
        "batch_norm": FLAG,
    },
}


def workload_arguments(job: JobSpec) -> Iterator[Conflict]:
    """What a built-in workload would refuse of its `train.args`."""
    known = ARGUMENTS.get(job.train.workload or "")
    if known is None:
        return
    for name, value in job.train.args.items():
        field = f"train.args.{name}"
        kind = known.get(name)
        if kind is None:
            what = f"is unknown to workload {job.train.workload}"
            yield Conflict((field, "train.args"), what, did_you_mean(name, tuple(known)))
        elif not (kind.null and value is None) and not kind.fits(value):
            what = f"is {_show(value)}, but must be {kind.wanted}"
            yield Conflict((field,), what, "correct it here")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return show(value) if isinstance(value, str) else str(value)
