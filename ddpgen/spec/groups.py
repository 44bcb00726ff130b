"""The kinds of value that hold other values: lists, mappings of free names, groups of known fields.

Owns the walk over them, which builds the values and goes on after a wrong or missing value. Knows neither tiers nor
overlays, except for the remedies for unknown keys. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields
from functools import cached_property
from typing import Any

from ddpgen.errors import Finding
from ddpgen.spec import yamltree
from ddpgen.spec.fields import (
    REQUIRED,
    FieldSchema,
    Kind,
    Leaf,
    Refused,
    Text,
    decimal,
    describe,
    refuse_non_number,
    refuse_oversized,
    show,
    similar,
)
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table, dotted, is_null

Path = tuple[str, ...]  # of a field in the job, without targets.<tier>

# Names of torchrun, Slurm, SkyPilot and training frameworks for fields that have another name in a spec. A user may
# write dashes for the underscores.
FOREIGN_NAMES = {
    "nproc_per_node": "procs_per_node", "nnodes": "nodes", "max_restarts": "restarts",
    "rdzv_backend": "rendezvous", "rdzv_endpoint": "rendezvous", "master_addr": "rendezvous", "master_port": "rendezvous",
    "job_name": "name", "ntasks": "procs_per_node", "ntasks_per_node": "procs_per_node",
    "ntasks_per_gpu": "procs_per_node", "cpus_per_task": "cpus_per_proc", "gpus": "gpus_per_node",
    "gpus_per_task": "gpus_per_node", "gres": "gpus_per_node", "mem_per_cpu": "mem",
    "mem_per_gpu": "mem", "walltime": "time", "time_limit": "time", "mail_user": "mail_to",
    "mail_type": "mail_on", "requeue": "requeues", "export": "env", "wrap": "command",
    "container_image": "container", "container_mounts": "mounts", "module": "modules",
    "num_nodes": "nodes", "use_spot": "spot", "envs": "env", "cloud": "infra", "region": "infra",
    "zone": "infra", "image_id": "image", "job_recovery": "recovery", "spot_recovery": "recovery",
    "max_restarts_on_errors": "restarts_on_errors", "idle_minutes_to_autostop": "autostop",
    "any_of": "accelerators", "run": "command", "cmd": "command", "entrypoint": "script", "program": "script",
    "learning_rate": "lr", "lr_scheduler": "schedule", "max_grad_norm": "grad_clip",
    "max_steps": "steps", "max_iters": "steps", "iterations": "steps", "max_epochs": "epochs",
    "num_epochs": "epochs", "num_train_epochs": "epochs", "model": "workload",
    "batch_size": "global_batch_size", "per_device_train_batch_size": "micro_batch_size",
    "num_workers": "data_workers", "dataloader_num_workers": "data_workers",
    "mixed_precision": "precision", "dtype": "precision",
}  # fmt: skip
# Options of sbatch for which a spec has no field, up to Slurm 25.11.
SBATCH_OPTIONS = frozenset([
    "acctg-freq", "batch", "bb", "bbf", "begin", "cluster-constraint", "clusters", "consolidate-segments",
    "container-id", "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline",
    "delay-boot", "distribution", "export", "export-file", "extra", "extra-node-info", "get-user-env", "gid",
    "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket", "gres", "gres-flags", "hint", "hold", "ignore-pbs",
    "kill-on-invalid-dep", "mcs-label", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice",
    "no-kill", "nodefile", "ntasks-per-core", "ntasks-per-socket", "oom-kill-step", "overcommit", "output",
    "oversubscribe", "power", "prefer", "priority", "profile", "propagate", "reboot", "resources", "resv-ports",
    "segment", "sockets-per-node", "spread-job", "spread-segments", "stepmgr", "switches", "thread-spec",
    "threads-per-core", "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "use-min-nodes", "verbose",
    "wait-all-nodes", "wckey",
])  # fmt: skip
_MAX_LISTED = 12  # keys; a longer list is not read

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_JSON_TYPES = ["string", "number", "boolean", "null", "array", "object"]


class Walk:
    """One pass over a merged spec.

    `for_script`: True if `args` are words for a script, which gets them as they are written. `top_keys`: the keys that
    every spec may have. `group_with_field` returns the group that has a field of the given name, in words, and the
    field's path. `missing` is kept apart from `findings`, because a field may be missing on only one of the tiers.
    `invalid_fields`: the paths of the fields that hold a placeholder, or that a misspelt key stands for.
    """

    def __init__(
        self,
        for_script: bool,
        top_keys: Collection[str],
        group_with_field: Callable[[str], tuple[str, str]],
    ) -> None:
        self.for_script, self._top_keys = for_script, top_keys
        self._group_with_field = group_with_field
        self.findings: list[Finding] = []
        self.missing: list[Finding] = []
        self.invalid_fields: set[str] = set()

    def value(self, kind: Kind, node: Node, path: Path) -> Any:
        """Return the value of `node`, or a placeholder if the kind refuses the node."""
        try:
            return kind.read(node, path, self)
        except Refused as refused:
            self.refuse(node, refused)
            return self.placeholder(kind, path)

    def placeholder(self, kind: Kind, path: Path) -> Any:
        self.invalid_fields.add(dotted(path))
        return kind.placeholder(path, self)

    def refuse(self, node: Node, refused: Refused) -> None:
        self.findings.append(yamltree.finding(node, refused.problem, refused.remedy))

    def unknown(self, table: Table, name: str, known_keys: Collection[str], path: Path) -> None:
        """Report a key that the group at `path` does not have. The field that it means is then not reported missing."""
        key_path = table.entries[name].path or (*table.path, name)
        known_keys = self._top_keys if len(key_path) == 1 else known_keys
        word = name.replace("-", "_")
        word = FOREIGN_NAMES.get(word, word)
        option = word.replace("_", "-")
        misspelt = similar(word, known_keys, at_least=0.9)  # or one of them
        group, field = ("", "") if misspelt else self._group_with_field(word)
        if word == "profile" and len(key_path) > 1:  # torch's, sbatch's, or a layer of the spec
            remedy = "train: {profile: …} traces steps; a site's profile stands at the top: profile: NAME"
        elif word == "strategy" and "recovery" not in known_keys:  # Lightning's, not SkyPilot's
            remedy = "leave the key out: every job trains with DDP"
        elif name == "module" and "script" in known_keys:  # of Python, not Slurm's
            remedy, field = "write script: module:NAME", "train.script"
        elif option in SBATCH_OPTIONS and "gpu_request" in known_keys:  # of the tier slurm
            remedy = f"give it to sbatch: write extra: [--{option}=VALUE], or without =VALUE"
        elif group and word == name:
            remedy = f"it belongs to {group}"
        elif group:
            remedy = f"write {word}, which belongs to {group}"
        elif close := similar(word, known_keys, at_least=0.7):
            remedy, field = f"did you mean {close}?", dotted((*path, close))
        elif len(known_keys) <= _MAX_LISTED:
            remedy = f"write one of {', '.join(known_keys)}"
        else:
            remedy = "docs/spec.md lists every key"
        self.invalid_fields.add(field)
        self.findings.append(Finding(table.keys[name], dotted(key_path), "unknown key", remedy))


class Texts(Kind):
    """A text or a list of texts; kept as a tuple."""

    def __init__(self, leaf: Leaf):
        self.leaf, self.sample = leaf, ()
        self.allowed = f"{leaf.allowed}, or a list of them"

    def read(self, node: Node, path: Path, walk: Walk) -> tuple[Any, ...]:
        items = node.items if isinstance(node, Listing) else [node]
        return tuple(walk.value(self.leaf, item, path) for item in items)

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        item = self.leaf.schema(path, field_schema)
        return {"anyOf": [item, {"type": "array", "items": item}]}

    def dump(self, value: tuple[Any, ...]) -> list[Any]:
        return list(value)

    def load(self, stored: list[Any]) -> tuple[Any, ...]:
        return tuple(stored)


class Pairs(Kind):
    """A mapping of free names to values of `leaf`."""

    allowed = "a mapping of names to values"

    def __init__(self, names: str, allowed_names: str, leaf: Leaf):
        self.names, self.allowed_names, self.leaf = names, allowed_names, leaf
        self.sample: Mapping[str, Any] = {}

    def read(self, node: Node, path: Path, walk: Walk) -> Any:
        if not isinstance(node, Table):
            raise self.refusal(node)
        pairs = {}
        for name, item in sorted(node.entries.items()):
            if re.fullmatch(self.names, name, re.ASCII):
                pairs[name] = self.read_item(item, (*path, name), walk)
            else:
                problem, remedy = (
                    f"{show(name)} does not fit as a name",
                    f"use {self.allowed_names}",
                )
                walk.findings.append(Finding(node.keys[name], dotted(node.path), problem, remedy))
        return pairs

    def read_item(self, item: Node, path: Path, walk: Walk) -> Any:
        return walk.value(self.leaf, item, path)

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        return self.schema_of(["string", "number"])

    def schema_of(self, types: list[str]) -> dict[str, Any]:
        """Return the schema of a mapping with values of these types."""
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^({self.names})$"},
            "additionalProperties": {"type": types},
        }


class Arguments(Pairs):
    """Arguments of a program: a mapping of names to any JSON values, or a list of words, passed as they are."""

    def __init__(self, names: str, allowed_names: str, word: Text):
        super().__init__(names, allowed_names, word)
        self.allowed += ", or a list of texts"

    def read(self, node: Node, path: Path, walk: Walk) -> Any:
        if isinstance(node, Listing):
            return tuple(walk.value(self.leaf, item, path) for item in node.items)
        return super().read(node, path, walk)

    def read_item(self, item: Node, path: Path, walk: Walk) -> Any:
        if walk.for_script and isinstance(item, Listing):
            return [self._argument(entry, path, walk, self._word) for entry in item.items]
        return self._argument(item, path, walk, self._word if walk.for_script else self._free)

    def _argument(
        self, node: Node, path: Path, walk: Walk, read: Callable[[Node, Path, Walk], Any]
    ) -> Any:
        """Return the value of a node that becomes one argument of the program."""
        value = read(node, path, walk)
        try:
            refuse_oversized(value if isinstance(value, str) else json.dumps(value))
        except Refused as refused:
            walk.refuse(node, refused)
            walk.invalid_fields.add(dotted(path))
        return value

    def _word(self, node: Node, path: Path, walk: Walk) -> Any:
        """Return a value for a script as written, because version 1.10 is not 1.1, and 007 is not 7."""
        if isinstance(node, Scalar):
            as_text = node.tag in ("str", "timestamp", "int", "float")
            return node.text if as_text else self._free(node, path, walk)
        return self._json(node, path, walk)

    def _json(self, node: Node, path: Path, walk: Walk) -> str:
        """Return a list or mapping for a script as JSON. A number that JSON can hold stays as written."""
        if isinstance(node, Table):
            items = sorted(node.entries.items())
            pairs = (f"{_as_json(name)}: {self._json(item, path, walk)}" for name, item in items)
            return f"{{{', '.join(pairs)}}}"
        if isinstance(node, Listing):
            return f"[{', '.join(self._json(item, path, walk) for item in node.items)}]"
        if not node.quoted and _JSON_NUMBER.fullmatch(node.text):
            return node.text
        return _as_json(self._free(node, path, walk))

    def _free(self, node: Node, path: Path, walk: Walk) -> Any:
        if isinstance(node, Table):
            items = sorted(node.entries.items())
            return {name: self._free(item, path, walk) for name, item in items}
        if isinstance(node, Listing):
            return [self._free(item, path, walk) for item in node.items]
        try:
            return _json_value(node)
        except Refused as refused:
            walk.refuse(node, refused)
            walk.invalid_fields.add(dotted(path))
            return None

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        words = {"type": "array", "items": {"type": ["string", "number"]}}
        return {"anyOf": [self.schema_of(_JSON_TYPES), words]}

    def dump(self, value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    def load(self, stored: Any) -> Any:
        return tuple(stored) if isinstance(stored, list) else stored


class Group(Kind):
    """A mapping of known fields. `shorthand` names the field that a bare scalar stands for."""

    def __init__(self, model: Any, shorthand: str = ""):
        self.model, self.shorthand, self.allowed = model, shorthand, "a mapping"
        if shorthand:
            self.allowed += f", or `{shorthand}` alone: {self.field_kinds[shorthand].allowed}"

    @cached_property
    def fields(self) -> tuple[Field[Any], ...]:
        return tuple(field for field in fields(self.model) if "kind" in field.metadata)

    @cached_property
    def field_kinds(self) -> Mapping[str, Kind]:  # type: ignore[override]  # mypy takes it for read-only
        return {field.name: field.metadata["kind"] for field in self.fields}

    @cached_property
    def needed(self) -> list[str]:
        return [field.name for field in self.fields if field.default is REQUIRED]

    def read(self, node: Node, path: Path, walk: Walk) -> Any:
        node = self.spelled_out(node)
        if not isinstance(node, Table):
            raise self.refusal(node)
        for name in node.entries:
            if name not in self.field_kinds:
                walk.unknown(node, name, self.field_kinds, path)
        values = {}
        for field in self.fields:
            name, kind, field_path = field.name, self.field_kinds[field.name], (*path, field.name)
            if name in node.entries:
                field_node = node.entries[name]
                if not (is_null(field_node) and field.metadata["null"]):
                    values[name] = walk.value(kind, field_node, field_path)
            elif name in self.needed:
                if dotted(field_path) not in walk.invalid_fields:
                    walk.missing.append(_missing(node, name, kind))
                values[name] = walk.placeholder(kind, field_path)
        return self.model(**values)

    def spelled_out(self, node: Node) -> Node:
        if not self.shorthand or not isinstance(node, Scalar) or is_null(node):
            return node
        return Table(
            node.position, node.path, {self.shorthand: node}, {self.shorthand: node.position}
        )

    def placeholder(self, path: Path, walk: Walk) -> Any:
        walk.invalid_fields.update(dotted((*path, name)) for name in self.field_kinds)
        return self.model(
            **{n: walk.placeholder(self.field_kinds[n], (*path, n)) for n in self.needed}
        )

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        prefix = f"{path}." if path else ""
        mapping: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {f.name: field_schema(f, prefix + f.name) for f in self.fields},
        }
        if self.needed:
            mapping["required"] = self.needed
        if not self.shorthand:
            return mapping
        return {"anyOf": [self.field_kinds[self.shorthand].schema(path, field_schema), mapping]}

    def dump(self, value: Any) -> dict[str, Any]:
        values = {name: getattr(value, name) for name in self.field_kinds}
        return {
            n: each if each is None else self.field_kinds[n].dump(each)
            for n, each in values.items()
        }

    def load(self, stored: Mapping[str, Any]) -> Any:
        # An older version of ddpgen may have stored the job. A field that it did not know gets its default.
        known = (n for n in self.field_kinds if n in stored or n in self.needed)
        values = {name: stored[name] for name in known}
        return self.model(
            **{
                n: each if each is None else self.field_kinds[n].load(each)
                for n, each in values.items()
            }
        )


class Groups(Kind):
    """A list of mappings of known fields; kept as a tuple."""

    allowed = "a list of mappings, each after a dash"

    def __init__(self, group: Group):
        self.group, self.sample = group, ()

    def read(self, node: Node, path: Path, walk: Walk) -> tuple[Any, ...]:
        if self.group.shorthand and isinstance(node, Scalar) and not is_null(node):
            raise Refused(f"is {describe(node)}", f"write a list: [{node.text}]")
        if not isinstance(node, Listing):
            raise self.refusal(node)
        numbered = enumerate(node.items)
        return tuple(walk.value(self.group, item, (*path, f"[{i}]")) for i, item in numbered)

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        return {"type": "array", "items": self.group.schema(f"{path}[]", field_schema)}

    def dump(self, value: tuple[Any, ...]) -> list[Any]:
        return [self.group.dump(item) for item in value]

    def load(self, stored: list[Any]) -> tuple[Any, ...]:
        return tuple(self.group.load(item) for item in stored)


def _missing(table: Table, name: str, kind: Kind) -> Finding:
    below = "its fields below it; docs/spec.md lists them"
    remedy = f"write {name}: with {below if kind.field_kinds else kind.allowed}"
    return Finding(table.position, dotted((*table.path, name)), "is missing", remedy)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_value(node: Scalar) -> Any:
    text, tag = node.text, node.tag
    if not node.quoted and text in (
        "NaN",
        "Infinity",
        "-Infinity",
    ):  # Python writes these into JSON
        tag = "float"
    is_text = tag in ("str", "timestamp")
    if node.quoted or (is_text and decimal(text) is None):
        return text
    if tag == "null":
        return None
    if tag == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise Refused(
            f"YAML reads {text} as a truth value",
            f'write true or false, or "{text}" in quotes for the text',
        )
    if tag not in ("int", "float") and not is_text:
        raise Refused(f"is {describe(node)}", "write a plain value")
    refuse_non_number(node, f'"{text}" in quotes, or a plain number')
    if re.fullmatch(r"[-+]?[0-9_]+", text, re.ASCII):
        return int(text.replace("_", ""))
    if re.fullmatch(r"0x[0-9a-fA-F]+", text, re.ASCII):
        return int(text, 16)
    number = decimal(text)
    if number is None:
        raise Refused(f"{show(text)} is not a number a program can be passed", "write it in quotes")
    return _finite(number)


def _finite(number: float) -> float:
    if number in (float("inf"), float("-inf")):
        raise Refused("is too large a number", "write a smaller one, or put it in quotes")
    return number
