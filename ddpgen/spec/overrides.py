"""Set single fields of a spec: `--set train.lr=1e-4`.

A value is read as in a file. It wins over the spec. A value for a field of the job also wins over the same field of
each tier. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpgen.errors import Finding, Position
from ddpgen.spec.fields import Kind
from ddpgen.spec.groups import Groups, Pairs, Texts
from ddpgen.spec.merge import LAYERS, Branch, Models, exclusive, merge, whole
from ddpgen.spec.yamltree import Listing, Node, NotYamlError, Table, dotted, parse_value

OPTION = "--set"
Path = tuple[str, ...]


def read(text: str, root: Table, models: Models) -> tuple[Path, Node, list[Finding]]:
    """Return path and value of an override like train.lr=1e-4, and the errors in it that do not hide the rest.

    Raises NotYamlError.
    """
    name, _, value = text.partition("=")
    if name.strip() in LAYERS:
        remedy = f"write {name}: in the spec"
        problem = "chooses what lies below the spec, and an option lies above it"
        raise NotYamlError(Finding(Position(0, 0, OPTION), name, problem, remedy))
    path = path_of(name.strip(), root, models)
    node, findings = parse_value(value, Position(0, 0, OPTION), path)
    if isinstance(node, Table) and not node.entries and any(_given(root, path)):
        problem = "is an empty mapping, which adds nothing to the fields that the spec has there"
        remedy = (
            f"write {dotted(path)}.NAME=VALUE for one of them; null clears env, args and labels"
        )
        raise NotYamlError(Finding(Position(0, 0, OPTION), dotted(path), problem, remedy))
    return path, node, findings


def _given(root: Table, path: Path) -> Iterator[Node]:
    """Yield the entries of the mapping at `path`, for the job and for each tier."""
    targets = root.entries.get("targets")
    overlays = targets.entries.values() if isinstance(targets, Table) else ()
    for tree in (root, *overlays):
        node: Node | None = tree
        for name in path:
            node = _child(node, name)
        if isinstance(node, Table):
            yield from node.entries.values()


def with_overrides(root: Table, values: Mapping[Path, Node], models: Models) -> Table:
    """Return a whole spec with these values laid over it. `values`: by path, like ("train", "lr")."""
    fields = whole(models)
    layer = Table(root.position, (), {}, {})
    for path, node in values.items():
        _put(layer, path, node, fields, root)
    targets, kinds = root.entries.get("targets"), fields.field_kinds["targets"].field_kinds
    if isinstance(targets, Table):
        overlays = {
            tier: _without(overlay, layer, kinds.get(tier))
            if isinstance(overlay, Table)
            else overlay
            for tier, overlay in targets.entries.items()
        }
        entries = {**root.entries, "targets": targets._replace(entries=overlays)}
        root = root._replace(entries=entries)
    return merge(root, layer, fields)


def path_of(name: str, root: Table, models: Models) -> Path:
    """Return the path that a name like train.args.width means. Raise NotYamlError for an item of a list."""
    parts = tuple(name.partition("[")[0].split("."))
    kind: Kind | Branch | None = whole(models)
    node: Node | None = root
    for depth, part in enumerate(parts):
        if isinstance(kind, Texts | Groups) or isinstance(node, Listing):
            raise _refused_item(name, parts[:depth])
        rest = ".".join(parts[depth:])
        if isinstance(kind, Pairs) and not _is_mapping(_child(node, part)):
            parts = (*parts[:depth], rest)  # a free name may hold dots
            break
        kind = kind.field_kinds.get(part) if kind else None
        node = _child(node, part)
    if "[" in name:
        raise _refused_item(name, parts)
    return parts


def _is_mapping(node: Node | None) -> bool:
    return isinstance(node, Table | Listing)


def _child(node: Node | None, name: str) -> Node | None:
    return node.entries.get(name) if isinstance(node, Table) else None


def _refused_item(name: str, path: Sequence[str]) -> NotYamlError:
    problem = "one item of a list cannot be set, because a list is replaced as a whole"
    remedy = f"write the whole list: {OPTION} '{dotted(tuple(path))}=[...]'"
    return NotYamlError(Finding(Position(0, 0, OPTION), name, problem, remedy))


def _put(
    table: Table, path: Path, node: Node, kind: Kind | Branch | None, base: Node | None
) -> None:
    """Put `node` at `path` below `table`. A mapping on the way has the position of the mapping in `base`."""
    name, *rest = path
    table.keys[name] = node.position
    if not rest:
        table.entries[name] = node
        return
    inner = kind.field_kinds.get(name) if kind else None
    inside, below = table.entries.get(name), _child(base, name)
    if inside is not None and inner is not None:
        inside = inner.spelled_out(inside)
    if not isinstance(inside, Table):
        position = node.position
        if inner is not None and inner.field_kinds:  # its missing fields are no fault of the option
            position = below.position if isinstance(below, Table) else table.position
        inside = Table(position, (*table.path, name), {}, {})
    table.entries[name] = inside
    _put(inside, tuple(rest), node, inner, below)


def _without(overlay: Table, above: Table, kind: Kind | Branch | None, path: Path = ()) -> Table:
    """Return a tier's overlay without the fields that `above` gives."""
    kept = Table(overlay.position, overlay.path, {}, {})
    replaced = exclusive(above, path)
    for name, node in overlay.entries.items():
        over, inner = above.entries.get(name), kind.field_kinds.get(name) if kind else None
        if (*path, name) in replaced:
            continue
        if over is not None:
            node = inner.spelled_out(node) if inner is not None else node
            if not (isinstance(over, Table) and isinstance(node, Table)):
                continue
            node = _without(node, over, inner, (*path, name))
        kept.entries[name], kept.keys[name] = node, overlay.keys[name]
    return kept
