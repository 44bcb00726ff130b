"""Values as YAML source that every YAML reader reads as the same value. Pure.

Decides which texts need quotes. Knows neither a file's layout nor the values' meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

# A text that matches needs no quotes in YAML 1.1 and 1.2, unless it is one of the reserved words.
_PLAIN_SCALAR = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+@-]+)*", re.ASCII)
_RESERVED_WORDS = frozenset(
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"]
)
# Characters that YAML does not allow raw, or that a person cannot see.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]"
)


_WIDTH = 100  # columns; a longer entry of a block goes on below its key


class Source(str):
    """A YAML scalar as it is written in a file, with its quotes."""

    __slots__ = ()


def scalar(value: str | int | float | bool | None) -> str:
    """Return `value` as one YAML scalar on one line. Raise ValueError for half of a surrogate pair."""
    if isinstance(value, Source):
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    value.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    if _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED_WORDS:
        return value
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted) + '"'


def flow(value: object) -> str:
    """Return a value, or a list or mapping of values, as YAML on one line. A path becomes a text.

    Raises TypeError for a value that YAML does not have, and ValueError for half of a surrogate pair.
    """
    if value is None or isinstance(value, str | int | float):
        return scalar(value)
    if hasattr(value, "__fspath__"):
        return scalar(value.__fspath__())
    if isinstance(value, Mapping):
        pairs = (f"{scalar(name)}: {flow(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return f"[{', '.join(map(flow, value))}]"
    raise TypeError(f"{value!r} is no value of a spec")


def block(entries: Mapping[str, object], indent: int = 0) -> str:
    """Return the lines of a mapping, indented by `indent` spaces."""
    margin, lines = " " * indent, []
    for name, value in entries.items():
        line = f"{margin}{scalar(name)}: {flow(value)}"
        if len(line) <= _WIDTH or not value or not isinstance(value, Mapping | list):
            lines.append(line)
            continue
        lines.append(f"{margin}{scalar(name)}:")
        if isinstance(value, Mapping):
            lines.append(block(value, indent + 2))
        else:
            lines += (f"{margin}  - {flow(item)}" for item in value)
    return "\n".join(lines)
