"""manifest.json: the starts of a run, each with its hosts, bundle, data and end.

Owns the schema, reading the file, and merging the starts of one job from several places. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base import typed
from train.base.errors import TrainError
from train.base.files import read_file
from train.run.status import Status, read_status

MANIFEST = "manifest.json"
SCHEMA = 2
MOST_BYTES = 1 << 28
LIBRARY_FLAGS = (
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""The environment variables in the manifest: they choose how libraries compute, and hold no secrets."""
_BUNDLE = re.compile(r"([0-9a-f]{12})?")
# A start knows these values only some time after it has begun.
_LATE = ("bundle", "data", "stages")

Start = dict[str, Any]


@dataclass(frozen=True)
class _Entry:
    """The values that every start has."""

    attempt: str
    generation: int
    tier: str
    started: float
    from_step: int
    last_step: int
    bundle: str
    argv: tuple[str, ...]
    settings: dict[str, Any]
    code: str
    world_size: int
    shares: tuple[Any, ...]
    hosts: dict[str, dict[str, Any]]
    data: dict[str, Any]


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory. If only the file `status` knows that the last start failed, that end is
    added.

    Raises TrainError if the file is missing, truncated, or of another schema.
    """
    manifest = load(directory / MANIFEST)
    last, status = manifest["starts"][-1], read_status(directory)
    if "end" not in last and status is not None and status.word == "failed":
        last.update(_end_in(status, last))
    return manifest


def load(path: Path) -> dict[str, Any]:
    """The manifest in this file, unchanged. Raises TrainError."""
    try:
        return parse(read_file(path, MOST_BYTES))
    except FileNotFoundError:
        raise TrainError(f"{path} is not there; give the checkpoint directory of a run") from None
    except OSError as error:
        raise TrainError(
            f"{path} cannot be read: {error.strerror}; restore the permission, or get "
            "the directory from where it was made once more"
        ) from None
    except ValueError as error:
        raise TrainError(
            f"{path} {error}; get it from where it was made once more, or start the job "
            "again, which writes a new one"
        ) from None


def parse(content: bytes) -> dict[str, Any]:
    """The manifest in `content`. Raises ValueError, which says what is wrong with it."""
    try:
        manifest = typed.load(content)
    except ValueError:
        raise ValueError(f"is no whole JSON ({len(content)} bytes): truncated, or edited") from None
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise ValueError("has no schema: an earlier version wrote it, or another program")
    if manifest["schema"] != SCHEMA:
        raise ValueError(f"has schema {manifest['schema']!r}, and this version reads {SCHEMA}")
    starts, environments = manifest.get("starts"), manifest.get("environments")
    if not (isinstance(starts, list) and starts and all(map(is_start, starts))):
        raise ValueError("is damaged: starts")
    if not isinstance(environments, dict) or not all(
        isinstance(each, dict) for each in environments.values()
    ):
        raise ValueError("is damaged: environments")
    return manifest


def key_of(start: Mapping[str, Any]) -> tuple[Any, Any]:
    """The two values by which an entry of `starts` and a row of metrics.jsonl name a start."""
    return start.get("attempt"), start.get("generation")


def is_start(value: Any) -> bool:
    """True if this has the shape of an entry of `starts`."""
    entry = typed.convert(_Entry, value)
    return entry is not None and _BUNDLE.fullmatch(entry.bundle) is not None


def library_flags(facts: Mapping[str, Any]) -> dict[str, str]:
    """The variables of LIBRARY_FLAGS in these facts of a host.

    Any other name is left out, because the manifest may be a stranger's: PYTHONPATH, for example, would run code that
    is not in the bundle.
    """
    flags = facts.get("library_flags")
    return {
        name: flags[name]
        for name in LIBRARY_FLAGS
        if isinstance(flags, dict) and isinstance(flags.get(name), str)
    }


def weights_of(start: Any) -> tuple[int, str] | None:
    """The step at which this start ended, and the hash of its weights there; None if it did not end well."""
    if not isinstance(start, dict):
        return None
    step, weights = start.get("step"), start.get("weights")
    return (step, weights) if type(step) is int and isinstance(weights, str) else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`name: old -> new` for every value that differs, except the results of the bit probe."""
    names = sorted({*before, *now} - {"bits"})
    return [
        f"{name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def merged(starts: Iterable[Start]) -> list[Start]:
    """Starts from several places, each once, in the order in which they began.

    A checkpoint may have an older entry than the manifest, so values that one entry lacks come from the other.
    """
    found: dict[tuple[Any, Any], Start] = {}
    for start in starts:
        known = found.get(key_of(start), start)
        late = {name: each[name] for each in (known, start) for name in _LATE if each.get(name)}
        found[key_of(start)] = {**(start if "end" in start else known), **late}
    return sorted(found.values(), key=lambda start: float(start["started"]))


def end_earlier(starts: Iterable[Start], step: int, status: Status | None) -> None:
    """Add an end to the starts that recorded none, now that another start goes on from `step`. `status`: the status
    that they left."""
    for start in starts:
        if "end" not in start:
            start.update(_end_in(status, start), step=step)


def _end_in(status: Status | None, start: Mapping[str, Any]) -> dict[str, Any]:
    if status is None or status.attempt != start["attempt"]:
        return {"end": "killed", "reason": ""}
    if status.word == "running":
        return {"end": "crashed" if status.reason else "killed", "reason": status.reason}
    return {"end": status.word, "reason": status.reason}
