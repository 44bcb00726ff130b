"""Specs drawn by Hypothesis from the declared fields: values that fit a field, and some that do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from ddpgen.spec.fields import REQUIRED, Choice, Flag, Kind, Number, Text, WholeNumber
from ddpgen.spec.groups import Arguments, Group, Groups, Pairs, Texts
from ddpgen.spec.job import JobSpec
from ddpgen.tiers.registry import MODELS
from ddpgen.tiers.sky.extra import FREE, RESOURCES, TOP, Extra, Form

Drawn = st.SearchStrategy[Any]

SCALARS: Drawn = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING: Drawn = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(JobSpec.__dataclass_fields__)), inner, max_size=3)
    ),
    max_leaves=8,
)
# Times, periods and ranges, for the kinds of times.py.
_WITH_UNITS = ("90s", "1h30min", "2-00:00:00", "12:00:00", "200 steps", "1 step", "20..25", "2..4")


def job(sound: Mapping[str, Any]) -> Drawn:
    """A spec, for one tier or several: a few fields laid over those of `sound`."""
    overlays = {tier: group(model) for tier, model in MODELS.items()}
    targets = st.fixed_dictionaries({}, optional={t: g | st.none() for t, g in overlays.items()})
    return st.builds(_laid_over, st.just(sound), group(JobSpec), targets)


def _laid_over(sound: Mapping[str, Any], top: dict[str, Any], targets: Any) -> dict[str, Any]:
    train = top["train"]
    if isinstance(train, dict):
        train = {**sound["train"], **train}
    return {**sound, **top, "train": train, **({"targets": targets} if targets else {})}


# The fields that the overlay of each tier needs.
_SOUND_TIERS: Mapping[str, Any] = {
    "local": {}, "hosts": {"hosts": ["first", "second"]}, "slurm": {}, "sky": {"bucket": "s3://my-bucket"},
}  # fmt: skip


def one_field(sound: Mapping[str, Any]) -> Drawn:
    """The spec `sound` for every tier, with a fitting value in one field of the job or of a tier, at any depth."""
    targets = st.sampled_from(sorted(MODELS)).flatmap(
        lambda tier: _one(MODELS[tier]).map(lambda field: {"targets": {tier: field}})
    )
    whole = {**sound, "targets": _SOUND_TIERS}
    return (_one(JobSpec) | targets).map(lambda field: _merged(whole, field))


def _one(model: Any) -> Drawn:
    """One field of `model`, and those that it needs."""
    kinds = Group(model).field_kinds

    def entry(name: str) -> Drawn:
        kind = kinds[name]
        if not isinstance(kind, Group):
            return _fitting(kind).map(lambda value: {name: value})
        needed = [] if name == "train" else kind.needed
        drawn = {n: _fitting(kind.field_kinds[n]) for n in needed}
        inner = st.tuples(st.fixed_dictionaries(drawn), _one(kind.model))
        return inner.map(lambda parts: {name: {**parts[0], **parts[1]}})

    return st.sampled_from(sorted(kinds)).flatmap(entry)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for name in above:
        if isinstance(below.get(name), dict) and isinstance(above[name], dict):
            merged[name] = _merged(below[name], above[name])
    return merged


def group(model: Any) -> Drawn:
    """A few fields of `model`, and those that it needs."""
    kinds = {field.name: field.metadata["kind"] for field in Group(model).fields}
    needed = {field.name for field in Group(model).fields if field.default is REQUIRED}
    names = st.sets(st.sampled_from(sorted(kinds)), max_size=3)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({n: value(kinds[n]) for n in sorted(chosen | needed)})
    )


def value(kind: Kind) -> Drawn:
    """Mostly one that fits `kind`."""
    return st.one_of(*[_fitting(kind)] * 4, ANYTHING)


def _fitting(kind: Kind) -> Drawn:
    if isinstance(kind, Group):
        whole = st.deferred(lambda: group(kind.model))
        if not kind.shorthand:
            return whole
        return whole | _fitting(kind.field_kinds[kind.shorthand])
    if isinstance(kind, Groups):
        return st.lists(_fitting(kind.group), max_size=2)
    if isinstance(kind, Texts):
        return _fitting(kind.leaf) | st.lists(_fitting(kind.leaf), max_size=2)
    if isinstance(kind, Arguments):
        return st.lists(_fitting(kind.leaf), max_size=2) | _pairs(kind, ANYTHING)
    if isinstance(kind, Pairs):
        return _pairs(kind, _fitting(kind.leaf))
    if isinstance(kind, Extra):
        resources = _optional({name: _in_form(form) for name, form in FREE[RESOURCES].items()})
        keys = {name: _in_form(form) for name, form in FREE[TOP].items()}
        return _optional(keys | {RESOURCES: resources}) | st.dictionaries(
            st.sampled_from(sorted(FREE[TOP])), ANYTHING, max_size=3
        )
    return _scalar(kind)


def _optional(values: Mapping[str, Drawn]) -> Drawn:
    names = st.sets(st.sampled_from(sorted(values)), max_size=3)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({k: values[k] for k in sorted(chosen)})
    )


def _in_form(form: Form) -> Drawn:
    """Values of a key of SkyPilot, most of which it takes."""
    by_type = {
        "bool": st.booleans(),
        "float": st.floats(0, 9, width=16),
        "int": st.integers(0, 2000),
        "list": st.lists(_matching(form.pattern) | ANYTHING, max_size=2),
        "map": st.dictionaries(st.text(max_size=4), ANYTHING, max_size=2),
        "null": st.none(),
        "str": _matching(form.pattern),
    }
    return st.one_of([by_type[name] for name in form.types])


def _scalar(kind: Kind) -> Drawn:
    if isinstance(kind, Text):
        return _matching(kind.pattern) | st.integers(0, 5000) | st.floats(0, 9, width=16)
    if isinstance(kind, WholeNumber):
        whole_number = st.integers(kind.low, min(kind.high, 50))
        return whole_number | st.sampled_from(_WITH_UNITS)
    if isinstance(kind, Number):
        return st.integers(1, 50) | st.floats(0, 9, width=16)
    if isinstance(kind, Flag):
        return st.booleans()
    if isinstance(kind, Choice):
        return st.sampled_from(kind.words)
    return st.sampled_from(_WITH_UNITS)


def _pairs(kind: Pairs, values: Drawn) -> Drawn:
    return st.dictionaries(_matching(kind.names), values, max_size=2)


def _matching(pattern: str) -> Drawn:
    return st.from_regex(re.compile(pattern or ".{1,8}", re.ASCII), fullmatch=True)
