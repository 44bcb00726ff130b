"""The kinds of value that a spec writes as one scalar, and the interface of all kinds.

Owns ranges and the traps of YAML 1.1 (`yes`, `2:00`, `010`, `1e-3`). Values with a unit are in times.py, lists and
mappings in groups.py. Knows neither the names of fields nor their places in a file. Pure.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field
from typing import TYPE_CHECKING, Any

from ddpgen.errors import Position
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table, is_null

if TYPE_CHECKING:
    from ddpgen.spec.groups import Walk

REQUIRED = object()
MAX_INTEGER = 2**63 - 1
# Linux starts no program with an argument or variable above 128 KiB (MAX_ARG_STRLEN). 1 KiB is for the name.
MAX_BYTES = 127 << 10
MAX_NUMBER_LENGTH = 60  # characters of a number; a longer text is refused at once


class Refused(Exception):  # noqa: N818 (it is an answer: the reader catches it, and no user sees it raised)
    """The refusal of one value: the problem and its remedy."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


def setting(kind: Kind, default: Any = REQUIRED) -> Any:
    """Return a dataclass field of the spec, with its kind and its default.

    If the default is None, an empty list or an empty mapping, the spec may write `null` for it.
    """
    metadata = {"kind": kind, "null": default in (None, (), dict)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


# Returns the JSON Schema of a field, from its declaration and its path in the spec: targets.hosts.hosts[].nic.
FieldSchema = Callable[[Field[Any], str], dict[str, Any]]


class Kind(ABC):
    """The values that a field may hold, and how they are read, described, stored and loaded.

    `allowed`: the allowed values in words, for messages. `sample`: the value that replaces a refused one.
    `field_kinds`: the kinds of the fields below, by name.
    """

    allowed = "a value"
    sample: Any = None
    field_kinds: Mapping[str, Kind] = {}

    @abstractmethod
    def read(self, node: Node, path: tuple[str, ...], walk: Walk) -> Any:
        """Return the value of `node`. Raises Refused if the node itself does not fit; errors below it go to `walk`."""

    def refusal(self, node: Node) -> Refused:
        """Return the refusal of a node whose shape does not fit the kind."""
        return Refused(f"is {describe(node)}", f"write {self.allowed}")

    def spelled_out(self, node: Node) -> Node:
        """Return the mapping that a shorthand stands for; return any other node as it is."""
        return node

    def placeholder(self, path: tuple[str, ...], walk: Walk) -> Any:
        """Return a value for a field that is missing or refused, so that the walk can go on."""
        return self.sample

    @abstractmethod
    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        """Return the JSON Schema of the kind, for editors."""

    def dump(self, value: Any) -> Any:
        """Return the value as bundle.json stores it."""
        return value

    def load(self, stored: Any) -> Any:
        """Return the value that dump() stored as `stored`. Raises Refused, ValueError, KeyError or TypeError."""
        return stored

    def written(self, value: Any) -> Any:
        """Return the value as a user writes it in a spec."""
        return self.dump(value)


class Leaf(Kind):
    """A kind that is written as one scalar. `form`: the JSON Schema of the scalar."""

    form: Mapping[str, Any]

    @abstractmethod
    def parse(self, raw: Scalar) -> Any:
        """Return the value of a scalar that is not null. Raises Refused."""

    def parse_text(self, text: str) -> Any:
        """Return the value of a text from outside a spec. Raises Refused."""
        return self.parse(Scalar(Position(), (), text, "str", quoted=False))

    def value(self, node: Node) -> Any:
        """Return the value of a node. Raises Refused."""
        if not isinstance(node, Scalar) or is_null(node) or node.tag == "alias":
            raise self.refusal(node)
        return self.parse(node)

    def read(self, node: Node, path: tuple[str, ...], walk: Walk) -> Any:
        return self.value(node)

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        return dict(self.form)


class Text(Leaf):
    """A string. Numbers are taken as written: `007` stays `007`."""

    sample = "x"

    def __init__(self, pattern: str = "", allowed: str = "a text"):
        self.pattern, self.allowed = pattern, allowed
        self.form = {"type": ["string", "number"], "minLength": 1}
        if pattern:
            self.form["pattern"] = f"^({pattern})$".replace("\\0", "\\u0000")

    def parse(self, raw: Scalar) -> str:
        if raw.tag == "bool":
            problem = f"YAML reads {raw.text} as {boolean_word(raw.text)}, not as text"
            fits = not self.pattern or re.fullmatch(self.pattern, raw.text, re.ASCII)
            raise Refused(
                problem, f'write "{raw.text}" in quotes' if fits else f"write {self.allowed}"
            )
        if not raw.text:
            raise Refused("is empty", f"write {self.allowed}")
        refuse_oversized(raw.text)
        if self.pattern and not re.fullmatch(self.pattern, raw.text, re.ASCII):
            raise Refused(f"{show(raw.text)} does not fit", f"write {self.allowed}")
        return raw.text


class Value(Text):
    """The value of an environment variable: any text, or "" in quotes."""

    def parse(self, raw: Scalar) -> str:
        try:
            return "" if raw.quoted and not raw.text else super().parse(raw)
        except Refused as refused:
            if raw.tag != "bool":
                raise
            number = int(boolean_word(raw.text) == "true")
            remedy = f"{refused.remedy}, or {number} for a program that reads numbers"
            raise Refused(refused.problem, remedy) from None


class WholeNumber(Leaf):
    """A whole number within a range."""

    def __init__(self, low: int = 0, high: int = MAX_INTEGER):
        self.low, self.high, self.sample = low, high, low
        self.allowed = f"a whole number from {low}"
        if high != MAX_INTEGER:
            self.allowed += f" to {high}"
        self.form = {
            **_number_schema("integer"),
            "minimum": low,
            "maximum": high,
        }

    def parse(self, raw: Scalar) -> int:
        refuse_non_number(raw, self.allowed)
        if not re.fullmatch(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", raw.text, re.ASCII):
            raise Refused(f"{show(raw.text)} is not a whole number", f"write {self.allowed}")
        value = int(raw.text.replace("_", ""), 16 if raw.text.startswith("0x") else 10)
        if not self.low <= value <= self.high:
            # `allowed` leaves out the bound MAX_INTEGER, so name it once a value exceeds it.
            maximum = f" to {MAX_INTEGER}" if value > self.high == MAX_INTEGER else ""
            raise Refused(f"{value} is out of range", f"write {self.allowed}{maximum}")
        return value


class Number(Leaf):
    """A number, whole or not: at least `low`, and above `greater_than`."""

    def __init__(self, low: float | None = None, greater_than: float | None = None):
        self.low, self.greater_than, self.sample = low, greater_than, 1.0
        self.allowed = "a number"
        if low is not None:
            self.allowed += f", {low:g} or more"
        if greater_than is not None:
            self.allowed += f" above {greater_than:g}"
        bounds = {"minimum": low, "exclusiveMinimum": greater_than}
        self.form = {
            **_number_schema("number"),
            **{k: v for k, v in bounds.items() if v is not None},
        }

    def parse(self, raw: Scalar) -> float:
        refuse_non_number(raw, self.allowed)
        value = decimal(raw.text)
        if value is None:
            raise Refused(f"{show(raw.text)} is not a number", f"write {self.allowed}")
        if not math.isfinite(value):
            raise Refused("is not a finite number", f"write {self.allowed}")
        if (self.low is not None and value < self.low) or (
            self.greater_than is not None and value <= self.greater_than
        ):
            raise Refused(f"{raw.text} is out of range", f"write {self.allowed}")
        return value


class NodeCount(int):
    """The number of machines. An elastic job also runs on fewer, down to `minimum`."""

    minimum: int

    def __new__(cls, maximum: int, minimum: int | None = None) -> NodeCount:
        count = super().__new__(cls, maximum)
        count.minimum = maximum if minimum is None else minimum
        return count

    @property
    def elastic(self) -> bool:
        """True if the number may change while the job runs."""
        return self.minimum < self

    def __str__(self) -> str:
        return f"{self.minimum}..{int(self)}" if self.elastic else str(int(self))


class Nodes(WholeNumber):
    """A number of machines, or a range of them: 2..4."""

    def __init__(self, high: int):
        super().__init__(1, high)
        self.sample = NodeCount(1)
        self.allowed += ", or a range like 2..4"
        span = {"type": "string", "pattern": "^[0-9]+\\s*[.][.]\\s*[0-9]+$"}
        self.form = {"anyOf": [self.form, span]}

    def parse(self, raw: Scalar) -> NodeCount:
        minimum, dots, maximum = raw.text.partition("..")
        if not dots or len(raw.text) > MAX_NUMBER_LENGTH:
            return NodeCount(super().parse(raw))
        # A range is a text for YAML, so quotes change nothing.
        ends = [
            super(Nodes, self).parse(raw._replace(text=end.strip(), quoted=False))
            for end in (minimum, maximum)
        ]
        if ends[0] > ends[1]:
            raise Refused(f"{raw.text} is no range", "write the smaller number first, like 2..4")
        return NodeCount(ends[1], ends[0])

    def dump(self, value: NodeCount) -> Any:
        return str(value) if value.elastic else int(value)

    def load(self, stored: Any) -> Any:
        return self.parse_text(str(stored))


class Choice(Leaf):
    """One word out of a few."""

    def __init__(self, *words: str):
        self.words, self.sample = words, words[0]
        self.allowed = f"one of {', '.join(words)}"
        self.form = {"enum": list(words)}

    def parse(self, raw: Scalar) -> str:
        if raw.text in self.words:
            return raw.text
        raise Refused(f"{show(raw.text)} is not known", did_you_mean(raw.text, self.words))


class Flag(Leaf):
    """true or false."""

    sample = False
    allowed = "true or false"
    # Editors read YAML 1.2, where `off` is a text.
    form: Mapping[str, Any] = {
        "type": ["boolean", "string"],
        "pattern": "^([Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$",
    }

    def parse(self, raw: Scalar) -> bool:
        if raw.tag != "bool" or raw.quoted:
            raise Refused(f"{show(raw.text)} is neither true nor false", "write true or false")
        return boolean_word(raw.text) == "true"


def _number_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a number. It allows 1_000 as a text, because editors read YAML 1.2."""
    return {"type": [kind, "string"], "pattern": "^[-+]?[0-9]+_[0-9_.]*$"}


def refuse_non_number(raw: Scalar, allowed: str) -> None:
    """Raise Refused for a text that YAML 1.1 does not read as the number that people read, or that is too long."""
    refuse_long(raw, allowed)
    if raw.quoted and (raw.text.startswith("0x") or decimal(raw.text) is not None):
        raise Refused(f"{show(raw.text)} is a text, because of its quotes", f"write {allowed}")
    if raw.tag == "bool":
        raise Refused(f"YAML reads {raw.text} as {boolean_word(raw.text)}", f"write {allowed}")
    refuse_base_60(raw, f"write {allowed}")
    if re.fullmatch(r"[-+]?0[0-9_]+", raw.text, re.ASCII):
        problem = f"YAML reads the leading zero of {raw.text} as octal"
        raise Refused(problem, f"write {raw.text.lstrip('+-0') or '0'} without the zero")


def refuse_oversized(text: str) -> None:
    """Raise Refused for a text that no argument or variable can hold."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problem = f"has {size >> 10} KiB, and a program takes {MAX_BYTES >> 10} in one argument or variable"
        raise Refused(problem, "write it into a file, and name the file")


def refuse_long(raw: Scalar, allowed: str) -> None:
    """Raise Refused for a text of more than MAX_NUMBER_LENGTH characters."""
    if len(raw.text) > MAX_NUMBER_LENGTH:
        raise Refused(f"{show(raw.text)} is far too long", f"write {allowed}")


def refuse_base_60(raw: Scalar, remedy: str) -> None:
    """Raise Refused for a text like 2:00, which YAML 1.1 reads as the number 120."""
    if raw.tag in ("int", "float") and ":" in raw.text:
        value = 0.0
        for part in raw.text.lstrip("+-").replace("_", "").split(":"):
            value = value * 60 + float(part)
        raise Refused(f"YAML reads {raw.text} as the number {value:g} (base 60)", remedy)


def decimal(text: str) -> float | None:
    """Return the number in a text like 1e-3, .5 or 1_000; None for any other text."""
    if len(text) > MAX_NUMBER_LENGTH or not re.fullmatch(
        r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?", text, re.ASCII
    ):
        return None
    return float(text.replace("_", ""))


def boolean_word(text: str) -> str:
    """Return "true" or "false", as YAML 1.1 reads yes, on, True and the like."""
    return "true" if text.lower() in ("yes", "on", "true") else "false"


def show(text: str) -> str:
    """Return a value as a message shows it: quoted, short, on one line."""
    short = text if len(text) <= 60 else text[:57] + "..."
    return f'"{short}"' if short.isprintable() else ascii(short)


def describe(node: Node) -> str:
    """Describe a node that does not fit its field, for a message."""
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list"
    if is_null(node):
        return "empty (null)"
    return "an alias" if node.tag == "alias" else show(node.text)


def did_you_mean(word: str, known_words: Iterable[str], fallback: str = "") -> str:
    """Return the remedy for an unknown word. `fallback`: the remedy if no known word is similar."""
    close = similar(word, known_words)
    if close:
        return f"did you mean {close}?"
    return fallback or f"write one of {', '.join(known_words)}"


def similar(word: str, known_words: Iterable[str], at_least: float = 0.6) -> str:
    """Return the known word that is most like `word`; "" if none is. `at_least`: the least likeness, 1 for equality."""
    import difflib

    spellings = {name.lower(): name for name in known_words}
    close = difflib.get_close_matches(word[:MAX_NUMBER_LENGTH].lower(), spellings, 1, at_least)
    return spellings[close[0]] if close else ""
