"""targets.sky.extra: keys of SkyPilot's task file for which the tier has no field.

Owns the names of SkyPilot's keys, and which of them this tier writes itself. A value stays YAML source from the spec to
sky.yaml, because SkyPilot alone judges it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ddpgen.errors import Finding
from ddpgen.spec.fields import FieldSchema, Kind, Refused, describe, similar
from ddpgen.spec.groups import Path, Walk
from ddpgen.spec.yamltree import Listing, Node, Table, dotted
from ddpgen.text.yamltext import Source, scalar

TOP, RESOURCES = "", "resources"
# The keys of SkyPilot 0.14.1's task file (sky/utils/schemas.py), which tests/sky compares with the installed SkyPilot.
FREE: Mapping[str, tuple[str, ...]] = {
    TOP: ("api_server_access", "config", "event_callback", "file_mounts", "inputs", "managed_secrets", "outputs",
          RESOURCES, "volumes"),
    RESOURCES: ("accelerator_args", "ephemeral_storage", "local_disk", "max_hourly_cost", "ports", "priority",
                "priority_class", "volumes"),
}  # fmt: skip
# Keys that the tier writes → the field that sets each.
SET: Mapping[str, Mapping[str, str]] = {
    TOP: {
        "envs": "env", "name": "name", "num_nodes": "nodes", "run": "train", "secrets": "secrets",
        "setup": "targets.sky.setup", "workdir": "code",
    },
    RESOURCES: {
        "accelerators": "targets.sky.accelerators", "any_of": "targets.sky.accelerators",
        "autostop": "targets.sky.autostop", "cloud": "targets.sky.infra", "cpus": "targets.sky.cpus",
        "disk_size": "targets.sky.disk_size", "disk_tier": "targets.sky.disk_tier",
        "image_id": "targets.sky.image", "infra": "targets.sky.infra",
        "instance_type": "targets.sky.instance_type", "job_recovery": "targets.sky.recovery",
        "labels": "targets.sky.labels", "memory": "targets.sky.memory",
        "network_tier": "targets.sky.network_tier", "ordered": "targets.sky.ordered",
        "region": "targets.sky.infra", "use_spot": "targets.sky.spot", "zone": "targets.sky.infra",
    },
}  # fmt: skip
# Keys that do not fit a training job → the reason.
UNFIT: Mapping[str, Mapping[str, str]] = {
    TOP: {
        "file_mounts_mapping": "is written by SkyPilot itself",
        "pool": "makes a pool of workers, and not a job",
        "service": "makes a service, and not a job",
        "volume_mounts": "is written by SkyPilot itself",
    },
    RESOURCES: {},
}
# Keys whose entries stand among those that the tier writes.
MERGED = (RESOURCES, "file_mounts", "config")
_MAPPINGS = frozenset([*MERGED, "volumes"])


class Extra(Kind):
    """A mapping of SkyPilot's keys to any values. Each scalar is kept as YAML source."""

    allowed = "a mapping of SkyPilot's own keys"
    sample: Mapping[str, Any] = MappingProxyType({})

    def read(self, node: Node, path: Path, walk: Walk) -> dict[str, Any]:
        if not isinstance(node, Table):
            raise self.refusal(node)
        _check_keys(node, TOP, walk)
        value: dict[str, Any] = _source(node)
        for name in value.keys() & _MAPPINGS:
            below = node.entries[name]
            if not isinstance(below, Table):
                walk.refuse(below, Refused(f"is {describe(below)}", "write a mapping"))
                value[name] = {}
            elif name == RESOURCES:
                _check_keys(below, RESOURCES, walk)
        return value

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        mapping: dict[str, Any] = {"type": "object"}
        names = {section: {"propertyNames": {"enum": [*FREE[section]]}} for section in FREE}
        below = {name: mapping | names.get(name, {}) for name in sorted(_MAPPINGS)}
        return mapping | names[TOP] | {"properties": below}

    def load(self, stored: Any) -> Any:
        return _loaded(stored)


def _check_keys(table: Table, section: str, walk: Walk) -> None:
    """Report each key that the tier writes itself, that fits no training job, or that SkyPilot does not have."""
    for name, position in table.keys.items():
        if name in FREE[section]:
            continue
        if field := SET[section].get(name):
            problem, remedy = "is written by ddpgen", f"set the field {field}"
        elif reason := UNFIT[section].get(name):
            problem, remedy = reason, "leave it out"
        else:
            problem, remedy = "is no key of SkyPilot here", _meant(name, section)
        walk.findings.append(Finding(position, dotted((*table.path, name)), problem, remedy))


def _meant(name: str, section: str) -> str:
    """Return the remedy for a key that SkyPilot does not have in this section."""
    other = TOP if section else RESOURCES
    if name in FREE[other]:
        return "write it below resources" if other else f"write it beside {section}"
    names = (*FREE[section], *SET[section])
    close = similar(name, names)
    field = SET[section].get(close) or SET[other].get(name)
    if field:
        return f"set the field {field}"
    return f"did you mean {close}?" if close else f"write one of {', '.join(FREE[section])}"


def _source(node: Node) -> Any:
    if isinstance(node, Table):
        return {name: _source(each) for name, each in node.entries.items()}
    if isinstance(node, Listing):
        return [_source(each) for each in node.items]
    if not node.quoted and node.tag in ("int", "float", "bool", "null", "timestamp"):
        return Source(node.text or "null")
    return Source(scalar(node.text))


def _loaded(stored: Any) -> Any:
    if isinstance(stored, Mapping):
        return {name: _loaded(each) for name, each in stored.items()}
    return [_loaded(each) for each in stored] if isinstance(stored, list) else Source(stored)
