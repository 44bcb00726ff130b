"""The instruction sets of this host's processor, as torch chooses its kernels by them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

_LEVELS = ("default", "avx2", "avx512")
# What ATen asks of an x86 processor before it takes the kernels of a level.
_NEEDS = {
    "avx512": {"avx512vl", "avx512bw", "avx512dq", "fma"},
    "avx2": {"avx2", "fma"},
}


def isa(proc: Path, environment: Mapping[str, str]) -> str:
    """The kernels that torch will take: avx512, avx2 or default; elsewhere the architecture."""
    architecture = os.uname().machine
    flags = _flags(proc) if architecture in ("x86_64", "i686") else set()
    if not flags:
        return architecture
    able = next((level for level, needs in _NEEDS.items() if needs <= flags), "default")
    wanted = environment.get("ATEN_CPU_CAPABILITY", able)
    return min(able, wanted, key=_LEVELS.index) if wanted in _LEVELS else able


def _flags(proc: Path) -> set[str]:
    # The first processor's will do; with hundreds of them the file takes long to make.
    with (
        contextlib.suppress(OSError),
        open(proc / "cpuinfo", encoding="utf-8", buffering=4096) as f,
    ):
        for line in f:
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()
