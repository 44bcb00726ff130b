"""The points of a sweep: values that are laid over the spec, and the name of each point. Pure.

A sweep is a grid, `{train.lr: [1e-3, 3e-4], train.seed: 0..3}`, or a list of mappings from fields to values. It varies
only the training, so that all points share one launch.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpgen.errors import Finding
from ddpgen.spec import yamltree
from ddpgen.spec.fields import Refused, describe, did_you_mean
from ddpgen.spec.groups import Group
from ddpgen.spec.job import NAME, JobSpec
from ddpgen.spec.merge import Models
from ddpgen.spec.overrides import OPTION, Path, path_of
from ddpgen.spec.yamltree import Listing, Node, NotYamlError, Scalar, Table, dotted

MAX_POINTS = 1000  # Slurm's default MaxArraySize is 1001
_MAX_NAME = 120  # characters; it is the name of a directory
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")
_PROGRAMS = ("script", "command")


class Point(NamedTuple):
    """One point: its name, and the values of the fields that it sets."""

    name: str
    values: Mapping[Path, Node]


class _Row(NamedTuple):
    """A point as the spec writes it. `name`: the name that the spec gives it, or ""."""

    name: str
    node: Node
    values: Mapping[Path, Node]


def read(node: Node, root: Table, models: Models) -> tuple[list[Point], list[Finding]]:
    """Return the points of the sweep at `node`, and the errors in it. `root`: the spec that it varies."""
    findings: list[Finding] = []
    fields = _Fields(root, models, findings)
    if isinstance(node, Table) and node.entries:
        rows = _grid(node, fields)
    elif isinstance(node, Listing) and node.items:
        rows = list(_list(node, fields))
    else:
        remedy = "write fields with lists of values, like {train.lr: [1e-3, 3e-4]}"
        problem = "is empty" if not isinstance(node, Scalar) else f"is {describe(node)}"
        return [], [yamltree.finding(node, problem, remedy)]
    if findings:
        return [], findings
    if len(rows) > MAX_POINTS:
        problem, remedy = f"has {len(rows)} points", f"leave at most {MAX_POINTS}"
        return [], [yamltree.finding(node, problem, remedy)]
    points: dict[str, Point] = {}
    for row, name in zip(rows, _names(rows), strict=True):
        remedy = "write a list of mappings, and give each a `name`"
        if len(name) > _MAX_NAME:
            problem = f"a point would be called {name[:60]}…, which is too long for a directory"
            findings.append(yamltree.finding(row.node, problem, remedy))
        elif name in points:
            problem = f"two points would be called {name}"
            remedy = f"leave one out, or {remedy} of its own"
            findings.append(yamltree.finding(row.node, problem, remedy))
        points[name] = Point(name, row.values)
    return list(points.values()), findings


class _Fields:
    """The fields that a sweep of this spec may vary."""

    def __init__(self, root: Table, models: Models, findings: list[Finding]):
        self._root, self._models, self.findings = root, models, findings
        train = root.entries.get("train")
        given = train.entries if isinstance(train, Table) else {}
        self._runs_script = any(name in given for name in _PROGRAMS)

    def path(self, table: Table, name: str) -> Path | None:
        """Return the path of a field that `table` names; None, and a finding, if a sweep cannot vary it."""
        problem, remedy = "", ""
        path: Path = ()
        try:
            path = path_of(name, self._root, self._models)
        except NotYamlError as error:
            problem, remedy = error.findings[0].problem, "write another field"
        else:
            problem, remedy = self._fault(path)
        if problem:
            position = table.keys[name]
            self.findings.append(Finding(position, f"sweep.{name}", problem, remedy))
            return None
        return path

    def _fault(self, path: Path) -> tuple[str, str]:
        """Return why a sweep cannot vary the field, and the remedy; two "" if it can."""
        if path[0] != "train" or len(path) == 1:
            remedy = "name fields below train, like train.lr; for the rest write a spec of its own"
            return "a sweep varies the training, and all points share the rest", remedy
        fields = Group(JobSpec).field_kinds["train"].field_kinds
        if path[1] not in fields:
            return "unknown key", did_you_mean(path[1], fields)
        if path[1] in _PROGRAMS:
            return "all points run the same program", "vary its arguments, like train.args.lr"
        if self._runs_script and (path[1] != "args" or len(path) == 2):
            remedy = "write train.args as a mapping, and vary train.args.NAME"
            return "of a script, a sweep can vary single arguments", remedy
        node: Node | None = self._root
        for part in path:
            node = node.entries.get(part) if isinstance(node, Table) else None
        if node is not None and node.position.file == OPTION:
            return f"{OPTION} gives it one value", f"leave {OPTION} out, or choose by --only"
        return "", ""


def _grid(table: Table, fields: _Fields) -> list[_Row]:
    """Return every combination; the last field varies fastest."""
    columns: dict[Path, Node] = {}
    for name, node in table.entries.items():
        if not _count(node):
            fields.findings.append(yamltree.finding(node, "has no values", "write at least one"))
        if (path := fields.path(table, name)) is not None:
            columns[path] = node
    sizes = [*map(_count, columns.values())]
    total = math.prod(sizes)
    if total > MAX_POINTS:
        product = f"{' × '.join(map(str, sizes))} = " if sizes[1:] else ""
        problem = f"has {product}{total} points"
        fields.findings.append(yamltree.finding(table, problem, f"leave at most {MAX_POINTS}"))
        return []
    combinations = itertools.product(*map(_values, columns.values()))
    return [_Row("", table, dict(zip(columns, values, strict=True))) for values in combinations]


def _count(node: Node) -> int:
    """Return the number of the values of a field, which a range may have too many of to list them."""
    if isinstance(node, Listing):
        return len(node.items)
    return 1 if (numbers := _range(node)) is None else len(numbers)


def _values(node: Node) -> Iterator[Node]:
    """Yield the values of a field: those of a list, of a range like 0..3, or the one value."""
    if isinstance(node, Listing):
        yield from node.items
    elif (numbers := _range(node)) is not None:
        for number in numbers:
            yield Scalar(node.position, node.path, str(number), "int", False)
    else:
        yield node


def _range(node: Node) -> range | None:
    bounds = _RANGE.fullmatch(node.text) if isinstance(node, Scalar) else None
    return range(int(bounds[1]), int(bounds[2]) + 1) if bounds else None


def _list(listing: Listing, fields: _Fields) -> Iterator[_Row]:
    for item in listing.items:
        if not isinstance(item, Table) or not item.entries:
            remedy = "write a mapping from fields to values, like {train.lr: 1e-3}"
            problem = "is empty" if isinstance(item, Table) else f"is {describe(item)}"
            fields.findings.append(yamltree.finding(item, problem, remedy))
            continue
        name, values = "", {}
        for key, node in item.entries.items():
            if key == "name":
                try:
                    name = str(NAME.value(node))
                except Refused as refused:
                    fields.findings.append(yamltree.finding(node, refused.problem, refused.remedy))
            elif (path := fields.path(item, key)) is not None:
                values[path] = node
        yield _Row(name, item, values)


def _names(rows: Sequence[_Row]) -> list[str]:
    """Return the name of each point: its own, else the fields that differ, like lr=1e-3,seed=0."""
    paths = list(dict.fromkeys(path for row in rows for path in row.values))
    texts = [{path: _text(node) for path, node in row.values.items()} for row in rows]
    differing = [path for path in paths if len({text.get(path) for text in texts}) > 1] or paths
    short = {path: _short(path, differing) for path in differing}
    return [
        row.name or ",".join(f"{short[path]}={text[path]}" for path in differing if path in text)
        or "base"
        for row, text in zip(rows, texts, strict=True)
    ]  # fmt: skip


def _short(path: Path, paths: Sequence[Path]) -> str:
    """Return the shortest end of `path` that no other path has."""
    for length in range(1, len(path) + 1):
        end = path[-length:]
        if not any(other[-length:] == end for other in paths if other != path):
            return _safe(dotted(end))
    return _safe(dotted(path))


def _text(node: Node) -> str:
    if isinstance(node, Scalar):
        return _safe(node.text)
    if isinstance(node, Listing):
        return "+".join(map(_text, node.items))
    return "+".join(f"{_safe(name)}-{_text(item)}" for name, item in node.entries.items())


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """Return the points that have all parts of `only`, like lr=1e-3 or a whole name; all points without `only`."""
    wanted = [part for text in only for part in text.split(",")]
    return [name for name in names if all(_has(name, part) for part in wanted)]


def _has(name: str, part: str) -> bool:
    field, _, value = part.rpartition("=")
    field = field.strip().removeprefix("train.")
    return name == part or any(
        own == part or (own.rpartition("=")[0] == field and _equal(own.rpartition("=")[2], value))
        for own in name.split(",")
    )


def _equal(a: str, b: str) -> bool:
    if a == _safe(b.strip()):
        return True
    try:
        return float(a) == float(b)
    except ValueError:
        return False
