"""Turn the declared fields into JSON Schema (draft 2020-12), for editors.

The declarations give the allowed values, and the entries of docs/spec.md give the descriptions. The schema spells out
each field of the job once, and the overlays refer to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from typing import Any

from ddpgen.spec.fields import REQUIRED, setting
from ddpgen.spec.groups import Group, Texts
from ddpgen.spec.job import EXTENDED, NAME, JobSpec
from ddpgen.spec.merge import Models

REFERENCE = "spec.md"  # below docs/
# A field's entry in docs/spec.md: its name with values and default, and the description below.
_ENTRY = re.compile(r"^- \*\*`([^`]+)`\*\* .*\n\n((?: {4}.+\n)+)", re.MULTILINE)


@dataclass(frozen=True, repr=False, eq=False)
class Layers:
    """The parts below a spec, with the values that the spec does not give. They are not part of the job."""

    profile: str | None = setting(NAME, None)
    extends: tuple[str, ...] = setting(Texts(EXTENDED), ())


def descriptions(reference: str) -> dict[str, str]:
    """Return the descriptions in docs/spec.md by path: train.lr, targets.slurm.time, targets.hosts.hosts[].nic."""
    texts = {}
    for section in re.split(r"^## ", reference, flags=re.MULTILINE):
        heading = re.match(r"`(targets\.\w+)", section)
        tier = f"{heading[1]}." if heading else ""
        for path, text in _ENTRY.findall(section):
            texts[tier + path] = " ".join(text.split())
    return texts


def description(path: str, texts: Mapping[str, str]) -> str:
    """Return the description of the longest end of `path` that has one.

    For hosts[].python.activate this end is python.activate.
    """
    while "." in path and path not in texts:
        path = path.partition(".")[2]
    return texts.get(path, "?")


def json_schema(reference: str, models: Models) -> dict[str, Any]:
    """Return the schema of a whole spec, overlays included. `reference`: the text of docs/spec.md."""
    texts = descriptions(reference)
    job_fields = Group(JobSpec).fields

    def field_schema(field: Field[Any], path: str) -> dict[str, Any]:
        if path.startswith("targets.") and field in job_fields:
            return {"$ref": f"#/properties/{field.name}"}
        kind = field.metadata["kind"].schema(path, field_schema)
        schema = {"description": description(path, texts), **kind}
        default = default_of(field)
        if default is not None:
            schema["default"] = default
        if field.metadata["null"]:
            _take_null(schema)
        return schema

    job = Group(JobSpec).schema("", field_schema)
    # The top level may leave out required fields, because an overlay or another layer may give them.
    layers = Group(Layers).schema("", field_schema)["properties"]
    job["anyOf"] = [_take_required(job), *({"required": [each]} for each in ("targets", *layers))]
    points = {"type": "object", "minProperties": 1}
    several = {"type": "array", "items": points, "minItems": 1}
    sweep = {
        "description": description("sweep", texts),
        "anyOf": [points, several, {"type": "null"}],
    }
    job["properties"] |= layers | {"sweep": sweep}
    overlays = {}
    for tier, model in models.items():
        overlay = overlays[tier] = Group(model).schema(f"targets.{tier}", field_schema)
        del overlay["required"]
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


def _take_required(schema: dict[str, Any]) -> dict[str, Any]:
    """Take `required` out of a schema at any depth, and return it as a schema of its own."""
    required = {"required": schema.pop("required")} if "required" in schema else {}
    for choice in schema.get("anyOf", ()):
        required |= _take_required(choice)
    below = {
        name: _take_required(property_schema)
        for name, property_schema in schema.get("properties", {}).items()
    }
    if any(below.values()):
        required["properties"] = {
            name: property_schema for name, property_schema in below.items() if property_schema
        }
    return required


def _take_null(schema: dict[str, Any]) -> None:
    if "type" in schema:
        types = schema["type"]
        schema["type"] = [*([types] if isinstance(types, str) else types), "null"]
    elif "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    else:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]


def default_of(field: Field[Any]) -> Any:
    """Return the default as JSON; None for a required field, an empty default, or a group of further fields."""
    if field.default_factory is not MISSING or field.default in (REQUIRED, (), None):
        return None
    return field.metadata["kind"].written(field.default)


def as_text(schema: Any, indent: str = "") -> str:
    """Return JSON text in which each value that fits into 100 columns is on one line."""
    line = json.dumps(schema, ensure_ascii=False)
    if len(indent + line) <= 100 or not isinstance(schema, (dict, list)):
        return line
    below = indent + "  "
    if isinstance(schema, list):
        parts = [as_text(entry, below) for entry in schema]
    else:
        parts = [f"{json.dumps(name)}: {as_text(entry, below)}" for name, entry in schema.items()]
    inner = ",".join(f"\n{below}{part}" for part in parts)
    return f"{line[0]}{inner}\n{indent}{line[-1]}"
