"""Values as YAML source that every reader takes for the same value. Pure.

Owns which texts need quotes. Knows neither a file's layout nor what the values mean.
"""

from __future__ import annotations

import json
import re

# What YAML 1.1 and 1.2 agree on to be a text.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+@-]+)*", re.ASCII)
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"])
# Not allowed raw by YAML, or not to be read by a person as what they are.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]"
)


def scalar(value: str | int | float | bool | None) -> str:
    """`value` as one YAML scalar on one line. Raises ValueError for half of a surrogate pair."""
    if not isinstance(value, str):
        return json.dumps(value)
    value.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted) + '"'
