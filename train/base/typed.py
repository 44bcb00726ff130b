"""A reader for JSON that one of our programs has written from a frozen dataclass or a NamedTuple.

Owns the check of every value against the declared type of its field. In JSON, a dataclass is an object, as `asdict`
makes it, and a NamedTuple is a list. Knows no file by name.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from train.base.files import MAX_BYTES, read_file

T = TypeVar("T")
# The modules of this package that sys.modules no longer has, because a user's script may have a `train` of its own.
HIDDEN: dict[str, ModuleType] = {}


def load(content: str | bytes) -> Any:
    """Return the value in this JSON, which any program may have written. Raises ValueError if it is invalid."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(kind: type[T], path: Path, max_bytes: int = MAX_BYTES) -> T | None:
    """Read a value of type `kind` from a file of at most `max_bytes` bytes; return None for any other file."""
    try:
        return parse(kind, read_file(path, max_bytes))
    except OSError:
        return None


def parse(kind: type[T], content: str | bytes) -> T | None:
    """Return the value of type `kind` in this JSON; None if the JSON holds anything else."""
    try:
        return convert(kind, load(content))
    except ValueError:
        return None


def convert(kind: type[T], value: Any) -> T | None:
    """Convert `value`, from JSON, to the type `kind`; None if it does not fit. Ignores names that no field has."""
    try:
        converted: T = _converted(kind, value)
    except (ValueError, TypeError, OverflowError):
        return None
    return converted


def _converted(kind: Any, value: Any) -> Any:
    """Convert `value` to the type `kind`. Raises ValueError, TypeError (a missing field) or OverflowError."""
    if kind is Any or type(value) is kind:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if type(None) in arguments:  # Optional
        return None if value is None else _converted(arguments[0], value)
    if origin is tuple and type(value) is list:
        return _items(arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments, value)
    if origin is dict and type(value) is dict:
        return {name: _converted(arguments[1], item) for name, item in value.items()}
    if hasattr(kind, "__dataclass_fields__") and type(value) is dict:
        hints = _hints(kind).items()
        return kind(
            **{name: _converted(hint, value[name]) for name, hint in hints if name in value}
        )
    if hasattr(kind, "_fields") and type(value) is list:
        return kind(*_items(tuple(_hints(kind).values())[: len(value)], value))
    if kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"no {kind}")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    module = HIDDEN.get(kind.__module__)
    return get_type_hints(kind, vars(module) if module else None)


def _items(kinds: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    if len(kinds) != len(values):
        raise ValueError(f"not {len(kinds)} values")
    return tuple(map(_converted, kinds, values))
