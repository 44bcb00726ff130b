"""Compare two specs or two bundles: the fields of their jobs, and the files that they render to.

Owns the choice of the parts to compare, and the text of the differences. The training module
(train/tools/verify/diff.py) compares the files that runs left behind.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ddpgen import job
from ddpgen.bundle import write
from ddpgen.driver.wording import first_names
from ddpgen.errors import SpecUnreadableError
from ddpgen.spec.groups import Group
from ddpgen.spec.reader import Reading
from ddpgen.spec.yamltree import Listing, Node, Table, dotted
from ddpgen.tiers.registry import MODELS

BUNDLE, RUN = "bundle", "run"
MAX_LINES = 200  # shown of each kind of file
_MAX_TRAIN_LINES = 40  # lines; a larger difference of the training module is summed up in one
_WIDTH = 60  # characters shown of a value
_MISSING = "-"


class Field(NamedTuple):
    """A field that differs on `tiers`; empty `tiers` mean all of them.

    `left`, `right`: the values as JSON has them. `left_at`, `right_at`: file:line, "default", or "" if there is no place.
    """

    tiers: Sequence[str]
    name: str
    left: Any
    right: Any
    left_at: str = ""
    right_at: str = ""


@dataclass(frozen=True)
class Differences:
    """The differences between two specs or two bundles.

    `one_sided`: the tiers and files that only one side has. `diffs`: the lines of a unified diff, by kind of file
    ("" for artefacts) and path.
    """

    fields: Sequence[Field]
    one_sided: Sequence[str]
    diffs: Mapping[str, Mapping[str, Sequence[str]]]

    @property
    def equal(self) -> bool:
        return not (self.fields or self.one_sided or any(self.diffs.values()))


def kind(path: str) -> str:
    """Return the kind of `path` (bundle, run or spec), from its name and the files in it."""
    if Path(path).is_dir():
        return BUNDLE if (Path(path) / write.LISTING).is_file() else RUN
    return RUN if path.endswith(".json") else "spec"


def specs(a: str, b: str) -> Differences:
    """Compare two specs: their jobs for each tier that both have, and the files that these render to.

    Raises the errors of reading and checking a spec.
    """
    left, right = job.load(a), job.load(b)
    tiers = [tier for tier in left if tier in right]
    fields = []
    for tier in tiers:
        left_fields, right_fields = (
            Group(MODELS[tier]).dump(side[tier].job) for side in (left, right)
        )
        for path, *values in _differing(left_fields, right_fields):
            locations = (_location(side[tier], path) for side in (left, right))
            fields.append(Field((tier,), dotted(path), *values, *locations))
        left_points, right_points = ([*side[tier].points] for side in (left, right))
        if left_points != right_points:
            fields.append(Field((tier,), "sweep", left_points, right_points))
    files = []
    for spec, readings in ((a, left), (b, right)):
        job.check([readings[tier] for tier in tiers], Path(spec).parent)
        artefacts = job.artefacts(readings, tiers, None)
        files.append({artefact.path: artefact.text.encode() for artefact in artefacts})
    one_sided, diffs = _files((a, b), *files)
    return Differences(
        _merged(fields, tiers), [*_one_sided((a, b), left, right, "tier "), *one_sided], diffs
    )


def bundles(a: str, b: str) -> Differences:
    """Compare two bundles: the jobs that they were rendered from, and their files as they are now.

    Raises SpecUnreadableError.
    """
    left, right = write.read(Path(a)), write.read(Path(b))
    tiers = [tier for tier in left["spec"] if tier in right["spec"]]
    fields = [
        Field((tier,), dotted(path), *values)
        for tier in tiers
        for path, *values in _differing(left["spec"][tier], right["spec"][tier])
    ]
    for name in ("ddpgen", "source"):
        differences = _differing(left.get(name), right.get(name), (name,))
        fields += [Field((*tiers,), dotted(path), *values) for path, *values in differences]
    files = _contents(Path(a), left["files"]), _contents(Path(b), right["files"])
    one_sided, diffs = _files((a, b), *files)
    one_sided_tiers = _one_sided((a, b), left["spec"], right["spec"], "tier ")
    return Differences(_merged(fields, tiers), [*one_sided_tiers, *one_sided], diffs)


def as_text(differences: Differences) -> str:
    """Return the differences for people: fields, artefacts, code, and the training module."""
    sections = [[*map(_line, differences.fields), *differences.one_sided]]
    for kind, diffs in differences.diffs.items():
        lines = [line for path in diffs for line in diffs[path]]
        if kind == "train/" and len(lines) > _MAX_TRAIN_LINES:
            lines = [
                f"train/, the training module: {len(diffs)} files differ ({first_names([*diffs], 3)})"
            ]
        more = len(lines) - MAX_LINES
        sections.append([*lines[:MAX_LINES], *([f"... and {more} more lines"] if more > 0 else [])])
    return "\n\n".join("\n".join(lines) for lines in sections if lines) or "the same"


def _line(field: Field) -> str:
    tiers = f" ({', '.join(field.tiers)})" if field.tiers else ""
    sides = ((field.left, field.left_at), (field.right, field.right_at))
    left, right = (
        _MISSING if value is None else f"{_short(value)}{f' ({location})' if location else ''}"
        for value, location in sides
    )
    return f"{field.name}{tiers}: {left} -> {right}"


def as_json(differences: Differences) -> dict[str, Any]:
    """Return all differences for programs."""
    return {
        "same": differences.equal,
        "fields": [
            {
                "tiers": list(f.tiers),
                "name": f.name,
                "a": f.left,
                "b": f.right,
                "a_at": f.left_at,
                "b_at": f.right_at,
            }
            for f in differences.fields
        ],
        "only": list(differences.one_sided),
        "files": {
            path: list(lines)
            for diffs in differences.diffs.values()
            for path, lines in diffs.items()
        },
    }


# Fields.


def _differing(
    left: Any, right: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each path at which two JSON values differ, and both values. A missing value is None."""
    left_children, right_children = _children(left), _children(right)
    if left_children is None or right_children is None:
        if left != right:
            yield path, left, right
        return
    for name in dict.fromkeys([*left_children, *right_children]):
        yield from _differing(left_children.get(name), right_children.get(name), (*path, name))


def _children(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list):
        return {f"[{i}]": child for i, child in enumerate(value)}
    return value if isinstance(value, dict) else None


def _merged(fields: Sequence[Field], all_tiers: Sequence[str]) -> list[Field]:
    """Join the same difference on several tiers into one. A difference on all tiers names no tier."""
    tiers: dict[str, list[str]] = {}
    for field in fields:
        tiers.setdefault(repr(field[1:]), []).extend(field.tiers)
    by_values = {repr(field[1:]): field for field in fields}
    return [
        field._replace(tiers=() if tiers[key] == [*all_tiers] else tiers[key])
        for key, field in by_values.items()
    ]


def _location(reading: Reading, path: Sequence[str]) -> str:
    """Return file:line of the value, or "default". A value below a shorthand has the shorthand's place."""
    node: Node | None = reading.root
    for part in path:
        if isinstance(node, Table):
            node = node.entries.get(part)
        elif isinstance(node, Listing):
            index = int(part[1:-1])
            node = node.items[index] if index < len(node.items) else None
    return node.position.within(reading.filename) if node is not None else "default"


# Files.


def _files(
    names: tuple[str, str], left: Mapping[str, bytes], right: Mapping[str, bytes]
) -> tuple[list[str], dict[str, dict[str, list[str]]]]:
    diffs: dict[str, dict[str, list[str]]] = {"": {}, "code/": {}, "train/": {}}
    for path in sorted({*left} & {*right}):
        if left[path] != right[path]:
            kind = next((kind for kind in ("code/", "train/") if path.startswith(kind)), "")
            diffs[kind][path] = _unified(names, path, left[path], right[path])
    return _one_sided(names, left, right), diffs


def _one_sided(
    names: tuple[str, str], left: Mapping[str, Any], right: Mapping[str, Any], kind: str = ""
) -> list[str]:
    sides = ((names[0], left, right), (names[1], right, left))
    return [
        f"only in {name}: {kind}{entry}"
        for name, entries, others in sides
        for entry in entries
        if entry not in others
    ]


def _unified(names: Sequence[str], path: str, left: bytes, right: bytes) -> list[str]:
    try:
        texts = [content.decode().splitlines() for content in (left, right)]
    except UnicodeDecodeError:
        sizes = (
            f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"
            for content in (left, right)
        )
        return [f"{path}: {' -> '.join(sizes)}"]
    heads = [f"{name}: {path}" for name in names]
    return list(difflib.unified_diff(texts[0], texts[1], heads[0], heads[1], lineterm=""))


def _contents(bundle: Path, paths: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the current contents of the listed files. A removed file is left out."""
    contents = {}
    for path in paths:
        try:
            contents[path] = (bundle / path).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SpecUnreadableError(
                f"{bundle / path}: {error.strerror}; restore the permission"
            ) from None
    return contents


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
