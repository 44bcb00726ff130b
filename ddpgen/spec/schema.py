"""The declared fields → JSON Schema (draft 2020-12), for editors. What it says comes from the fields of the spec."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from ddpgen.job import plain
from ddpgen.spec.fields import (
    REQUIRED,
    Arguments,
    Duration,
    Every,
    Group,
    Groups,
    Kind,
    Leaf,
    Pairs,
    Steps,
    Texts,
)
from ddpgen.spec.job import TIERS, JobSpec
from ddpgen.spec.reader import MODELS

_JSON_TYPES = ["string", "number", "boolean", "null", "array", "object"]


def json_schema() -> dict[str, Any]:
    """The schema of a whole spec, overlays included."""
    job = _object(JobSpec)
    job["properties"]["targets"] = {
        "description": "Per tier, the fields that differ there; merged before anything is checked.",
        "type": "object",
        "additionalProperties": False,
        "properties": {tier: _overlay(tier) for tier in TIERS},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ddpgen job spec",
        "description": "One training job, from a laptop to a cluster.",
        **job,
    }


def _overlay(tier: str) -> dict[str, Any]:
    overlay = _object(MODELS.get(tier, JobSpec), required=False)
    overlay["description"] = "What differs on this tier: any field of the job."
    return overlay


def _object(model: Any, required: bool = True) -> dict[str, Any]:
    declared = fields(model)
    needed = [field.name for field in declared if field.default is REQUIRED]
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _field(field, required) for field in declared},
    }
    if required and needed:
        schema["required"] = needed
    return schema


def _field(field: Field[Any], required: bool) -> dict[str, Any]:
    schema = {"description": field.metadata["says"], **_kind(field.metadata["kind"], required)}
    default = default_of(field)
    if default is not None:
        schema["default"] = default
    if not field.metadata["null"]:
        return schema
    if "type" in schema:
        schema["type"] = [schema["type"], "null"]
    elif "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    else:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def default_of(field: Field[Any]) -> Any:
    """The default as JSON; None when there is none, or it is a group of further fields."""
    if field.default_factory is not MISSING:
        return None
    return None if field.default in (REQUIRED, (), None) else _written(field)


def _written(field: Field[Any]) -> Any:
    kind: Kind = field.metadata["kind"]
    value: Any = field.default
    if isinstance(kind, Steps):
        return f"{value} steps"
    if isinstance(kind, (Every, Duration)):
        seconds = value if isinstance(kind, Duration) else value.seconds
        return f"{seconds / 60:g}min" if seconds and seconds % 60 == 0 else f"{seconds:g}s"
    return plain(value)


def _kind(kind: Kind, required: bool) -> dict[str, Any]:
    if isinstance(kind, Group):
        group = _object(kind.model, required)
        return {"anyOf": [{"type": "string"}, group]} if kind.shorthand else group
    if isinstance(kind, Groups):
        return {"type": "array", "items": _kind(kind.group, True)}
    if isinstance(kind, Arguments):
        words = {"type": "array", "items": {"type": ["string", "number"]}}
        return {"anyOf": [_pairs(kind), words]}
    if isinstance(kind, Pairs):
        return _pairs(kind)
    if isinstance(kind, Texts):
        item = _kind(kind.leaf, required)
        return {"anyOf": [item, {"type": "array", "items": item}]}
    assert isinstance(kind, Leaf)
    return dict(kind.schema)


def _pairs(kind: Pairs) -> dict[str, Any]:
    types = ["string", "number"] if kind.leaf else _JSON_TYPES
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^({kind.names})$"},
        "additionalProperties": {"type": types},
    }
