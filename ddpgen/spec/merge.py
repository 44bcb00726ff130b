"""Lay one part of a spec over another: a tier's overlay, a profile, a file that another extends, an option.

Mappings are merged; any other value replaces the value below it. Each node keeps its position. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpgen.spec.fields import Kind
from ddpgen.spec.groups import Group
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import EXCLUSIVE_FIELDS
from ddpgen.spec.yamltree import Node, Table, is_null

# The fields of a spec that name the layers below it. They are not part of the job.
LAYERS = ("profile", "extends")
# The field that makes several jobs of one spec.
SWEEP = "sweep"
# The class of each tier's jobs, by the name of the tier. A spec without targets is for the first tier.
Models = Mapping[str, type[JobSpec]]


class Branch:
    """A mapping of the spec that is no field: the top level, or `targets`. `field_kinds`: as of a Kind."""

    def __init__(self, field_kinds: Mapping[str, Kind | Branch]):
        self.field_kinds = field_kinds

    def spelled_out(self, node: Node) -> Node:
        return node


def whole(models: Models) -> Branch:
    """Return the top level of a spec, with the overlays of these tiers below `targets`."""
    targets = Branch({tier: Group(model) for tier, model in models.items()})
    return Branch({**Group(JobSpec).field_kinds, "targets": targets})


def merge(
    base: Table, overlay: Table, kind: Kind | Branch | None, path: tuple[str, ...] = ()
) -> Table:
    """Return `base` with the entries of `overlay` laid over it. `path`: the place of both in the spec or job."""
    merged = Table(overlay.position if path else base.position, base.path, {}, {})
    replaced = exclusive(overlay, path)
    for name, node in base.entries.items():
        if (*path, name) not in replaced:
            merged.entries[name], merged.keys[name] = node, base.keys[name]
    for name, node in overlay.entries.items():
        inner, below = kind.field_kinds.get(name) if kind else None, base.entries.get(name)
        if inner is not None and below is not None:
            below = inner.spelled_out(below)
        tier = path == ("targets",) or (*path, name) == ("targets",)
        if tier and below is not None and is_null(node):
            continue  # `slurm:` without fields only says that the job is for slurm
        if isinstance(below, Table) and isinstance(node, Table):
            node = merge(below, node, inner, (*path, name))
        merged.entries[name], merged.keys[name] = node, overlay.keys[name]
    return merged


def exclusive(overlay: Table, path: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the fields that give way to those of `overlay`, because a job has at most one field of each set."""
    job = path[2:] if path[:1] == ("targets",) else path
    given = {(*job, name) for name, node in overlay.entries.items() if not is_null(node)}
    return {
        (*path, *field[len(job) :])
        for fields in EXCLUSIVE_FIELDS
        if given.intersection(fields)
        for field in fields
    }
