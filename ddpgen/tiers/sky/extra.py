"""targets.sky.extra: keys of SkyPilot's task file for which the tier has no field.

Owns the names of SkyPilot's keys, which of them this tier writes itself, and the form of the value of each other one.
A value stays YAML source from the spec to sky.yaml, because SkyPilot alone reads it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ddpgen.errors import Finding
from ddpgen.spec.fields import FieldSchema, Kind, Refused, describe, similar
from ddpgen.spec.groups import Path, Walk
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table, dotted
from ddpgen.text.yamltext import Source, scalar

TOP, RESOURCES = "", "resources"


class Form(NamedTuple):
    """The values of a key. `types`: as YAML 1.1 names them. `pattern`: of a scalar, and of each item of a list.

    `ascending`: True if no range in it, like 80-90, may go downwards.
    """

    types: tuple[str, ...]
    allowed: str
    pattern: str = r"(?s:.*)"
    ascending: bool = False


_MAPPING, _LIST, _TEXT = (
    Form(("map",), "a mapping"),
    Form(("list",), "a list"),
    Form(("str",), "text"),
)
_PORT = "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_RANGE = f"{_PORT}(-{_PORT})?"
# The keys of SkyPilot 0.14.1's task file (sky/utils/schemas.py), which tests/sky compares with the installed SkyPilot.
FREE: Mapping[str, Mapping[str, Form]] = {
    TOP: {
        "api_server_access": Form(("bool",), "true or false"),
        "config": _MAPPING,
        "event_callback": _TEXT,
        "file_mounts": _MAPPING,
        "inputs": _MAPPING,
        "managed_secrets": _LIST,
        "outputs": _MAPPING,
        RESOURCES: _MAPPING,
        "volumes": _MAPPING,
    },
    RESOURCES: {
        "accelerator_args": _MAPPING,
        "ephemeral_storage": Form(("int", "str"), "a size like 100GB", "(?i:[0-9]+([kmgtp][bi])?)"),
        "local_disk": Form(("str",), "nvme, ssd, or one with a size, like nvme:100+", "(?i:(nvme|ssd)(:.+)?|[0-9].*)"),
        "max_hourly_cost": Form(("float", "int"), "dollars above 0, like 2.5", "[^-]*[1-9].*"),
        "ports": Form(("int", "list", "null", "str"), "ports like 8080 or 10020-10040", f"{_RANGE}( *, *{_RANGE})*", True),
        "priority": Form(("int",), "a whole number from -1000 to 1000", "[+-]?(1000|[0-9_]{1,3}|0x[0-9a-fA-F]{1,2})"),
        "priority_class": _TEXT,
        "volumes": _LIST,
    },
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


class Extra(Kind):
    """A mapping of SkyPilot's keys to any values. Each scalar is kept as YAML source."""

    allowed = "a mapping of SkyPilot's own keys"
    sample: Mapping[str, Any] = MappingProxyType({})

    def read(self, node: Node, path: Path, walk: Walk) -> dict[str, Any]:
        if not isinstance(node, Table):
            raise self.refusal(node)
        _check_keys(node, TOP, walk)
        if isinstance(below := node.entries.get(RESOURCES), Table):
            _check_keys(below, RESOURCES, walk)
        value: dict[str, Any] = _source(node)
        return value

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        mapping: dict[str, Any] = {"type": "object"}
        names = {section: {"propertyNames": {"enum": [*FREE[section]]}} for section in FREE}
        mappings = sorted(name for name, form in FREE[TOP].items() if form == _MAPPING)
        below = {name: mapping | names.get(name, {}) for name in mappings}
        return mapping | names[TOP] | {"properties": below}

    def load(self, stored: Any) -> Any:
        return _loaded(stored)


def _check_keys(table: Table, section: str, walk: Walk) -> None:
    """Report each key that the tier writes itself, that fits no training job, or that SkyPilot does not have.

    Report each value that SkyPilot would refuse.
    """
    for name, position in table.keys.items():
        if form := FREE[section].get(name):
            if wrong := next(_misfits(table.entries[name], form), None):
                walk.refuse(wrong, Refused(f"is {describe(wrong)}", f"write {form.allowed}"))
            continue
        if field := SET[section].get(name):
            problem, remedy = "is written by ddpgen", f"set the field {field}"
        elif reason := UNFIT[section].get(name):
            problem, remedy = reason, "leave it out"
        else:
            problem, remedy = "is no key of SkyPilot here", _meant(name, section)
        walk.findings.append(Finding(position, dotted((*table.path, name)), problem, remedy))


def _misfits(node: Node, form: Form) -> Iterator[Node]:
    """Yield the parts of a value that do not have its form."""
    if isinstance(node, Listing) and "list" in form.types:
        for item in node.items:
            if isinstance(item, Scalar) and not _fits(item.text, form):
                yield item
    elif isinstance(node, Scalar):
        is_null = node.tag == "null"
        if node.tag not in form.types or not (is_null or _fits(node.text, form)):
            yield node
    elif ("map" if isinstance(node, Table) else "list") not in form.types:
        yield node


def _fits(text: str, form: Form) -> bool:
    """True if the scalar has the form."""
    ranges = re.findall(r"([0-9]+)-([0-9]+)", text) if form.ascending else []
    return bool(re.fullmatch(form.pattern, text)) and all(int(a) <= int(b) for a, b in ranges)


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
