"""Read YAML text into a JobSpec for each tier, and report all errors at once, each at its own position.

Overlays are merged first, and the result is validated once. The kinds of the fields (fields.py, times.py, groups.py)
read the values; rules.py checks the rules between them. Opens no file. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ddpgen.errors import Finding, SpecInvalidError
from ddpgen.spec import yamltree
from ddpgen.spec.fields import describe, did_you_mean
from ddpgen.spec.groups import Group, Walk
from ddpgen.spec.job import JobSpec
from ddpgen.spec.merge import LAYERS, SWEEP, Models, merge
from ddpgen.spec.rules import Conflict, conflicts
from ddpgen.spec.yamltree import Listing, Node, NotYamlError, Table, dotted, is_null


class SpecTree(NamedTuple):
    """A whole spec with its layers merged, and the errors in the YAML of the layers.

    `record`: the layers, if there are several. `sweep`: the values to vary, if there are any.
    """

    filename: str
    root: Table
    findings: list[Finding]
    record: Mapping[str, Any] | None = None
    sweep: Node | None = None


class Reading(NamedTuple):
    """A valid job, with the means to point at a position in its file.

    `whole`: the spec for all tiers. `points`: the jobs of a sweep, by name.
    """

    filename: str
    tier: str
    job: JobSpec
    root: Table
    warnings: tuple[Finding, ...]
    whole: SpecTree
    points: Mapping[str, Reading] = {}

    def locate(self, conflict: Conflict) -> Finding:
        """Return the conflict as a finding, at the position of its first field."""
        return _locate(conflict, self.root, shared=True)


def read(raw: bytes, filename: str, models: Models) -> dict[str, Reading]:
    """Return the job for each tier that a spec without further layers fits; see read_tree()."""
    try:
        return read_tree(SpecTree(filename, *yamltree.parse(raw)), models)
    except NotYamlError as error:
        raise SpecInvalidError(filename, error.findings) from None


def read_tree(whole: SpecTree, models: Models) -> dict[str, Reading]:
    """Return the job for each tier that the spec fits. Raises SpecInvalidError with every error.

    A spec that names no tier is for the first of `models`. A spec that names other tiers is also for the first, if
    its top level can run on one machine as it is.
    """
    filename, root, findings = whole.filename, whole.root, [*whole.findings]
    targets = root.entries.get("targets")
    named = set(targets.entries) if isinstance(targets, Table) else set()
    overlays = _overlays(root, findings, models)
    top_keys = (*Group(JobSpec).field_kinds, "targets", *LAYERS, SWEEP)
    root = root._replace(entries={n: each for n, each in root.entries.items() if n != "targets"})
    merged = {
        tier: merge(root, overlay, Group(models[tier])) if overlay else root
        for tier, overlay in overlays.items()
    }
    jobs: dict[str, JobSpec] = {}
    missing: dict[str, list[Finding]] = {}
    conflicting: dict[str, list[Conflict]] = {}
    for tier, tree in merged.items():
        walk = Walk(_runs_script(tree), top_keys, partial(_group_with_field, models))
        job = Group(models[tier]).read(tree, (), walk)
        of_tier = [c for c in conflicts(job) if walk.invalid_fields.isdisjoint(c.fields)]
        findings += walk.findings
        fits = job.nodes == 1 and not walk.missing and not any(c.fatal for c in of_tier)
        if fits or tier in named or len(overlays) == 1:
            jobs[tier], missing[tier], conflicting[tier] = job, walk.missing, of_tier
    if all(overlays.values()):
        # Every tier has an overlay, so the top level alone is no tier's job. It may have errors that overlays hide.
        for_script = any(map(_runs_script, merged.values()))
        walk = Walk(for_script, top_keys, partial(_group_with_field, models))
        Group(JobSpec).read(root, (), walk)
        findings += walk.findings
    located = locate({tier: (merged[tier], each) for tier, each in conflicting.items()})
    missing = _with_tiers(missing)
    readings = {}
    for tier, job in jobs.items():
        findings += [*missing[tier], *located[tier]]
        warnings = tuple(dict.fromkeys(each for each in located[tier] if not each.fatal))
        readings[tier] = Reading(filename, tier, job, merged[tier], warnings, whole)
    if any(finding.fatal for finding in findings):
        raise SpecInvalidError(filename, set(findings))
    return readings


def locate(
    conflicts_by_tier: Mapping[str, tuple[Table, Sequence[Conflict]]],
) -> dict[str, list[Finding]]:
    """Return the findings of each tier. `conflicts_by_tier`: the merged spec of each tier, and its conflicts.

    If all of several tiers have a conflict, the finding points into the part that they share. If only some have it, the
    finding points into the overlay. If no field of it is in the overlay, the finding names the tiers.
    """
    tiers: dict[Conflict, list[str]] = {}
    for tier, (_, of_tier) in conflicts_by_tier.items():
        for conflict in of_tier:
            tiers.setdefault(conflict, []).append(tier)
    return _with_tiers(
        {
            tier: [
                _locate(each, root, shared=1 < len(conflicts_by_tier) == len(tiers[each]))
                for each in of_tier
            ]
            for tier, (root, of_tier) in conflicts_by_tier.items()
        }
    )


def _with_tiers(findings_by_tier: Mapping[str, Sequence[Finding]]) -> dict[str, list[Finding]]:
    """Return the findings of each tier. A finding that is neither on all tiers nor below `targets` names its tiers."""

    def named(finding: Finding) -> Finding:
        tiers = [tier for tier, findings in findings_by_tier.items() if finding in findings]
        if len(tiers) == len(findings_by_tier) or finding.path.startswith("targets."):
            return finding
        names = " and ".join([", ".join(tiers[:-1]), tiers[-1]] if tiers[1:] else tiers)
        return finding._replace(problem=f"on {names}: {finding.problem}")

    return {tier: [*map(named, findings)] for tier, findings in findings_by_tier.items()}


def _runs_script(root: Table) -> bool:
    train = root.entries.get("train")
    script = train.entries.get("script") if isinstance(train, Table) else None
    return script is not None and not is_null(script)


def _overlays(root: Table, findings: list[Finding], models: Models) -> dict[str, Table | None]:
    """Return the overlay of each tier."""
    tiers = tuple(models)
    overlays: dict[str, Table | None] = {tiers[0]: None}
    targets = root.entries.get("targets")
    if targets is None or is_null(targets):
        return overlays
    if not isinstance(targets, Table):
        remedy = f"write a mapping with {', '.join(tiers)}"
        findings.append(yamltree.finding(targets, f"is {describe(targets)}", remedy))
        return overlays
    for tier, node in targets.entries.items():
        if tier not in tiers:
            position = targets.keys[tier]
            remedy = did_you_mean(tier, tiers)
            findings.append(Finding(position, f"targets.{tier}", "unknown tier", remedy))
        elif isinstance(node, Table):
            overlays[tier] = node
        elif is_null(node):
            overlays[tier] = None
        else:
            remedy = "write the fields that differ"
            if isinstance(node, Listing) and _list_of(tier, models) != tier:
                remedy = f"write targets.{_list_of(tier, models)}"
            findings.append(yamltree.finding(node, f"is {describe(node)}", remedy))
    return overlays


def _list_of(tier: str, models: Models) -> str:
    """Return hosts.hosts for a tier that has a field of its own name, because users mean the field; else the tier."""
    return f"{tier}.{tier}" if tier in Group(models[tier]).field_kinds else tier


def _locate(conflict: Conflict, root: Table, shared: bool) -> Finding:
    """Point at the first of the conflict's fields that is in the file, or else at the nearest node around the first.

    `shared`: False if the fields of the overlay come before the others. A value of a sweep comes before all fields.
    """
    in_file = [
        field_path
        for field_path in conflict.fields
        if _nearest_node(root, field_path)[1] == len(_parts(field_path))
    ]
    if not shared:
        in_file.sort(key=lambda path: _nearest_node(root, path)[0].path[:1] != ("targets",))
    in_file.sort(key=lambda path: _nearest_node(root, path)[0].path[:1] != (SWEEP,))
    field_path = in_file[0] if in_file else conflict.fields[0]
    node, depth = _nearest_node(root, field_path)
    path = (*node.path, *_parts(field_path)[depth:])
    return Finding(node.position, dotted(path), conflict.problem, conflict.remedy, conflict.fatal)


def _parts(field_path: str) -> tuple[str, ...]:
    """Split a path like hosts[1].nic into hosts, [1], nic."""
    return tuple(field_path.replace("[", ".[").split("."))


def _nearest_node(root: Table, field_path: str) -> tuple[Node, int]:
    """Return the node at the path, or the last node on the way to it that is in the file; and the depth of this node."""
    node: Node = root
    for depth, part in enumerate(_parts(field_path)):
        below = _child(node, part)
        if below is None:
            return node, depth
        node = below
    return node, len(_parts(field_path))


def _child(node: Node, part: str) -> Node | None:
    if isinstance(node, Table):
        return node.entries.get(part)
    if isinstance(node, Listing) and part.startswith("["):
        return node.items[int(part[1:-1])]
    return None


def _group_with_field(models: Models, name: str) -> tuple[str, str]:
    """Return the group that has a field of this name, in words, and the field's path; two "" if none has it."""
    job = Group(JobSpec)
    if name in job.field_kinds:
        return "the top level of the spec", name
    if name in models:
        return f"targets (targets.{_list_of(name, models)})", ""
    tiers = {tier: Group(model) for tier, model in models.items()}
    for tier, group in tiers.items():
        if name in group.field_kinds:
            return f"targets.{tier}", name
    for tier, group in {"": job, **tiers}.items():
        for field, kind in group.field_kinds.items():
            if name in kind.field_kinds:
                below = f" of targets.{tier}" if tier else ""
                return f"{field}{below} ({field}.{name})", f"{field}.{name}"
    return "", ""
