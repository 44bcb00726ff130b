"""A spec with all its layers as YAML, each value with its origin as a comment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddpgen.spec.merge import SWEEP, Models, whole
from ddpgen.spec.reader import SpecTree
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table
from ddpgen.text import shell, yamltext

_MAX_ALIGNED = 60  # columns; the comment of a longer line stands two blanks behind it


def as_yaml(spec: SpecTree, models: Models) -> str:
    """Return the spec as one file that gives the same job on every tier. Fields come in the order of docs/spec.md."""
    root = spec.root
    if spec.sweep is not None:
        root = root._replace(entries={**root.entries, SWEEP: spec.sweep})
    lines = [
        (text, node and node.position.within(spec.filename))
        for text, node in _lines(root, whole(models), "")
    ]
    width = max([len(text) for text, _ in lines if len(text) <= _MAX_ALIGNED], default=0)
    head = f"# {shell.comment_text(spec.filename)} with all its layers. A field that is not here has its default."
    return "\n".join(
        [
            head,
            *(
                f"{text:<{width}}  # {shell.comment_text(origin)}" if origin else text
                for text, origin in lines
            ),
        ]
    )


def _lines(table: Table, kind: Any, indent: str) -> Iterator[tuple[str, Node | None]]:
    """Yield the lines of a mapping, each with the node that gives its value."""
    kinds = kind.field_kinds if kind else {}
    order = {name: number for number, name in enumerate(kinds)}
    for name in sorted(table.entries, key=lambda name: order.get(name, len(order))):
        node, key = table.entries[name], f"{indent}{yamltext.scalar(name)}:"
        if isinstance(node, Table) and node.entries:
            yield key, None
            yield from _lines(node, kinds.get(name), f"{indent}  ")
        elif isinstance(node, Listing) and not all(isinstance(each, Scalar) for each in node.items):
            yield key, None
            for item in node.items:
                yield f"{indent}  - {_inline(item)}", item
        else:
            yield f"{key} {_inline(node)}", node


def _inline(node: Node) -> str:
    """Return a value on one line."""
    if isinstance(node, Listing):
        return f"[{', '.join(map(_inline, node.items))}]"
    if isinstance(node, Table):
        pairs = (f"{yamltext.scalar(name)}: {_inline(each)}" for name, each in node.entries.items())
        return f"{{{', '.join(pairs)}}}"
    if node.tag == "null":
        return "null"
    # Quotes would change a number or a range like 2..4.
    plain = not node.quoted and node.text.isprintable() and not set(node.text) & set(",[]{}")
    plain = plain and not node.text.startswith((":", "?"))  # no item of a list begins so
    return node.text if plain else yamltext.scalar(node.text)
