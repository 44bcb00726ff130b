"""The kinds of value that are times or numbers of steps, with their units: 1h30min, 2-00:00:00, 200 steps. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ddpgen.spec.fields import Leaf, Refused, decimal, refuse_base_60, refuse_long, show
from ddpgen.spec.yamltree import Scalar

_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
# Also a pattern in the JSON Schema.
_TIME = "([0-9]+(\\.[0-9]+)?\\s*(ms|s|min|h|d)\\s*)+"
_DURATION = re.compile(_TIME, re.ASCII)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|h|d)", re.ASCII)
_UNIT_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # of a clock time
_STEPS = re.compile(r"([0-9][0-9_]{0,17})\s*steps?", re.ASCII)
_CLOCK_TIME = "[0-9]+-[0-9]+(:[0-9]+){0,2}|[0-9]+:[0-9]+:[0-9]+"
_CLOCK = re.compile(
    r"(?:(?P<d>[0-9]{1,3})-)?(?P<h>[0-9]{1,4})(?::(?P<m>[0-5]?[0-9])(?::(?P<s>[0-5]?[0-9]))?)?"
)


class Period(NamedTuple):
    """A period in steps or in seconds; exactly one of the two is set."""

    steps: int | None
    seconds: float | None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps is not None else seconds(self.seconds or 0)


class Span(NamedTuple):
    """A range of steps, the first and the last included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


class Duration(Leaf):
    """A length of time with its unit: 90s, 10min, 2h, 1h30min. Kept as seconds."""

    sample = 60.0
    allowed = 'a time with its unit, like "90s", "10min" or "1h30min"'
    form: Mapping[str, Any] = {"type": "string", "pattern": f"^{_TIME}$"}

    def parse(self, raw: Scalar) -> float:
        return duration(raw, self.allowed)

    def written(self, value: float) -> str:
        return f"{value / 60:g}min" if value % 60 == 0 else f"{value:g}s"


class ClockTime(Leaf):
    """A length of time with its unit or in a scheduler's form: 2h, 12:00:00, 2-00:00:00. Kept as seconds."""

    sample = 3600.0
    allowed = 'a time like "2h", "12:00:00" or "2-00:00:00"'
    form: Mapping[str, Any] = {"type": "string", "pattern": f"^({_CLOCK_TIME}|{_TIME})$"}

    def parse(self, raw: Scalar) -> float:
        refuse_long(raw, self.allowed)
        match = _CLOCK.fullmatch(raw.text)
        if match is None or not (match["d"] or match["m"]):
            return duration(raw, self.allowed, 1.0)
        if not match["d"] and not match["s"]:
            # Slurm reads 12:30 as minutes and seconds, people read it as hours and minutes.
            remedy = f'write "{match["h"]}h{match["m"]}min" or "{match["h"]}min{match["m"]}s"'
            raise Refused(f"{raw.text} may be hours and minutes, or minutes and seconds", remedy)
        value = sum(int(match[unit] or 0) * _UNIT_S[unit] for unit in "dhms")
        return _in_range(raw, value, 1.0)


class Steps(Leaf):
    """A period in steps, unit included: "100 steps"."""

    sample = 0
    allowed = 'a number of steps with the unit, like "100 steps"'
    form: Mapping[str, Any] = {"type": "string", "pattern": "^[0-9_]+\\s*steps?$"}

    def __init__(self, low: int = 0):
        self.low = low

    def parse(self, raw: Scalar) -> int:
        refuse_long(raw, self.allowed)
        if raw.tag == "int" and raw.text.isdigit():
            number = raw.text if int(raw.text) >= self.low else "10"
            raise Refused(f"{raw.text} has no unit", f'write "{number} steps"')
        steps = _steps(raw.text)
        if steps is None or steps < self.low:
            raise Refused(f"{show(raw.text)} is no number of steps", f"write {self.allowed}")
        return steps

    def written(self, value: int) -> str:
        return f"{value} steps"


class StepSpan(Leaf):
    """A range of steps: 20..25."""

    sample = Span(1, 1)
    allowed = "a range of steps, like 20..25"
    form: Mapping[str, Any] = {"type": "string", "pattern": "^[0-9]+\\s*[.][.]\\s*[0-9]+$"}

    def parse(self, raw: Scalar) -> Span:
        refuse_long(raw, self.allowed)
        match = re.fullmatch(r"([0-9]{1,18})\s*\.\.\s*([0-9]{1,18})", raw.text, re.ASCII)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise Refused(f"{show(raw.text)} is no range of steps", f"write {self.allowed}")
        return Span(int(match[1]), int(match[2]))

    def dump(self, value: Span) -> list[int]:
        return list(value)

    def load(self, stored: Any) -> Span:
        return Span(*stored)


class StepsOrDuration(Leaf):
    """A period in steps or in time."""

    sample = Period(1, None)
    allowed = 'a period like "200 steps" or "10min"'
    form: Mapping[str, Any] = {"type": "string", "pattern": f"^([0-9_]+\\s*steps?|{_TIME})$"}

    def parse(self, raw: Scalar) -> Period:
        refuse_long(raw, self.allowed)
        if (steps := _steps(raw.text)) is not None:
            if not steps:
                raise Refused("0 steps is no period", "write 1 step or more")
            return Period(steps, None)
        if raw.tag == "int" and raw.text.isdigit():
            text = raw.text if int(raw.text) else "5"
            remedy = f'write "{text} steps", "{text}s" or "{text}min"'
            raise Refused(f"{raw.text} has no unit", remedy)
        return Period(None, duration(raw, self.allowed))

    def dump(self, value: Period) -> str:
        return str(value)

    def load(self, stored: Any) -> Any:
        return self.parse_text(str(stored))

    def written(self, value: Period) -> str:
        return str(value) if value.seconds is None else Duration().written(value.seconds)


def _steps(text: str) -> int | None:
    """Return the number in a text like 200 steps or 1_000 steps; None for any other text."""
    match = _STEPS.fullmatch(text)
    return int(match[1].replace("_", "")) if match else None


def duration(raw: Scalar, allowed: str, minimum: float = 0.001) -> float:
    """Return the seconds in a text like 1h30min, no finer than the options of train allow. Raises Refused."""
    refuse_long(raw, allowed)
    refuse_base_60(raw, 'write the unit, like "2min" or "2h"')
    if raw.text and (number := decimal(raw.text)) is not None:
        text = raw.text if number > 0 else "5"  # with a unit, 0 would be out of range
        remedy = f'write "{text}s", "{text}min" or "{text}h"'
        raise Refused(f"{raw.text} has no unit", remedy)
    if not _DURATION.fullmatch(raw.text):
        raise Refused(f"{show(raw.text)} is no length of time", f"write {allowed}")
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(raw.text))
    return _in_range(raw, round(total, 6), minimum)


def _in_range(raw: Scalar, value: float, minimum: float) -> float:
    if not minimum <= value <= 366 * 86400:
        shortest = "1s" if minimum == 1 else "1ms"
        raise Refused(f"{show(raw.text)} is out of range", f"write a time from {shortest} to 366d")
    return value


def seconds(value: float) -> str:
    """Return a time as text for an argv: 600s, 0.5s."""
    return f"{int(value)}s" if value == int(value) else f"{value!r}s"
