"""A SkyPilot task in YAML → fields of the tier sky. Source: SkyPilot's YAML specification."""

from __future__ import annotations

import re

from ddpgen.adopt.draft import Draft
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table
from ddpgen.tiers.sky.extra import FREE, RESOURCES, SET, TOP, UNFIT

_BUCKET = re.compile(r"(s3|gs|r2|cos|oci|nebius)://")
# SkyPilot's name of a store, or the name of its cloud → the scheme of the store's URLs.
_STORES = {"gcs": "gs", "ibm": "cos", "aws": "s3", "gcp": "gs", "oci": "oci", "nebius": "nebius"}
_SAME_FIELDS = ("instance_type", "cpus", "memory", "disk_tier", "network_tier", "image_id")


def fields(root: Table, draft: Draft) -> dict[str, str]:
    """Put all of the task but its command into the draft. Return the variables that the command knows."""
    line = {name: position.line for name, position in root.keys.items()}
    entries = root.entries
    variables = {"SKYPILOT_NUM_NODES": _text(entries.get("num_nodes")) or "1"}
    if variables["SKYPILOT_NUM_NODES"].isdigit():
        draft.put("nodes", int(variables["SKYPILOT_NUM_NODES"]), line.get("num_nodes", 0))
    if _text(entries.get("name")):
        draft.put("name", _text(entries["name"]), line["name"])
    resources = entries.get("resources")
    gpus = _resources(resources, draft) if isinstance(resources, Table) else 0
    if gpus:
        variables["SKYPILOT_NUM_GPUS_PER_NODE"] = str(gpus)
    if draft.get("targets.sky.spot") is None:
        draft.put("targets.sky.spot", False)  # the spec's own default is true
    variables |= _variables(root, draft)
    for text in filter(str.strip, _text(entries.get("setup")).splitlines()):
        draft.add("targets.sky.setup", text, line["setup"])
    mounts = entries.get("file_mounts")
    cloud = (draft.get("targets.sky.infra") or [""])[0].partition("/")[0]
    for path, node in mounts.entries.items() if isinstance(mounts, Table) else ():
        _mount(path, node, draft, _STORES.get(cloud, ""))
    if draft.get("targets.sky.bucket.url") is None:
        problem = "no bucket is mounted for checkpoints, which are lost with the machine"
        draft.report_trap(line.get("resources", 0), problem, "write targets.sky.bucket: s3://NAME")
    for name in entries:
        if name not in (*SET[TOP], RESOURCES, "file_mounts"):
            draft.report_lost(line[name], *_remark(TOP, name, f"{name}:"))
    return variables


def _variables(root: Table, draft: Draft) -> dict[str, str]:
    variables = {}
    for group in ("envs", "secrets"):
        table = root.entries.get(group)
        for name, node in table.entries.items() if isinstance(table, Table) else ():
            value = _text(node)
            if group == "secrets":
                draft.secret(name, node.position.line)
                continue
            if _is_null(node) and not draft.is_secret(name, value):
                problem = f"the variable {name}, whose value sky takes from --env"
                draft.report_lost(node.position.line, problem, f"write env: {{{name}: VALUE}}")
                continue
            draft.variable(name, value, node.position.line)
            if not draft.is_secret(name, value):
                variables[name] = value
    return variables


def _resources(table: Table, draft: Draft) -> int:
    gpus = 0
    location = [_text(table.entries.get(name)) for name in ("cloud", "region", "zone")]
    for name, node in table.entries.items():
        text, line = _text(node), table.keys[name].line
        if name == "accelerators":
            gpus = _accelerators(node, line, draft)
        elif name == "use_spot":
            draft.put("targets.sky.spot", text.lower() in ("true", "yes", "on"), line)
        elif name in ("cloud", "infra") and text:
            draft.put("targets.sky.infra", ["/".join(filter(None, location)) or text], line)
        elif name == "disk_size" and text.removesuffix("GB").isdigit():
            draft.put("targets.sky.disk_size", int(text.removesuffix("GB")), line)
        elif name in _SAME_FIELDS and text:
            draft.put(SET[RESOURCES][name], text, line)
        elif name not in ("region", "zone") or not location[0]:
            draft.report_lost(line, *_remark(RESOURCES, name, f"resources.{name}"))
    return gpus


def _remark(part: str, name: str, shown: str) -> tuple[str, str]:
    """Return the text about a key without a counterpart here, and the remedy."""
    if name in UNFIT[part]:
        return f"{shown} {UNFIT[part][name]}", ""
    if name in FREE[part]:
        return shown, "write it in targets.sky.extra"
    return shown, f"write {SET[part].get(name, 'it by a field below targets.sky, if there is one')}"


def _accelerators(node: Node, line: int, draft: Draft) -> int:
    kinds = [_text(node)] if _text(node) else [_text(item) for item in getattr(node, "items", [])]
    if isinstance(node, Table):
        kinds = [
            kind if _is_null(item) else f"{kind}:{_text(item)}"
            for kind, item in node.entries.items()
        ]
    kinds = [kind if ":" in kind else f"{kind}:1" for kind in kinds]
    if isinstance(node, Listing):
        draft.put("targets.sky.ordered", True, line)
    draft.put("targets.sky.accelerators", kinds, line)
    count = kinds[0].rpartition(":")[2] if kinds else ""
    if count.isdigit():
        draft.put("gpus_per_node", int(count), line)
    return int(count) if count.isdigit() else 0


def _mount(path: str, node: Node, draft: Draft, default_store: str) -> None:
    """Make the first bucket that is mounted for writing the job's. `default_store`: the scheme of the cloud's store."""
    line = node.position.line
    options = (
        {name: _text(item) for name, item in node.entries.items()}
        if isinstance(node, Table)
        else {}
    )
    source = options.get("source", "") or _text(node)
    if "name" in options and not source:
        store = options.get("store", "").lower()
        source = f"{_STORES.get(store, store) or default_store}://{options['name']}"
    mode = options.get("mode", "MOUNT").upper()
    if "name" in options and mode != "COPY" and not _BUCKET.match(source):
        remedy = "write targets.sky.bucket with its URL, such as s3://NAME or gs://NAME"
        draft.report_lost(
            line, f"file_mounts {path}, whose kind of bucket the task leaves open", remedy
        )
        return
    if (
        mode == "COPY"
        or isinstance(node, Scalar)
        or not _BUCKET.match(source)
        or draft.get("targets.sky.bucket.url")
    ):
        draft.report_lost(
            line,
            f"file_mounts {path}",
            "write it in targets.sky.extra"
            if _BUCKET.match(source)
            else "put small files below code; have targets.sky.setup fetch data",
        )
        return
    draft.put("targets.sky.bucket.url", source, line)
    draft.put("targets.sky.bucket.path", path, line)
    if mode == "MOUNT_CACHED":
        draft.put("targets.sky.bucket.mode", "cached", line)
    problem = f"two jobs that write to {path} write over each other's checkpoints"
    draft.report_trap(
        line,
        problem,
        "each job has its own part of the bucket: write {checkpoint_dir} in train.args",
    )


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, Scalar) and not _is_null(node) else ""


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.tag == "null"
