"""A module's own `time`: to replace functions of `time` itself would replace them for each thread of the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


def give_time(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., object]
) -> None:
    """Replace these functions of `time` for one module."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | functions))
