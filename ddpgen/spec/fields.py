"""The kinds of value a spec has: how each is read from its text, and why it may be refused.

Owns ranges and the traps of YAML 1.1 (`yes`, `2:00`, `010`, `1e-3`); what has a unit is in times.py. Knows neither
the names of fields nor where they stand; pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ddpgen.spec.yamltree import Scalar

REQUIRED = object()
LARGEST = 2**63 - 1
LONGEST = 60  # characters of a number; a longer text is not even looked at


class Refused(Exception):  # noqa: N818 (it is an answer, caught by the reader, never shown raised)
    """What is wrong with one value, and what to write instead."""

    def __init__(self, what: str, remedy: str):
        super().__init__(what)
        self.what, self.remedy = what, remedy


def setting(kind: Kind, default: Any = REQUIRED) -> Any:
    """A dataclass field of the spec: its kind and its default.

    Where the default is nothing at all (None, an empty list or mapping) the spec may say `null` for it.
    """
    metadata = {"kind": kind, "null": default in (None, (), dict)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Kind:
    """What a field may hold. Subclasses of Leaf read one scalar; the reader walks the others.

    `wants`: what to write, for people. `sample`: stands in for a value that was refused.
    """

    wants = "a value"
    sample: Any = None


class Leaf(Kind):
    """A kind that is written as one scalar. `schema`: the same for editors, as JSON Schema."""

    schema: Mapping[str, Any]

    def read(self, raw: Scalar) -> Any:
        """The value; raises Refused."""
        raise NotImplementedError


class Text(Leaf):
    """A string. Numbers are taken as written: `007` stays `007`."""

    sample = "x"

    def __init__(self, pattern: str = "", wants: str = "a text"):
        self.pattern, self.wants = pattern, wants
        self.schema = {"type": ["string", "number"], "minLength": 1}
        if pattern:
            self.schema["pattern"] = f"^({pattern})$".replace("\\0", "\\u0000")

    def read(self, raw: Scalar) -> str:
        if raw.tag == "bool":
            said = f"YAML reads {raw.text} as {truth(raw.text)}, not as text"
            raise Refused(said, f'write "{raw.text}" in quotes')
        if not raw.text:
            raise Refused("is empty", f"write {self.wants}")
        if self.pattern and not re.fullmatch(self.pattern, raw.text, re.ASCII):
            raise Refused(f"{show(raw.text)} does not fit", f"write {self.wants}")
        return raw.text


class Value(Text):
    """The value of an environment variable: any text, also none at all."""

    def read(self, raw: Scalar) -> str:
        return "" if raw.quoted and not raw.text else super().read(raw)


class Whole(Leaf):
    """A whole number within a range."""

    def __init__(self, low: int = 0, high: int = LARGEST):
        self.low, self.high, self.sample = low, high, low
        self.wants = f"a whole number from {low}"
        if high != LARGEST:
            self.wants += f" to {high}"
        self.schema: Mapping[str, Any] = {
            **_number_schema("integer"),
            "minimum": low,
            "maximum": high,
        }

    def read(self, raw: Scalar) -> int:
        refuse_non_number(raw, self.wants)
        if not re.fullmatch(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", raw.text, re.ASCII):
            raise Refused(f"{show(raw.text)} is not a whole number", f"write {self.wants}")
        value = int(raw.text.replace("_", ""), 16 if raw.text.startswith("0x") else 10)
        if not self.low <= value <= self.high:
            # The bound that goes without saying: what a number of the file format can be.
            most = f" to {LARGEST}" if value > self.high == LARGEST else ""
            raise Refused(f"{value} is out of range", f"write {self.wants}{most}")
        return value


class Number(Leaf):
    """A number, whole or not; `above` is excluded, `low` included."""

    def __init__(self, low: float | None = None, above: float | None = None):
        self.low, self.above, self.sample = low, above, 1.0
        self.wants = "a number"
        if low is not None:
            self.wants += f", {low:g} or more"
        if above is not None:
            self.wants += f" above {above:g}"
        bounds = {"minimum": low, "exclusiveMinimum": above}
        self.schema = {
            **_number_schema("number"),
            **{k: v for k, v in bounds.items() if v is not None},
        }

    def read(self, raw: Scalar) -> float:
        refuse_non_number(raw, self.wants)
        value = decimal(raw.text)
        if value is None:
            raise Refused(f"{show(raw.text)} is not a number", f"write {self.wants}")
        if not math.isfinite(value):
            raise Refused("is not a finite number", f"write {self.wants}")
        if (self.low is not None and value < self.low) or (
            self.above is not None and value <= self.above
        ):
            raise Refused(f"{raw.text} is out of range", f"write {self.wants}")
        return value


class NodeCount(int):
    """How many machines; an elastic job also runs on fewer, down to `least`."""

    least: int

    def __new__(cls, most: int, least: int | None = None) -> NodeCount:
        count = super().__new__(cls, most)
        count.least = most if least is None else least
        return count

    @property
    def elastic(self) -> bool:
        """Whether the number may change while the job runs."""
        return self.least < self

    def __str__(self) -> str:
        return f"{self.least}..{int(self)}" if self.elastic else str(int(self))


class Nodes(Whole):
    """A number of machines, or a range of them: 2..4."""

    def __init__(self, high: int):
        super().__init__(1, high)
        self.sample = NodeCount(1)
        self.wants += ", or a range like 2..4"
        span = {"type": "string", "pattern": "^[0-9]+\\s*[.][.]\\s*[0-9]+$"}
        self.schema = {"anyOf": [self.schema, span]}

    def read(self, raw: Scalar) -> NodeCount:
        least, dots, most = raw.text.partition("..")
        if raw.quoted or not dots or len(raw.text) > LONGEST:
            return NodeCount(super().read(raw))
        ends = [super(Nodes, self).read(raw._replace(text=end.strip())) for end in (least, most)]
        if ends[0] >= ends[1]:
            raise Refused(f"{raw.text} is no range", "write the smaller number first, like 2..4")
        return NodeCount(ends[1], ends[0])


class Choice(Leaf):
    """One word out of a few."""

    def __init__(self, *words: str):
        self.words, self.sample = words, words[0]
        self.wants = f"one of {', '.join(words)}"
        self.schema = {"enum": list(words)}

    def read(self, raw: Scalar) -> str:
        if raw.text in self.words:
            return raw.text
        raise Refused(f"{show(raw.text)} is not known", did_you_mean(raw.text, self.words))


class Flag(Leaf):
    """true or false."""

    sample = False
    wants = "true or false"
    # Editors read YAML 1.2, where `off` is a text.
    schema: Mapping[str, Any] = {
        "type": ["boolean", "string"],
        "pattern": "^([Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$",
    }

    def read(self, raw: Scalar) -> bool:
        if raw.tag != "bool" or raw.quoted:
            raise Refused(f"{show(raw.text)} is neither true nor false", "write true or false")
        return truth(raw.text) == "true"


class Pairs(Kind):
    """A mapping of free names to values; with `leaf` every value is one scalar."""

    wants = "a mapping of names to values"

    def __init__(self, names: str, names_want: str, leaf: Leaf | None = None):
        self.names, self.names_want, self.leaf = names, names_want, leaf
        self.sample: Mapping[str, Any] = {}


class Arguments(Pairs):
    """Arguments of a program: a mapping of names to values, or a list of `leaf`s as they are."""

    def __init__(self, names: str, names_want: str, word: Text):
        super().__init__(names, names_want)
        self.word = word
        self.wants += ", or a list of texts"


class Texts(Kind):
    """A text or a list of texts; kept as a tuple."""

    def __init__(self, leaf: Leaf):
        self.leaf, self.sample = leaf, ()
        self.wants = f"{leaf.wants}, or a list of them"


class Group(Kind):
    """A mapping of known fields; `shorthand` names the one a bare scalar stands for."""

    def __init__(self, model: Callable[..., Any], shorthand: str = ""):
        self.model, self.shorthand = model, shorthand
        self.wants = f"a mapping, or the {shorthand}" if shorthand else "a mapping"


class Groups(Kind):
    """A list of mappings of known fields; kept as a tuple."""

    wants = "a list of mappings, each after a dash"

    def __init__(self, group: Group):
        self.group, self.sample = group, ()


def _number_schema(kind: str) -> dict[str, Any]:
    """Editors read YAML 1.2, where 1_000 is a text."""
    return {"type": [kind, "string"], "pattern": "^[-+]?[0-9]+_[0-9_.]*$"}


def refuse_non_number(raw: Scalar, wants: str) -> None:
    """Explain what YAML 1.1 makes of a text that only looks like a number. Raises Refused."""
    refuse_long(raw, wants)
    if raw.quoted:
        raise Refused(f"{show(raw.text)} is a text, because of its quotes", f"write {wants}")
    if raw.tag == "bool":
        raise Refused(f"YAML reads {raw.text} as {truth(raw.text)}", f"write {wants}")
    refuse_base_60(raw, f"write {wants}")
    if re.fullmatch(r"[-+]?0[0-9_]+", raw.text, re.ASCII):
        what = f"YAML reads the leading zero of {raw.text} as octal"
        raise Refused(what, f"write {raw.text.lstrip('+-0') or '0'} without the zero")


def refuse_long(raw: Scalar, wants: str) -> None:
    """Raises Refused."""
    if len(raw.text) > LONGEST:
        raise Refused(f"{show(raw.text)} is far too long", f"write {wants}")


def refuse_base_60(raw: Scalar, remedy: str) -> None:
    """2:00 is the number 120 to YAML 1.1: say so. Raises Refused."""
    if raw.tag in ("int", "float") and ":" in raw.text:
        value = 0.0
        for part in raw.text.lstrip("+-").replace("_", "").split(":"):
            value = value * 60 + float(part)
        raise Refused(f"YAML reads {raw.text} as the number {value:g} (base 60)", remedy)


def decimal(text: str) -> float | None:
    """1e-3, .5, 1_000: what people call a number; None for anything else."""
    if len(text) > LONGEST or not re.fullmatch(
        r"[-+]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text, re.ASCII
    ):
        return None
    return float(text.replace("_", ""))


def truth(text: str) -> str:
    """What YAML 1.1 makes of yes, on, True and their likes."""
    return "true" if text.lower() in ("yes", "on", "true") else "false"


def show(text: str) -> str:
    """A value as it appears in a message: quoted, short, on one line."""
    short = text if len(text) <= 60 else text[:57] + "..."
    return f'"{short}"' if short.isprintable() else ascii(short)


# What other tools call it, and no likeness would find.
_ALSO_CALLED = {
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "batch_size": "global_batch_size",
}


def did_you_mean(word: str, known: tuple[str, ...], more: str = "") -> str:
    """The remedy for a word that is not known."""
    import difflib

    word = _ALSO_CALLED.get(word, word)
    written = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:LONGEST].lower(), written, 1, 0.6)
    if close:
        return f"did you mean {written[close[0]]}?"
    return more or f"write one of {', '.join(known)}"
