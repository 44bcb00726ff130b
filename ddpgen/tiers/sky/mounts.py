"""targets.sky.extra.file_mounts: the mounts that SkyPilot 0.14.1 refuses (sky/task.py, sky/data/storage.py). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ddpgen.spec.fields import Refused, did_you_mean, show
from ddpgen.spec.places import bucket_fault

_KEYS = {"name", "source", "store", "persistent", "mode", "type", "config"}
_MODES = {"MOUNT", "COPY", "MOUNT_CACHED"}
STORES = (
    "s3",
    "gcs",
    "azure",
    "r2",
    "ibm",
    "oci",
    "nebius",
    "coreweave",
    "vastdata",
    "hf",
    "volume",
)
_SCHEMES = ("s3", "gs", "r2", "cos", "oci", "nebius", "cw", "vastdata", "hf", "https")
_FORM = "write a path, a URL, or a mapping with source and mode (MOUNT, COPY, MOUNT_CACHED)"
_ABSOLUTE = re.compile(r"[/~]|[a-z0-9+]+://")
_URL = re.compile(r"([a-z0-9+]+)://([^/]*)/*(.*)")
_WORKDIR = "~/sky_workdir"


def fault(target: str, source: Any) -> Refused | None:
    """Return the refusal of a mount; None if SkyPilot takes it. `source`: YAML source, or a mapping of it."""
    if isinstance(source, list):
        return Refused("is a list", _FORM)
    if _URL.match(target):
        return Refused(f"{target} is a place in the cloud", "write PATH: URL, the path first")
    if target == _WORKDIR:
        return Refused(f"{_WORKDIR} is the place of the job itself", "take another path")
    if isinstance(source, Mapping):
        return _mapping_fault(source)
    text = _text(source)
    for path in (target, text):
        if path.endswith("/"):
            problem = f"{show(path)} ends with a slash, which SkyPilot refuses"
            return Refused(problem, "leave the slash out")
    return _relative_fault(text)


def _mapping_fault(source: Mapping[str, Any]) -> Refused | None:
    if unknown := sorted(source.keys() - _KEYS):
        return Refused(f"{show(unknown[0])} is no key of a mount", _FORM)
    mode, store = _text(source.get("mode", "MOUNT")), _text(source.get("store", "s3"))
    if mode.upper() not in _MODES:
        return Refused(f"{show(mode)} is no mode of a mount", _FORM)
    if store.lower() not in STORES:
        return Refused(f"{show(store)} is no store of SkyPilot", did_you_mean(store, STORES))
    place = source.get("source")
    if not place and not source.get("name"):
        return Refused("has neither a source nor a name", "write source, with a bucket's URL")
    text = _text(place)
    if not (url := _URL.match(text)):
        if text.endswith("/"):
            problem = f"{show(text)} ends with a slash, which SkyPilot refuses"
            return Refused(problem, "leave the slash out")
        if text and not source.get("name"):
            problem = f"{text} is no bucket, and a mapping of it needs the name of a new one"
            return Refused(problem, f"write the path alone: {text}, or add name")
        return _relative_fault(text)
    if url[1] not in _SCHEMES:
        return Refused(f"SkyPilot has no {url[1]}://", did_you_mean(url[1], _SCHEMES))
    if url[1] not in ("cos", "hf", "https") and url[3] and mode.upper() != "COPY":
        problem = f"{text} is a place in a bucket, and SkyPilot mounts whole ones"
        return Refused(problem, f"write {url[1]}://{url[2]}, or mode: COPY")
    return bucket_fault(url[1], url[2])


def _relative_fault(text: str) -> Refused | None:
    if not text or _ABSOLUTE.match(text):
        return None
    problem = f"{text} is relative, and SkyPilot would look for it in the bundle"
    return Refused(problem, "write /PATH, ~/PATH or a bucket's URL, or put it into code")


def _text(source: Any) -> str:
    return source.strip('"') if isinstance(source, str) else ""
