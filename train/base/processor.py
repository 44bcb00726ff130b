"""The instruction sets of this host's processor, by which torch chooses its kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

_LEVELS = ("default", "avx2", "avx512")
# The flags that an x86 processor needs for ATen to use the kernels of a level.
_NEEDS = {
    "avx512": {"avx512vl", "avx512bw", "avx512dq", "fma"},
    "avx2": {"avx2", "fma"},
}


def isa(proc: Path, environment: Mapping[str, str]) -> str:
    """Return the kernels that torch will use on x86: avx512, avx2 or default. On other processors return the
    architecture."""
    architecture = os.uname().machine
    flags = _flags(proc) if architecture in ("x86_64", "i686") else set()
    if not flags:
        return architecture
    able = next((level for level, needs in _NEEDS.items() if needs <= flags), "default")
    wanted = environment.get("ATEN_CPU_CAPABILITY", able)
    return min(able, wanted, key=_LEVELS.index) if wanted in _LEVELS else able


def _flags(proc: Path) -> set[str]:
    # Read only the first processor: the kernel takes long to make the file for hundreds of them.
    with (
        contextlib.suppress(OSError),
        open(proc / "cpuinfo", encoding="utf-8", buffering=4096) as f,
    ):
        for line in f:
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()
