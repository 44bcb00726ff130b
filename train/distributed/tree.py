"""The fixed binary tree over a step's micro-batches, as pure arithmetic.

Owns the partial sums and the order in which they are added. Knows nothing of tensors or processes. Computes only with
integers, so every property of the tree can be tested exhaustively.

Node (level, k) covers the micro-batches k * 2**level up to (k + 1) * 2**level, cut off at V. Its sum is left + right,
or only left if the right half lies beyond V. The tree depends only on V. Each rank's part of the additions depends on
the leaves that it owns. A binary counter builds a node from its leaves with log2 V intermediate
sums, as in pairwise summation (Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Node(NamedTuple):
    """One partial sum of the tree."""

    level: int
    k: int


def root(leaves: int) -> Node:
    """Return the node that holds the whole sum."""
    return Node((leaves - 1).bit_length(), 0)


def leaf(v: int) -> Node:
    """Return the node that holds only micro-batch v."""
    return Node(0, v)


@dataclass(frozen=True)
class Fold:
    """The additions that combine consecutive partial sums, one in each row, as far as the tree allows.

    `due[r]`: the additions that become possible with row r, in order. A pair (i, j) means: row i += row j.
    `remaining_rows`, `nodes`: the rows that remain after all additions, and the node in each.
    """

    due: tuple[tuple[tuple[int, int], ...], ...]
    remaining_rows: tuple[int, ...]
    nodes: tuple[Node, ...]

    @property
    def adds(self) -> list[tuple[int, int]]:
        """All additions, in order."""
        return [pair for pairs in self.due for pair in pairs]


def fold(nodes: Iterable[Node], leaves: int) -> Fold:
    """Add up neighbouring `nodes` (given in order of position) of the tree over `leaves` leaves."""
    due: list[tuple[tuple[int, int], ...]] = []
    stack: list[tuple[Node, int]] = []
    for row, node in enumerate(nodes):
        stack.append((node, row))
        due.append(tuple(_climb(stack, leaves)))
    return Fold(tuple(due), tuple(row for _, row in stack), tuple(node for node, _ in stack))


def _climb(stack: list[tuple[Node, int]], leaves: int) -> list[tuple[int, int]]:
    """Merge the top of the stack with its left sibling, or lift it to its parent if it has no right sibling."""
    adds: list[tuple[int, int]] = []
    while True:
        (level, k), row = stack[-1]
        if (level, k) == root(leaves):
            return adds
        if k % 2 == 0:
            if (k + 1) << level < leaves:
                return adds  # its right sibling is still to come
            stack[-1] = (Node(level + 1, k // 2), row)
        elif len(stack) > 1 and stack[-2][0] == (level, k - 1):
            _, left = stack[-2]
            adds.append((left, row))
            stack[-2:] = [(Node(level + 1, k // 2), left)]
        else:
            return adds  # its left sibling belongs to another rank


def fold_of_rank(own_micro_batches: range, leaves: int) -> Fold:
    """Return the fold of one rank's own leaves. Row 0 is the leaf `own_micro_batches.start`."""
    return fold([leaf(v) for v in own_micro_batches], leaves)


@dataclass(frozen=True)
class Stage:
    """One exchange within a group of neighbouring ranks.

    `rows[i]`: the number of partial sums that member i brings. `fold`: the additions of the rows of all members, member
    after member. A member does them when it has all rows of its own chunk.
    """

    rows: tuple[int, ...]
    fold: Fold


def stage(members: Sequence[Sequence[Node]], leaves: int) -> Stage:
    """Return the exchange among members that hold these nodes, in order of position."""
    everything = [node for nodes in members for node in nodes]
    return Stage(tuple(len(nodes) for nodes in members), fold(everything, leaves))
