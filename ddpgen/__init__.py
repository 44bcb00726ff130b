"""The generator: one YAML job spec in, launch artefacts out. Never imports torch.

`ddpgen.load()` is the way in for Python: docs/python.md. Its module is imported on first use, because a command starts
faster without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpgen.api import Bundle, Launch, Spec, load
    from ddpgen.errors import (
        BundleRefusedError,
        DdpgenError,
        FileTroubleError,
        Finding,
        OptionRefusedError,
        Position,
        SpecInvalidError,
        SpecUnreadableError,
        TargetUnavailableError,
    )

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "BundleRefusedError",
    "DdpgenError",
    "FileTroubleError",
    "Finding",
    "Launch",
    "OptionRefusedError",
    "Position",
    "Spec",
    "SpecInvalidError",
    "SpecUnreadableError",
    "TargetUnavailableError",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddpgen import api, errors

    return getattr(errors if hasattr(errors, name) else api, name)
