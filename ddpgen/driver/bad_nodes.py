"""The file `bad-nodes`: one line for each start that a node has ended by its own fault. Pure.

train/launch/bad_nodes.py writes the same form under Slurm. A person may edit the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Plan
from .wording import printable

FILE = "bad-nodes"
STARTS = 2  # a single fault may be chance
HEADER = (
    "# A node with two lines is left out of the next start. Remove a line to give the node back.\n"
)


@dataclass(frozen=True)
class Fault:
    """A node's own fault, which has ended a start. `when`: the local time of that end, in ISO form."""

    node: str
    when: str
    why: str

    @property
    def line(self) -> str:
        return " ".join(f"{self.node} {self.when} {self.why}".split())

    @property
    def words(self) -> str:
        """The newest fault of a bad node as text for people."""
        since = f" since {self.when}" if self.when else ""
        why = f": {self.why}" if self.why else ""
        return f"bad node {self.node}{since}{why}"


def read(lines: Sequence[str]) -> list[Fault]:
    """Return the faults in the lines of the file, the first one first."""
    faults = []
    for line in map(printable, lines):
        words = line.split(maxsplit=2)
        if words and not words[0].startswith("#"):
            node, when, why = (*words, "", "")[:3]
            faults.append(Fault(node, when, why))
    return faults


def taking_part(plan: Plan, bad_names: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts of the next start, in the order of their ranks. `bad_names`: the longest known one first.

    Spares take the places of bad hosts; without a spare, an elastic job goes on with fewer hosts.
    """
    left_out = [name for name in bad_names if name in plan.names][: plan.room]
    well = [name for name in plan.names if name not in left_out]
    return tuple(well[: len(plan.regular)])


def bad(faults: Sequence[Fault]) -> list[Fault]:
    """Return the newest fault of each node that has ended enough starts, the longest known node first."""
    nodes = [fault.node for fault in faults]
    newest = {fault.node: fault for fault in faults if nodes.count(fault.node) >= STARTS}
    return list(newest.values())
