"""The tree adds the same numbers in the same order, whoever adds which part."""

from __future__ import annotations

import itertools

import pytest

from train.distributed import tree
from train.distributed.reduction import plain_sum_is_the_tree, plan_stages
from train.training.data import ranges


def reference(first: int, size: int, leaves: int) -> str:
    """The tree written down as an expression, straight from its definition."""
    if first >= leaves:
        return ""
    if size == 1:
        return str(first)
    left = reference(first, size // 2, leaves)
    right = reference(first + size // 2, size // 2, leaves)
    return f"({left}+{right})" if right else left


def whole_tree(leaves: int) -> str:
    return reference(0, 1 << (leaves - 1).bit_length(), leaves)


def carry_out(fold: tree.Fold, rows: list[str]) -> list[str]:
    for left, right in fold.adds:
        rows[left] = f"({rows[left]}+{rows[right]})"
    return [rows[row] for row in fold.remaining_rows]


def all_shares(leaves: int, ranks: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, leaves), ranks - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *c, leaves))) for c in cuts]


@pytest.mark.parametrize("leaves", range(1, 18))
def test_one_rank_adds_up_the_whole_tree(leaves: int) -> None:
    fold = tree.fold_of_rank(range(leaves), leaves)
    assert carry_out(fold, [str(v) for v in range(leaves)]) == [whole_tree(leaves)]
    assert fold.nodes == (tree.root(leaves),)


@pytest.mark.parametrize("leaves", range(1, 11))
def test_every_division_among_ranks_gives_the_same_expression(leaves: int) -> None:
    for ranks in range(1, leaves + 1):
        for shares in all_shares(leaves, ranks):
            mine = ranges(shares)
            local = [carry_out(tree.fold_of_rank(r, leaves), [str(v) for v in r]) for r in mine]
            stage = tree.stage([tree.fold_of_rank(r, leaves).nodes for r in mine], leaves)
            assert stage.rows == tuple(map(len, local))
            assert carry_out(stage.fold, [*itertools.chain(*local)]) == [whole_tree(leaves)], shares


@pytest.mark.parametrize("hosts", [[2, 2], [4, 4], [2, 2, 2], [3, 3], [2, 1], [1, 1, 1], [5]])
@pytest.mark.parametrize("leaves", [6, 8, 9, 13, 16])
def test_hosts_first_and_then_among_hosts_is_still_the_same_expression(
    hosts: list[int], leaves: int
) -> None:
    ranks = sum(hosts)
    if ranks > leaves:
        return
    ends = list(itertools.accumulate(hosts, initial=0))
    layout = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    for shares in all_shares(leaves, ranks)[::7]:
        mine = ranges(shares)
        rows = {
            r: carry_out(tree.fold_of_rank(s, leaves), [str(v) for v in s])
            for r, s in enumerate(mine)
        }
        plans = [plan_stages(mine, layout, rank) for rank in range(ranks)]
        for depth in range(len(plans[0])):
            rows = {
                rank: carry_out(stage.fold, [row for member in members for row in rows[member]])
                for rank, (members, stage) in ((r, p[depth]) for r, p in enumerate(plans))
            }
        assert all(row == [whole_tree(leaves)] for row in rows.values())


def test_a_rank_keeps_at_most_log2_partial_sums() -> None:
    leaves = 64
    for start, stop in itertools.combinations(range(leaves + 1), 2):
        assert len(tree.fold_of_rank(range(start, stop), leaves).nodes) <= 2 * 6


def test_a_plain_sum_is_the_tree_only_for_two_halves() -> None:
    assert plain_sum_is_the_tree(ranges([4, 4]))
    assert plain_sum_is_the_tree(ranges([1, 1]))
    assert plain_sum_is_the_tree(ranges([4, 1]))  # (((0+1)+(2+3))+4)
    assert not plain_sum_is_the_tree(ranges([3, 3]))
    assert not plain_sum_is_the_tree(ranges([5, 3]))
    assert not plain_sum_is_the_tree(ranges([2, 2, 2, 2]))
    assert not plain_sum_is_the_tree(ranges([8]))
