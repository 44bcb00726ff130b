"""Pure decisions: which bad nodes Slurm must leave out of the next start, and which ones it may not leave out.

A job that leaves out too many nodes would wait in the queue for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from train.launch.bad_nodes import Fault


@dataclass(frozen=True)
class Site:
    """Slurm's answers about the nodes that could run the job.

    `needed`: the number of nodes of a start. `excluded`: the nodes that the job leaves out now. `added_before`: the
    nodes among them that ddpgen has added. `chosen`: the user has named the job's nodes or a reservation. `kinds`: the
    kind of each node of the partition; None if Slurm has not answered.
    """

    needed: int
    excluded: Sequence[str] = ()
    added_before: Sequence[str] = ()
    chosen: bool = False
    kinds: Mapping[str, str] | None = None

    @property
    def users(self) -> list[str]:
        """The nodes that the user leaves out."""
        return [node for node in self.excluded if node not in self.added_before]


@dataclass(frozen=True)
class Exclusion:
    """`nodes`: the nodes to leave out, the user's first. `added`: the bad nodes among them, each with its last fault.
    `kept`: why another bad node stays, by its name."""

    nodes: tuple[str, ...]
    added: Mapping[str, str]
    kept: Mapping[str, str]

    def changes(self, site: Site) -> bool:
        return set(self.nodes) != set(site.excluded)


def exclude(bad: Sequence[Fault], site: Site) -> Exclusion:
    """Decide which of the bad nodes to leave out. `bad`: the longest known node first."""
    added: dict[str, str] = {}
    kept: dict[str, str] = {}
    for fault in bad:
        if fault.node in site.users:
            continue
        why = _why_not(fault.node, added, site)
        if why:
            kept[fault.node] = why
        else:
            added[fault.node] = fault.why
    return Exclusion((*site.users, *added), added, kept)


def _why_not(node: str, added: Collection[str], site: Site) -> str:
    """Return why `node` must stay, although it is bad; "" if Slurm may leave it out."""
    if site.chosen:
        return "nodelist or reservation names the nodes of this job"
    if site.kinds is None:
        # It is not known if enough nodes remain. Leave out up to `needed` nodes all the same, because a job whose bad
        # nodes all stay would fail again.
        if len(added) < site.needed:
            return ""
        return f"sinfo does not answer, and {len(added)} nodes are left out already"
    kind = site.kinds.get(node)
    out = {node, *added, *site.users}
    left = [
        other for other, its_kind in site.kinds.items() if its_kind == kind and other not in out
    ]
    if kind is None or len(left) >= site.needed:
        return ""
    return f"without it the partition has {len(left)} nodes of its kind, and the job needs {site.needed}"
