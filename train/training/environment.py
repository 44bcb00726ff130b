"""The environment of a host: processor, GPU, libraries and installed distributions, as far as results depend on it.

Owns the list of these facts and the place where each is read. Reads only the environment variables that are named here
or in provenance.py, because others may hold secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

# The processor flags that choose kernels or number formats.
_FLAGS = {
    "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm",
}  # fmt: skip
_PROC = Path("/proc")


def environment(facts: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the environment of this host, for the manifest. `facts`: the result of numerics.facts."""
    system = os.uname()
    return {
        **facts,
        **_processor(),
        **(_gpu() if device.type == "cuda" else {}),
        "python": platform.python_version(),
        "os": _os_name(),
        "kernel": f"{system.sysname} {system.release}",
        "container": _container(),
        "determinism": {
            "deterministic_debug_mode": torch.get_deterministic_debug_mode(),
            "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        },
        "distributions": distributions(sys.path),
    }


def identity(environment: dict[str, Any]) -> str:
    """Return 12 hexadecimal digits, the same for hosts with the same environment."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]


def distributions(path: Iterable[str]) -> dict[str, str]:
    """Return the version of each installed distribution, by its normalized name.

    Reads the names of the metadata directories, as pip writes them. importlib.metadata would open and parse a file of
    each, which takes twenty times as long.
    """
    found: dict[str, str] = {}
    for place in path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue  # a zip file, or a directory that is not there
        for name in names:
            stem, dot, kind = name.rpartition(".")
            if dot and kind in ("dist-info", "egg-info"):
                project, _, version = stem.partition("-")
                # The first on the path is the one that is imported.
                found.setdefault(re.sub(r"[-_.]+", "-", project).lower(), version.partition("-")[0])
    return dict(sorted(found.items()))


def _processor() -> dict[str, Any]:
    """Return the model and the flags of the first processor. Reads no further, because the kernel takes long to make
    the file for hundreds of processors."""
    said: dict[str, str] = {}
    try:
        with open(_PROC / "cpuinfo", encoding="utf-8", errors="replace", buffering=4096) as lines:
            for line in lines:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                said[name.strip()] = value.strip()
    except OSError:
        pass  # not Linux
    flags = said.get("flags") or said.get("Features") or ""
    return {
        "cpu": said.get("model name") or platform.processor() or platform.machine(),
        "flags": sorted(_FLAGS & set(flags.split())),
    }


def _gpu() -> dict[str, Any]:
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", _text(_PROC / "driver/nvidia/version"))
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    return {
        "driver": found[0] if found else "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": ".".join(map(str, nccl)),
    }


def _os_name() -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text(Path("/etc/os-release")), re.MULTILINE)
    return found[1] if found else platform.platform(aliased=True, terse=True)


def _container() -> str:
    """Return the container's image, as far as its runtime tells it; "" outside of a container."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if image := os.environ.get(name):
            return f"apptainer {image}"
    podman = _text(Path("/run/.containerenv"))
    said = dict(re.findall(r'^(image|imageid)="(.*)"$', podman, re.MULTILINE))
    if said:
        return f"podman {said.get('image', '')} {said.get('imageid', '')}".strip()
    return "docker" if Path("/.dockerenv").exists() else ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
