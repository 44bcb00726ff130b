"""The syntax tree of bash. Owns all use of tree-sitter, which is an extra."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddpgen.errors import TargetUnavailableError

try:
    import tree_sitter_bash
    from tree_sitter import Language, Node, Parser
except ImportError:
    raise TargetUnavailableError(
        "adopt reads bash with tree-sitter, which is not installed: pip install 'ddpgen[adopt]', "
        "or pip install tree-sitter tree-sitter-bash"
    ) from None

__all__ = ["Break", "Node", "first_break", "parse", "source"]


class Break(NamedTuple):
    """The place from which the text is no bash: a row, counted from 0, and the word there."""

    row: int
    word: str


def parse(text: str) -> Node:
    """Return the tree of a script. Words that the grammar would read wrong are rewritten first."""
    # The grammar takes `EOF>log` for the end of a here-document, and knows no comment between backquotes.
    text = re.sub(r"(<<-?\s*(['\"]?)\w+\2)(?=[>|;&])", r"\1 ", text)
    data = re.sub(r"(?<=\s)`#[^`\n]*`", "", text).encode()
    parser = Parser(Language(tree_sitter_bash.language()))
    root = parser.parse(data).root_node
    # The grammar ends the word $A/$B.log at the second $. It reads all of $A/${B}.log.
    while dollars := [*_lone_dollars(root, data)]:
        for position in reversed(dollars):
            data = data[:position] + re.sub(rb"^\$(\w+)", rb"${\1}", data[position:])
        root = parser.parse(data).root_node
    return root


def _lone_dollars(node: Node, data: bytes) -> Iterator[int]:
    last = node.children[-1] if node.type == "concatenation" else None
    if last and last.type == "$" and re.match(rb"\w", data[last.end_byte :]):
        yield last.start_byte
    for child in node.children:
        yield from _lone_dollars(child, data)


def source(node: Node) -> str:
    """Return the text of a node."""
    return (node.text or b"").decode(errors="replace")


def first_break(node: Node) -> Break | None:
    """Return the first place below the node that is no bash; None if all of it is."""
    if node.is_error or node.is_missing:
        row = node.start_point[0]
        words = source(node).split()
        return Break(row, words[0] if words else f"missing {node.type}")
    return next(filter(None, map(first_break, node.children)), None) if node.has_error else None
