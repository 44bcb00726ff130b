"""YAML text → JobSpec for every tier, with every error at once and each at its own place.

Owns overlays (merged first, validated once), unknown keys and did-you-mean. What a value may be is
fields.py's and times.py's business, what values may say together is rules.py's. Opens no file; pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, NamedTuple

from ddpgen.errors import Finding, SpecInvalidError
from ddpgen.spec import yamltree
from ddpgen.spec.fields import (
    REQUIRED,
    Arguments,
    Group,
    Groups,
    Kind,
    Leaf,
    Pairs,
    Refused,
    Texts,
    decimal,
    did_you_mean,
    refuse_non_number,
    show,
)
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import RIVALS, Conflict, conflicts
from ddpgen.spec.yamltree import Listing, Node, NotYamlError, Scalar, Table, dotted

# By the names of the tiers: the class of each one's jobs. A spec without targets is for the first tier.
Models = Mapping[str, type[JobSpec]]


class Reading(NamedTuple):
    """A valid job, with the means to point at a place in its file."""

    filename: str
    tier: str
    job: JobSpec
    root: Table
    warnings: tuple[Finding, ...]

    def locate(self, conflict: Conflict) -> Finding:
        """The conflict as a finding at the place of its first field."""
        return _locate(conflict, self.root)


def read(raw: bytes, filename: str, models: Models) -> dict[str, Reading]:
    """The job for each tier that the spec can be read for; raises SpecInvalidError with every error.

    A spec that names no tier is for the first of `models`. One that names others is for the first, too,
    where its top level can run on one machine as it is.
    """
    try:
        root, findings = yamltree.parse(raw)
    except NotYamlError as error:
        raise SpecInvalidError(filename, error.findings) from None
    targets = root.entries.get("targets")
    named = set(targets.entries) if isinstance(targets, Table) else set()
    overlays = _overlays(root, findings, models)
    readings = {}
    for tier, overlay in overlays.items():
        kind = Group(models[tier])
        merged = _merge(root, overlay, kind) if overlay else root
        walk = _Walk(models, of_script=_runs_script(merged))
        job = walk.group(kind, merged)
        unfit = [*walk.missing]
        found = [each for each in conflicts(job) if walk.wrong.isdisjoint(each.about)]
        unfit += [_locate(each, merged) for each in found]
        findings += walk.findings
        fits = job.nodes == 1 and not any(finding.fatal for finding in unfit)
        if not fits and tier not in named and len(overlays) > 1:
            continue
        findings += unfit
        warnings = tuple(dict.fromkeys(found for found in unfit if not found.fatal))
        readings[tier] = Reading(filename, tier, job, merged, warnings)
    if any(finding.fatal for finding in findings):
        raise SpecInvalidError(filename, set(findings))
    return readings


def _runs_script(root: Table) -> bool:
    train = root.entries.get("train")
    script = train.entries.get("script") if isinstance(train, Table) else None
    return script is not None and not _is_null(script)


def _overlays(
    root: Table, findings: list[Finding], tiers: Iterable[str]
) -> dict[str, Table | None]:
    """The overlay of each tier; takes `targets` out of the job itself."""
    tiers = tuple(tiers)
    overlays: dict[str, Table | None] = {tiers[0]: None}
    targets = root.entries.pop("targets", None)
    if targets is None or (isinstance(targets, Scalar) and targets.tag == "null"):
        return overlays
    if not isinstance(targets, Table):
        remedy = f"write a mapping with {', '.join(tiers)}"
        findings.append(_found(targets, f"is {_describe(targets)}", remedy))
        return overlays
    for tier, node in targets.entries.items():
        if tier not in tiers:
            place = targets.keys[tier]
            remedy = did_you_mean(tier, tiers)
            findings.append(Finding(place, f"targets.{tier}", "unknown tier", remedy))
        elif isinstance(node, Table):
            overlays[tier] = node
        elif isinstance(node, Scalar) and node.tag == "null":
            overlays[tier] = None
        else:
            findings.append(_found(node, f"is {_describe(node)}", "write the fields that differ"))
    return overlays


def _merge(base: Table, overlay: Table, kind: Kind | None, path: tuple[str, ...] = ()) -> Table:
    """`base` with the entries of `overlay` laid over it; nodes keep the place they came from."""
    known = fields(kind.model) if isinstance(kind, Group) else ()  # type: ignore[arg-type]
    kinds = {declared.name: declared.metadata["kind"] for declared in known}
    merged = Table(overlay.place if path else base.place, base.path, {}, {})
    given = {(*path, name) for name, node in overlay.entries.items() if not _is_null(node)}
    dropped = {rival for rivals in RIVALS if given.intersection(rivals) for rival in rivals}
    for name, node in base.entries.items():
        if (*path, name) not in dropped:
            merged.entries[name], merged.keys[name] = node, base.keys[name]
    for name, node in overlay.entries.items():
        inner = kinds.get(name)
        below = _spelled_out(inner, base.entries.get(name))
        if isinstance(below, Table) and isinstance(node, Table):
            node = _merge(below, node, inner, (*path, name))
        merged.entries[name], merged.keys[name] = node, overlay.keys[name]
    return merged


class _Walk:
    """One pass over a merged spec: builds values, goes on after each that is wrong or missing.

    `of_script`: whether `args` are words for a script, which gets them as they are written.
    """

    def __init__(self, models: Models, of_script: bool) -> None:
        self._models, self._of_script = models, of_script
        self.findings: list[Finding] = []
        self.missing: list[Finding] = []
        self.wrong: set[str] = set()

    def group(self, kind: Group, table: Table, path: tuple[str, ...] = ()) -> Any:
        """The dataclass of `kind` from `table`; wrong fields hold a stand-in and are in `wrong`."""
        values: dict[str, Any] = {}
        known = {declared.name: declared for declared in fields(kind.model)}  # type: ignore[arg-type]
        for name in table.entries:
            if name not in known:
                self._unknown(table, name, known)
        for name, declared in known.items():
            here = (*path, name)
            node = table.entries.get(name)
            if node is not None:
                if not (_is_null(node) and declared.metadata["null"]):
                    values[name] = self._value(declared.metadata["kind"], node, here)
            elif declared.default is REQUIRED:
                self._missing(table, declared, here)
                values[name] = self._stand_in(declared.metadata["kind"], here)
        return kind.model(**values)

    def _value(self, kind: Kind, node: Node, path: tuple[str, ...]) -> Any:
        try:
            return self._read(kind, node, path)
        except Refused as refused:
            self.findings.append(_found(node, refused.what, refused.remedy))
            self.wrong.add(dotted(path))
            return self._stand_in(kind, path)

    def _read(self, kind: Kind, node: Node, path: tuple[str, ...]) -> Any:
        if isinstance(kind, Group):
            node = _spelled_out(kind, node)
            if not isinstance(node, Table):
                raise Refused(f"is {_describe(node)}", f"write {kind.wants}")
            return self.group(kind, node, path)
        if isinstance(kind, Texts):
            items = node.items if isinstance(node, Listing) else [node]
            return tuple(self._value(kind.leaf, item, path) for item in items)
        if isinstance(kind, Groups):
            if not isinstance(node, Listing):
                raise Refused(f"is {_describe(node)}", f"write {kind.wants}")
            listed = enumerate(node.items)
            return tuple(self._value(kind.group, each, (*path, f"[{i}]")) for i, each in listed)
        if isinstance(kind, Arguments) and isinstance(node, Listing):
            return tuple(self._value(kind.word, item, path) for item in node.items)
        if isinstance(kind, Pairs):
            return self._pairs(kind, node, path)
        assert isinstance(kind, Leaf)
        if not isinstance(node, Scalar) or _is_null(node) or node.tag == "alias":
            raise Refused(f"is {_describe(node)}", f"write {kind.wants}")
        return kind.read(node)

    def _pairs(self, kind: Pairs, node: Node, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(node, Table):
            raise Refused(f"is {_describe(node)}", f"write {kind.wants}")
        pairs = {}
        for name, item in sorted(node.entries.items()):
            if not re.fullmatch(kind.names, name, re.ASCII):
                what, remedy = f"{show(name)} does not fit as a name", f"use {kind.names_want}"
                self.findings.append(Finding(node.keys[name], dotted(node.path), what, remedy))
            elif kind.leaf:
                pairs[name] = self._value(kind.leaf, item, (*path, name))
            elif self._of_script and isinstance(item, Listing):
                pairs[name] = [self._word(each, (*path, name)) for each in item.items]
            elif self._of_script:
                pairs[name] = self._word(item, (*path, name))
            else:
                pairs[name] = self._free(item, (*path, name))
        return pairs

    def _word(self, node: Node, path: tuple[str, ...]) -> Any:
        """A value of a script's `args`: 1.10 is another version than 1.1, and 007 no number."""
        if isinstance(node, Scalar) and node.tag in ("str", "timestamp", "int", "float"):
            return node.text
        return self._free(node, path)

    def _free(self, node: Node, path: tuple[str, ...]) -> Any:
        """A value of `args`: whatever JSON can say."""
        if isinstance(node, Table):
            return {name: self._free(item, path) for name, item in sorted(node.entries.items())}
        if isinstance(node, Listing):
            return [self._free(item, path) for item in node.items]
        try:
            return _json_value(node)
        except Refused as refused:
            self.findings.append(_found(node, refused.what, refused.remedy))
            self.wrong.add(dotted(path))
            return None

    def _stand_in(self, kind: Kind, path: tuple[str, ...]) -> Any:
        self.wrong.add(dotted(path))
        if not isinstance(kind, Group):
            return kind.sample
        declared = fields(kind.model)  # type: ignore[arg-type]
        self.wrong.update(dotted((*path, field.name)) for field in declared)
        needed = (field for field in declared if field.default is REQUIRED)
        return kind.model(
            **{
                field.name: self._stand_in(field.metadata["kind"], (*path, field.name))
                for field in needed
            }
        )

    def _missing(self, table: Table, declared: Field[Any], path: tuple[str, ...]) -> None:
        wants = declared.metadata["kind"].wants
        where = dotted((*table.path, declared.name))
        self.missing.append(Finding(table.place, where, "is missing", f"write {wants}"))

    def _unknown(self, table: Table, name: str, known: dict[str, Field[Any]]) -> None:
        elsewhere, path = (
            _elsewhere(name, self._models),
            table.entries[name].path or (*table.path, name),
        )
        if elsewhere:
            remedy = f"it belongs to {elsewhere}"
        else:
            at_top = ("targets",) if len(path) == 1 else ()
            remedy = did_you_mean(name, (*known, *at_top))
        self.findings.append(Finding(table.keys[name], dotted(path), "unknown key", remedy))


def _json_value(node: Scalar) -> Any:
    text = node.text
    if node.quoted or node.tag in ("str", "timestamp"):
        number = None if node.quoted else decimal(text)
        return text if number is None else _finite(number)
    if node.tag == "null":
        return None
    if node.tag == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise Refused(
            f"YAML reads {text} as a truth value", f'write "{text}" in quotes, or true/false'
        )
    if node.tag not in ("int", "float"):
        raise Refused(f"is {_describe(node)}", "write a plain value")
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


def _locate(conflict: Conflict, root: Table) -> Finding:
    """Point at the conflict's first field, or at the nearest thing around it that is in the file."""
    given = [about for about in conflict.about if _reached(root, about)[1] == len(_parts(about))]
    about = given[0] if given else conflict.about[0]
    node, depth = _reached(root, about)
    path = (*node.path, *_parts(about)[depth:])
    return Finding(node.place, dotted(path), conflict.what, conflict.remedy, conflict.fatal)


def _parts(about: str) -> tuple[str, ...]:
    """The steps of a path like hosts[1].nic: hosts, [1], nic."""
    return tuple(about.replace("[", ".[").split("."))


def _reached(root: Table, about: str) -> tuple[Node, int]:
    """The node of the path, or the last one on the way to it that is in the file; and how far it is."""
    node: Node = root
    for depth, part in enumerate(_parts(about)):
        below = _below(node, part)
        if below is None:
            return node, depth
        node = below
    return node, len(_parts(about))


def _below(node: Node, part: str) -> Node | None:
    if isinstance(node, Table):
        return node.entries.get(part)
    if isinstance(node, Listing) and part.startswith("["):
        return node.items[int(part[1:-1])]
    return None


def _elsewhere(name: str, models: Models) -> str:
    """The group that has a field of this name, when the user put it in the wrong one."""
    if name in (declared.name for declared in fields(JobSpec)):
        return "the top level of the spec"
    for tier, model in models.items():
        if name in (declared.name for declared in fields(model)):
            return f"targets.{tier}"
    every: Models = {"": JobSpec, **models}
    for tier, model in every.items():
        for declared in fields(model):
            kind = declared.metadata["kind"]
            if isinstance(kind, Group):
                inner: Iterable[Field[Any]] = fields(kind.model)  # type: ignore[arg-type]
                if name in (field.name for field in inner):
                    below = f" of targets.{tier}" if tier else ""
                    return f"{declared.name}{below} ({declared.name}.{name})"
    return ""


def _spelled_out(kind: Kind | None, node: Any) -> Any:
    """A value that stands for a mapping, as that mapping; any other node as it is."""
    if not isinstance(kind, Group) or not kind.shorthand:
        return node
    if not isinstance(node, Scalar) or _is_null(node):
        return node
    keys = {kind.shorthand: node.place}
    return Table(node.place, node.path, {kind.shorthand: node}, keys)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.tag == "null"


def _describe(node: Node) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list"
    if node.tag == "null":
        return "empty (null)"
    if node.tag == "alias":
        return "an alias"
    return show(node.text)


def _found(node: Node, what: str, remedy: str) -> Finding:
    return Finding(node.place, dotted(node.path), what, remedy)
