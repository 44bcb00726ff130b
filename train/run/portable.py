"""`train.determinism: portable`: the same kernels on every x86 processor with AVX2.

Owns the environment variables that choose them, which torch's libraries read when they are loaded. Why these
values, and what they do not reach: docs/performance.md.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path

from train.base.processor import isa

PORTABLE = "portable"
# None: has to be unset, as it would ask for something else.
_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": None,  # the older name of the same
    "MKL_CBWR": "COMPATIBLE",  # on processors of AMD, MKL takes AVX2 for AUTO
    "MKL_ENABLE_INSTRUCTIONS": None,
}


def is_asked(argv: Sequence[str]) -> bool:
    """Whether an argv of `python -m train run` asks for it; the last word counts."""
    given = [word for word in argv if word.startswith("--determinism=")]
    return given[-1:] == [f"--determinism={PORTABLE}"]


def pin(environment: MutableMapping[str, str], proc: Path = Path("/proc")) -> None:
    """Choose the kernels, whatever `environment` says; for this process before it imports torch, and for its children.

    Does nothing where there is no AVX2: ATen would die of an illegal instruction. See is_met().
    """
    if isa(proc, {}) not in ("avx2", "avx512"):
        return
    for name, value in _VARIABLES.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value


def is_met(cpu_capability: str) -> bool:
    """Whether a process whose ATen takes these kernels computes the portable bits."""
    return cpu_capability == "AVX2"
