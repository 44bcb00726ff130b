"""The declared fields → JSON Schema (draft 2020-12), for editors.

What a value may be comes from the fields of the spec, what it decides from the tables of docs/spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from ddpgen.spec.fields import REQUIRED, Arguments, Group, Groups, Kind, Leaf, Pairs, Texts
from ddpgen.spec.job import JobSpec
from ddpgen.spec.plain import plain
from ddpgen.spec.reader import Models
from ddpgen.spec.times import Duration, Every, Steps

REFERENCE = "spec.md"  # below docs/
_JSON_TYPES = ["string", "number", "boolean", "null", "array", "object"]


def descriptions(reference: str) -> dict[str, str]:
    """What docs/spec.md says of each field, by its path: train.lr, targets.slurm.time, targets.hosts.hosts[].nic."""
    found, tier = {}, ""
    for line in reference.splitlines():
        if line.startswith("## "):
            heading = re.match(r"## `(targets\.\w+)", line)
            tier = f"{heading[1]}." if heading else ""
        elif row := re.fullmatch(r"\| `([^`]+)` \|.* \| (.+) \|", line):
            found[tier + row[1]] = row[2]
    return found


def description(path: str, known: Mapping[str, str]) -> str:
    """Of a field of the job in an overlay, targets.slurm.train.lr, the description is that of train.lr."""
    while "." in path and path not in known:
        path = path.partition(".")[2]
    return known[path]


def json_schema(reference: str, models: Models) -> dict[str, Any]:
    """The schema of a whole spec, overlays included; `reference`: the text of docs/spec.md."""
    known = descriptions(reference)
    job = _object(JobSpec, "", known)
    # A field that is left out may stand in the overlay of each tier.
    job["anyOf"] = [{"required": job.pop("required")}, {"required": ["targets"]}]
    overlays = {tier: _object(model, f"targets.{tier}.", known) for tier, model in models.items()}
    for overlay in overlays.values():
        overlay["description"] = "What differs on this tier: any field of the job."
        _take_null(overlay)
    job["properties"]["targets"] = {
        "description": "Per tier, the fields that differ there; merged before anything is checked.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": overlays,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ddpgen job spec",
        "description": "One training job, from a laptop to a cluster.",
        **job,
    }


def _object(model: Any, place: str, known: Mapping[str, str]) -> dict[str, Any]:
    declared = fields(model)
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _field(field, place, known) for field in declared},
    }
    needed = [field.name for field in declared if field.default is REQUIRED]
    # An overlay gives any part of a job, but whole items of a list.
    if needed and (not place.startswith("targets.") or place.endswith("[].")):
        schema["required"] = needed
    return schema


def _field(field: Field[Any], place: str, known: Mapping[str, str]) -> dict[str, Any]:
    path = place + field.name
    schema = {
        "description": description(path, known),
        **_kind(field.metadata["kind"], path, known),
    }
    default = default_of(field)
    if default is not None:
        schema["default"] = default
    if field.metadata["null"]:
        _take_null(schema)
    return schema


def _take_null(schema: dict[str, Any]) -> None:
    if "type" in schema:
        types = schema["type"]
        schema["type"] = [*([types] if isinstance(types, str) else types), "null"]
    elif "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    else:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]


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


def _kind(kind: Kind, path: str, known: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(kind, Group):
        group = _object(kind.model, f"{path}.", known)
        if not kind.shorthand:
            return group
        bare = next(each for each in fields(kind.model) if each.name == kind.shorthand)  # type: ignore[arg-type]
        return {"anyOf": [_kind(bare.metadata["kind"], path, known), group]}
    if isinstance(kind, Groups):
        return {"type": "array", "items": _kind(kind.group, f"{path}[]", known)}
    if isinstance(kind, Arguments):
        words = {"type": "array", "items": {"type": ["string", "number"]}}
        return {"anyOf": [_pairs(kind), words]}
    if isinstance(kind, Pairs):
        return _pairs(kind)
    if isinstance(kind, Texts):
        item = _kind(kind.leaf, path, known)
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
