"""`train.determinism: portable`: the same kernels on every x86 processor with AVX2.

Owns the environment variables that choose the kernels. torch's libraries read them while they load.
docs/performance.md gives the reasons for these values and their limits.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path

from train.base.processor import isa

PORTABLE = "portable"
# None: the variable has to be unset, because it would choose other kernels.
_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": None,  # the older name of ONEDNN_MAX_CPU_ISA
    "MKL_CBWR": "COMPATIBLE",  # on AMD processors MKL treats AVX2 as AUTO
    "MKL_ENABLE_INSTRUCTIONS": None,
}


def is_asked(argv: Sequence[str]) -> bool:
    """True if an argv of `python -m train run` asks for portable kernels; its last `--determinism` counts."""
    given = [word for word in argv if word.startswith("--determinism=")]
    return given[-1:] == [f"--determinism={PORTABLE}"]


def pin(environment: MutableMapping[str, str], proc: Path = Path("/proc")) -> None:
    """Set the variables in `environment`, and replace values that are there.

    They act on the children of this process, and on this process if it has not imported torch yet. Does nothing on a
    processor without AVX2, because ATen would die of an illegal instruction. See is_met().
    """
    if isa(proc, {}) not in ("avx2", "avx512"):
        return
    for name, value in _VARIABLES.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value


def is_met(cpu_capability: str) -> bool:
    """True if a process whose ATen reports this CPU capability computes the portable bits."""
    return cpu_capability == "AVX2"
