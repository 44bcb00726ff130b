"""The declared fields → JSON Schema (draft 2020-12), for editors.

What a value may be comes from the fields of the spec, what it decides from the tables of docs/spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

from ddpgen.spec.fields import REQUIRED
from ddpgen.spec.groups import Group
from ddpgen.spec.job import JobSpec
from ddpgen.spec.reader import Models

REFERENCE = "spec.md"  # below docs/


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

    def of_field(field: Field[Any], path: str) -> dict[str, Any]:
        kind = field.metadata["kind"].schema(path, of_field)
        schema = {"description": description(path, known), **kind}
        default = default_of(field)
        if default is not None:
            schema["default"] = default
        if field.metadata["null"]:
            _take_null(schema)
        return schema

    job = Group(JobSpec).schema("", of_field)
    # A field that is left out may stand in the overlay of each tier.
    job["anyOf"] = [{"required": job.pop("required")}, {"required": ["targets"]}]
    overlays = {
        tier: Group(model).schema(f"targets.{tier}", of_field) for tier, model in models.items()
    }
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
    if field.default_factory is not MISSING or field.default in (REQUIRED, (), None):
        return None
    return field.metadata["kind"].written(field.default)
