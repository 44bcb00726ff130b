"""A spec as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ddpgen.spec.fields import NodeCount
from ddpgen.spec.times import Period


def plain(value: Any) -> Any:
    """A spec as what JSON can hold, every default written out."""
    if isinstance(value, Period):
        return str(value)
    if isinstance(value, NodeCount):
        return str(value) if value.elastic else int(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value
