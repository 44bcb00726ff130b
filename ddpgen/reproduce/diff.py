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
from ddpgen.driver.wording import some
from ddpgen.errors import SpecUnreadableError
from ddpgen.spec.groups import Group
from ddpgen.spec.reader import Reading
from ddpgen.spec.yamltree import Listing, Node, Table, dotted
from ddpgen.tiers.registry import MODELS

BUNDLE, RUN = "bundle", "run"
MOST_LINES = 200  # shown of each kind of file
_SMALL = 40  # lines; a larger difference of the training module is summed up in one
_WIDTH = 60  # characters shown of a value
_NONE = "-"


class Field(NamedTuple):
    """A field that differs on `tiers`; empty `tiers` mean all of them.

    `was`, `now`: the values as JSON has them. `was_at`, `now_at`: file:line, "default", or "" if there is no place.
    """

    tiers: Sequence[str]
    name: str
    was: Any
    now: Any
    was_at: str = ""
    now_at: str = ""


@dataclass(frozen=True)
class Found:
    """The differences.

    `only`: the tiers and files that only one of the two has. `diffs`: the lines of a unified diff, by kind of file
    ("" for artefacts) and path.
    """

    fields: Sequence[Field]
    only: Sequence[str]
    diffs: Mapping[str, Mapping[str, Sequence[str]]]

    @property
    def same(self) -> bool:
        return not (self.fields or self.only or any(self.diffs.values()))


def kind(path: str) -> str:
    """Return the kind of `path` (bundle, run or spec), from its name and the files in it."""
    if Path(path).is_dir():
        return BUNDLE if (Path(path) / write.LISTING).is_file() else RUN
    return RUN if path.endswith(".json") else "spec"


def specs(a: str, b: str) -> Found:
    """Compare two specs: their jobs for each tier that both have, and the files that these render to.

    Raises the errors of reading and checking a spec.
    """
    left, right = job.load(a), job.load(b)
    both = [tier for tier in left if tier in right]
    fields = []
    for tier in both:
        was, now = (Group(MODELS[tier]).dump(side[tier].job) for side in (left, right))
        for path, *values in _differing(was, now):
            places = (_place(side[tier], path) for side in (left, right))
            fields.append(Field((tier,), dotted(path), *values, *places))
    files = []
    for spec, readings in ((a, left), (b, right)):
        job.check([readings[tier] for tier in both], Path(spec).parent)
        made = job.artefacts(readings, both, None)
        files.append({artefact.path: artefact.text.encode() for artefact in made})
    only, diffs = _files((a, b), *files)
    return Found(_merged(fields, both), [*_only((a, b), left, right, "tier "), *only], diffs)


def bundles(a: str, b: str) -> Found:
    """Compare two bundles: the jobs that they were rendered from, and their files as they are now.

    Raises SpecUnreadableError.
    """
    left, right = write.read(Path(a)), write.read(Path(b))
    both = [tier for tier in left["spec"] if tier in right["spec"]]
    fields = [
        Field((tier,), dotted(path), *values)
        for tier in both
        for path, *values in _differing(left["spec"][tier], right["spec"][tier])
    ]
    for name in ("ddpgen", "source"):
        found = _differing(left.get(name), right.get(name), (name,))
        fields += [Field((*both,), dotted(path), *values) for path, *values in found]
    files = _contents(Path(a), left["files"]), _contents(Path(b), right["files"])
    only, diffs = _files((a, b), *files)
    tiers = _only((a, b), left["spec"], right["spec"], "tier ")
    return Found(_merged(fields, both), [*tiers, *only], diffs)


def as_text(found: Found) -> str:
    """Return the differences for people: fields, artefacts, code, and the training module."""
    sections = [[*map(_line, found.fields), *found.only]]
    for kind, diffs in found.diffs.items():
        lines = [line for path in diffs for line in diffs[path]]
        if kind == "train/" and len(lines) > _SMALL:
            lines = [
                f"train/, the training module: {len(diffs)} files differ ({some([*diffs], 3)})"
            ]
        more = len(lines) - MOST_LINES
        sections.append(
            [*lines[:MOST_LINES], *([f"... and {more} more lines"] if more > 0 else [])]
        )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) or "the same"


def _line(field: Field) -> str:
    tiers = f" ({', '.join(field.tiers)})" if field.tiers else ""
    sides = ((field.was, field.was_at), (field.now, field.now_at))
    was, now = (
        _NONE if value is None else f"{_short(value)}{f' ({at})' if at else ''}"
        for value, at in sides
    )
    return f"{field.name}{tiers}: {was} -> {now}"


def as_json(found: Found) -> dict[str, Any]:
    """Return all differences for programs."""
    return {
        "same": found.same,
        "fields": [
            {
                "tiers": list(f.tiers),
                "name": f.name,
                "a": f.was,
                "b": f.now,
                "a_at": f.was_at,
                "b_at": f.now_at,
            }
            for f in found.fields
        ],
        "only": list(found.only),
        "files": {
            path: list(lines) for diffs in found.diffs.values() for path, lines in diffs.items()
        },
    }


# Fields.


def _differing(
    was: Any, now: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each path at which two JSON values differ, and both values. A missing value is None."""
    left, right = _children(was), _children(now)
    if left is None or right is None:
        if was != now:
            yield path, was, now
        return
    for name in dict.fromkeys([*left, *right]):
        yield from _differing(left.get(name), right.get(name), (*path, name))


def _children(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list):
        return {f"[{i}]": each for i, each in enumerate(value)}
    return value if isinstance(value, dict) else None


def _merged(fields: Sequence[Field], every: Sequence[str]) -> list[Field]:
    """Join the same difference on several tiers into one. A difference on all tiers names no tier."""
    tiers: dict[str, list[str]] = {}
    for each in fields:
        tiers.setdefault(repr(each[1:]), []).extend(each.tiers)
    found = {repr(each[1:]): each for each in fields}
    return [
        each._replace(tiers=() if tiers[key] == [*every] else tiers[key])
        for key, each in found.items()
    ]


def _place(reading: Reading, path: Sequence[str]) -> str:
    """Return file:line of the value, or "default". A value below a shorthand has the shorthand's place."""
    node: Node | None = reading.root
    for part in path:
        if isinstance(node, Table):
            node = node.entries.get(part)
        elif isinstance(node, Listing):
            index = int(part[1:-1])
            node = node.items[index] if index < len(node.items) else None
    return f"{reading.filename}:{node.place.line}" if node is not None else "default"


# Files.


def _files(
    names: tuple[str, str], left: Mapping[str, bytes], right: Mapping[str, bytes]
) -> tuple[list[str], dict[str, dict[str, list[str]]]]:
    diffs: dict[str, dict[str, list[str]]] = {"": {}, "code/": {}, "train/": {}}
    for path in sorted({*left} & {*right}):
        if left[path] != right[path]:
            kind = next((kind for kind in ("code/", "train/") if path.startswith(kind)), "")
            diffs[kind][path] = _unified(names, path, left[path], right[path])
    return _only(names, left, right), diffs


def _only(
    names: tuple[str, str], left: Mapping[str, Any], right: Mapping[str, Any], what: str = ""
) -> list[str]:
    sides = ((names[0], left, right), (names[1], right, left))
    return [
        f"only in {name}: {what}{each}"
        for name, mine, theirs in sides
        for each in mine
        if each not in theirs
    ]


def _unified(names: Sequence[str], path: str, was: bytes, now: bytes) -> list[str]:
    try:
        texts = [content.decode().splitlines() for content in (was, now)]
    except UnicodeDecodeError:
        sizes = (
            f"{len(each)} bytes, sha256 {hashlib.sha256(each).hexdigest()[:12]}"
            for each in (was, now)
        )
        return [f"{path}: {' -> '.join(sizes)}"]
    heads = [f"{name}: {path}" for name in names]
    return list(difflib.unified_diff(texts[0], texts[1], heads[0], heads[1], lineterm=""))


def _contents(bundle: Path, paths: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the present contents of the listed files, without removed files."""
    found = {}
    for path in paths:
        try:
            found[path] = (bundle / path).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SpecUnreadableError(
                f"{bundle / path}: {error.strerror}; restore the permission"
            ) from None
    return found


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
