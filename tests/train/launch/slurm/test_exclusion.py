"""The bad nodes that Slurm leaves out: never so many that the job would wait for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.launch.bad_nodes import Fault
from train.launch.slurm.exclusion import Site, exclude

FOUR = {f"node{n}": "gpu:a100:4" for n in (1, 2, 3, 4)}
SITE = Site(needed=2, kinds=FOUR)


def bad(*numbers: int) -> list[Fault]:
    return [Fault(f"node{n}", "lost") for n in numbers]


@pytest.mark.parametrize(
    ("numbers", "site", "nodes", "kept"),
    [
        ((), SITE, "", ""),
        ((2,), SITE, "node2", ""),
        ((2, 4), SITE, "node2 node4", ""),
        # The longest known go first.
        ((2, 4, 1), SITE, "node2 node4", "node1: without it the partition has 1 nodes of its kind, and the job needs 2"),
        ((2,), replace(SITE, needed=4), "", "node2: without it the partition has 3 nodes of its kind, and the job needs 4"),
        # A node of another kind may not be able to run the job.
        ((2,), replace(SITE, kinds={**FOUR, "node3": "(null)", "node4": "(null)"}), "", "node2: without it the partition has 1 "),
        # The user's own exclusion stays, and counts.
        ((2,), replace(SITE, excluded=["node1"]), "node1 node2", ""),
        ((1,), replace(SITE, excluded=["node1"]), "node1", ""),
        ((2,), replace(SITE, excluded=["node1", "node3"]), "node1 node3", "node2: without it the partition has 1 "),
        # Nodes that ddpgen had left out come back when nobody lists them.
        ((), replace(SITE, excluded=["node1", "node2"], added_before=["node2"]), "node1", ""),
        ((2,), replace(SITE, excluded=["node2"], added_before=["node2"]), "node2", ""),
        ((2,), replace(SITE, chosen=True), "", "node2: nodelist or reservation names "),
        # Without an answer, at most as many as the job has.
        ((2, 4, 1), replace(SITE, kinds=None), "node2 node4", "node1: sinfo does not answer, and 2 nodes are left out"),
        ((9,), SITE, "node9", ""),  # of no partition of this job's
    ],
)  # fmt: skip
def test_what_is_left_out(numbers: tuple[int, ...], site: Site, nodes: str, kept: str) -> None:
    exclusion = exclude(bad(*numbers), site)
    assert " ".join(exclusion.nodes) == nodes
    assert exclusion.changes(site) == (sorted(nodes.split()) != sorted(site.excluded))
    said = "".join(f"{node}: {why}" for node, why in exclusion.kept.items())
    assert said.startswith(kept)
    assert bool(said) == bool(kept)
