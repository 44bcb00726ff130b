"""Words of bash → their values, as far as the script alone decides them. Runs nothing.

A value is a text. Characters of the private use area mark its parts that are no plain text. One such part is the source
of an expansion whose value only a machine knows.
"""

from __future__ import annotations

import operator
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from ddpgen.adopt.syntax import Node, source

Value: TypeAlias = "str | list[str]"  # an array is a list

# These two enclose the source of a part whose value only a machine knows.
_OPEN, _CLOSE = "\ue000", "\ue001"
# Separates the words that bash makes of one word.
_FIELD = "\ue002"
# Stands for a quote, so that an empty text in quotes stays a word.
_QUOTE = "\ue003"
# The script's own directory.
OWN = "\ue004"
# The directory in which the script starts.
START = "\ue005"
# {array_index}
INDEX = "\ue006"
# The first of the characters that each stand for the words of one condition on a checkpoint.
FIRST_RESUME = 0xE100
_SPECIAL = re.compile("[\ue000-\uf8ff]")
_SHOWN = {_OPEN: "", _CLOSE: "", OWN: '$(dirname "$0")', START: "$PWD", INDEX: "{array_index}"}
HOME = re.compile(rf"^{_OPEN}\$(HOME|{{HOME}}){_CLOSE}(?=/|$)")
# Blanks, or a part that keeps its blanks.
_BLANKS = re.compile(rf"({_OPEN}[^{_CLOSE}]*{_CLOSE})|\s+")
_NAME = r"\$\{?(\w+|[@*])(?:\[([^]]*)\])?"
_PARAMETER = re.compile(rf"{_NAME}(?:(:?[-=?])(.*))?\}}?", re.DOTALL)
# The number of elements or letters, and a value without its begin (#) or its end (%).
_LENGTH = re.compile(r"\$\{#(\w+)(\[[@*]\])?\}")
_CUT = re.compile(r"\$\{(\w+)(%%?|##?)([^${}\"'\\]+)\}")
_LONGEST_CUT = 4096  # letters: a path has no more
# Braces that bash expands to several words, and the parts of a word that bash leaves as they are.
_BRACES = re.compile(r"\{[^{}\s]*\}")
_NO_BRACES = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\$\{[^}]*\}|\$\([^)]*\)|\\.", re.DOTALL)
_UNQUOTED = ("word", "simple_expansion", "expansion")
_OWN_FOLDER = re.compile(r"\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}")
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.floordiv, "%": operator.mod,
    "<<": lambda number, bits: number << min(bits, 62),
}  # fmt: skip
# Each machine sets these variables, so the script's default does not apply.
OF_MACHINE = frozenset([
    "PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MANPATH", "PKG_CONFIG_PATH", "HOME", "USER",
    "CUDA_HOME",
])  # fmt: skip
# The same for Slurm and SkyPilot.
_SET_BY_SCHEDULER = ("SLURM_", "SKYPILOT_")


def is_known(value: str) -> bool:
    """True if the value has no part that only a machine knows."""
    return not _SPECIAL.search(value)


def plain(value: str) -> str:
    """Return a value as bash would show it: an unknown part is its source."""
    return _SPECIAL.sub(lambda match: _SHOWN.get(match[0], ""), value)


def as_source(value: str) -> str:
    """Return a value as source for another shell. The marks that stay in it are letters to that shell's parser."""
    return value.replace(_OPEN, "").replace(_CLOSE, "")


def unknown(text: str) -> str:
    """Return the source of a part as a value that only a machine knows."""
    return f"{_OPEN}{text}{_CLOSE}"


def unknown_parts(value: str) -> list[str]:
    """Return the sources of the parts that only a machine knows."""
    return re.findall(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}", value)


def split(value: str) -> list[str]:
    """Return the words that an unquoted value becomes."""
    return [word for word in _separated(value).split(_FIELD) if word]


def text_of(value: Value) -> str:
    """Return a value as one text."""
    return value if isinstance(value, str) else " ".join(value)


class Shell:
    """The variables of a script, and its working directory relative to its first one.

    `unused`: the variables that no word has named since their assignment, with their lines. `globs`: the words with *,
    ? or [ outside of quotes.
    """

    def __init__(self, variables: Mapping[str, Value], script: str) -> None:
        self.variables: dict[str, Value] = {**variables}
        if script:
            self.variables["0"] = self.variables["BASH_SOURCE"] = f"{OWN}/{script}"
        self.directory = ""
        self.unused: dict[str, int] = {}
        self.globs: set[str] = set()

    def positional(self) -> list[str] | None:
        """Return the positional parameters; None if only the caller of the script knows them."""
        words = self.variables.get("@")
        return words if isinstance(words, list) else None

    def set_positional(self, words: Sequence[str] | None) -> None:
        """Set $1, $2, "$@" and so on. None: only the caller of the script knows them."""
        for name in [name for name in self.variables if re.fullmatch("[1-9][0-9]*|[@*]", name)]:
            del self.variables[name]
        if words is not None:
            self.variables |= {"@": [*words], "*": [*words]}
            self.variables |= {str(n): word for n, word in enumerate(words, 1)}

    def shift(self, count: Sequence[str]) -> bool:
        """Remove the first positional parameters, as `shift` and its argument do. Return False if not all are known."""
        words, number = self.positional(), "".join(count) or "1"
        if words is None or not number.isdecimal() or not all(map(is_known, words)):
            return False
        self.set_positional(words[int(number) :])
        return True

    def words(self, node: Node) -> list[str]:
        """Return the words that a word of a command becomes."""
        braces = _BRACES.findall(_NO_BRACES.sub("", source(node)))
        if any("," in each or ".." in each for each in braces):
            return [unknown(source(node))]
        parts = self._expanded(node, splits=True).split(_FIELD)
        words = [part.replace(_QUOTE, "") for part in parts if part]
        for child in node.children if node.type == "concatenation" else [node]:
            if child.type in _UNQUOTED and re.search(r"[*?[]", self._expanded(child, splits=True)):
                self.globs.update(words)
        return words

    def value(self, node: Node | None) -> Value:
        """Return the value of an assignment."""
        if node is None:
            return ""
        if node.type == "array":
            items = [item for item in node.named_children if item.type != "comment"]
            return [word for item in items for word in self.words(item)]
        return self._expanded(node, splits=False).replace(_QUOTE, "").replace(_FIELD, " ")

    def filled(self, node: Node) -> str:
        """Return the source of a command, in which the variables with a known value are filled in."""
        text = node.text or b""
        if node.type in ("simple_expansion", "expansion"):
            value = text_of(self.value(node))
            return value if is_known(value) else source(node)
        filled, end = "", 0
        for child in node.children:
            begin = child.start_byte - node.start_byte
            filled += text[end:begin].decode() + self.filled(child)
            end = child.end_byte - node.start_byte
        return filled + text[end:].decode()

    @property
    def here(self) -> str:
        """The working directory, as a value."""
        return posixpath.join(START, self.directory) if self.directory else START

    def _expanded(self, node: Node, splits: bool) -> str:
        text = source(node)
        match node.type:
            case "word" | "number" | "variable_name" | "regex" | "extglob_pattern":
                return re.sub(r"\\(\n)?(.?)", r"\2", text, flags=re.DOTALL)
            case "raw_string":
                return _QUOTE + text[1:-1]
            case "ansi_c_string" if not re.search(r"\\[^nt'\"\\]", text):
                letters = {"n": "\n", "t": "\t"}
                return _QUOTE + re.sub(
                    r"\\(.)", lambda match: letters.get(match[1], match[1]), text[2:-1]
                )
            case "string" | "translated_string":
                quoted = self._quoted(node)
                return quoted if re.fullmatch(r'"\$(@|\{\w+\[@\]\})"', text) else _QUOTE + quoted
            case "concatenation" | "command_name":
                return "".join(self._expanded(child, splits) for child in node.children)
            case "simple_expansion" | "expansion":
                return self._parameter(node, splits)
            case "command_substitution":
                return self._substitution(node)
            case "arithmetic_expansion":
                number = self._number(node)
                return unknown(text) if number is None else str(number)
            case _ if not node.named_children:  # braces and the like in a word
                return text
            case _:
                return unknown(text)

    def _quoted(self, node: Node) -> str:
        text, out, end = node.text or b"", "", source(node).index('"') + 1
        for child in node.named_children:
            begin = child.start_byte - node.start_byte
            out += _unescaped(text[end:begin].decode())
            if child.type == "string_content":
                out += _unescaped(source(child))
            else:
                blank, _ = _led(child)
                out += _unescaped(blank) + self._expanded(child, splits=False).replace(_QUOTE, "")
            end = child.end_byte - node.start_byte
        return out + _unescaped(text[end:-1].decode())

    def _parameter(self, node: Node, splits: bool) -> str:
        """Return the value of $NAME, ${NAME}, ${NAME:-default}, ${NAME[0]} or ${NAME[@]}."""
        _, text = _led(node)
        if _OWN_FOLDER.fullmatch(text) and "0" in self.variables:
            return OWN
        for name in re.findall(r"\w+", text):
            self.unused.pop(name, None)
        match = _PARAMETER.fullmatch(text)
        if match is None:
            return self._computed(text)
        value = self._variable(match[1], match[2])
        kind = (match[3] or "?")[-1]
        set_elsewhere = match[1] in OF_MACHINE or match[1].startswith(_SET_BY_SCHEDULER)
        if value is None and kind != "?" and not set_elsewhere:
            default = "".join(self._expanded(child, splits) for child in node.named_children[1:])
            if kind == "=":
                self.variables[match[1]] = default.replace(_QUOTE, "").replace(_FIELD, " ")
            return default
        if value is None:
            return unknown(text)
        if isinstance(value, list) and not splits:  # within quotes, "${A[@]}" is several words
            return (_FIELD if match[2] == "@" or match[1] == "@" else " ").join(value)
        return _separated(text_of(value)) if splits else text_of(value)

    def _computed(self, text: str) -> str:
        """Return the value of ${#NAME} or ${NAME%PATTERN} and the like."""
        if length := _LENGTH.fullmatch(text):
            value = self._variable(length[1], length[2] and "@")
            items = value if isinstance(value, list) else [value or ""]
            is_sure = value is not None and isinstance(value, list) == bool(length[2])
            if is_sure and all(is_known(item) and item not in self.globs for item in items):
                return str(len(value or ""))
        elif cut := _CUT.fullmatch(text):
            value = self._variable(cut[1], None)
            if isinstance(value, str) and is_known(value) and len(value) <= _LONGEST_CUT:
                return _cut(value, cut[2], cut[3])
        return unknown(text)

    def _variable(self, name: str, index: str | None) -> Value | None:
        if name in ("PWD", "SLURM_SUBMIT_DIR"):
            return self.here if name == "PWD" else START
        value = self.variables.get(name)
        if not isinstance(value, list) or index in ("@", "*") or name in "@*":
            return value
        number = index or "0"
        return value[int(number)] if number.isdecimal() and int(number) < len(value) else None

    def _substitution(self, node: Node) -> str:
        """Return the value of $(…) for commands that only work on paths."""
        match [self.command(command)[1] for command in _commands(node)]:
            case [["pwd", *_]]:
                return self.here
            case [["dirname", *_, path]] if _is_path(path):
                return f"{path}/.." if path in (OWN, START) else posixpath.dirname(path)
            case [["realpath" | "readlink", *_, path]] if _is_path(path):
                return path
            case [["cd", *_, path], ["pwd", *_]] if _is_path(path):
                return path if path[0] in (OWN, START, "/") else f"{self.here}/{path}"
        return unknown(_led(node)[1])

    def command(self, node: Node) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the variables that are set for one command, and its words."""
        words: list[str] = []
        env = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, _, _ = source(child).partition("=")
                env.append((name, text_of(self.value(child.child_by_field_name("value")))))
            elif not child.type.endswith("_redirect"):
                words += self.words(child)
        return env, words

    def _number(self, node: Node | None) -> int | None:
        """Return the value of an expression in $(( … ))."""
        if node is None:
            return None
        text = source(node)
        match node.type:
            case "arithmetic_expansion" | "parenthesized_expression":
                return self._number(node.named_children[0]) if node.named_children else None
            case "number":
                return _number(text)
            case "variable_name":
                self.unused.pop(text, None)
                return _number(text_of(self._variable(text, None) or ""))
            case "simple_expansion" | "expansion":
                return _number(text_of(self.value(node)))
            case "binary_expression":
                left, right = (self._number(node.child_by_field_name(n)) for n in ("left", "right"))
                calculate = _OPERATORS.get(source(node.children[1]))
                if calculate and left is not None and right:  # no division by 0
                    number = calculate(left, right)
                    return number if number.bit_length() < 64 else None
        return None


def _led(node: Node) -> tuple[str, str]:
    """Split an expansion in double quotes from the whitespace that the grammar puts in front of it."""
    text = source(node)
    begin = len(text) - len(re.sub(r"^(\s|\\\n)+", "", text))
    return text[:begin], text[begin:].strip()


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _cut(value: str, operator: str, pattern: str) -> str:
    """Return a value without the part that the pattern matches: % at its end, # at its begin, doubled the longest."""
    cuts = range(len(value) + 1)
    for index in reversed(cuts) if operator in ("%", "##") else cuts:
        begin, end = value[:index], value[index:]
        if fnmatchcase(end if "%" in operator else begin, pattern):
            return begin if "%" in operator else end
    return value


def _separated(value: str) -> str:
    return _BLANKS.sub(lambda match: match[1] or _FIELD, value)


def _commands(node: Node) -> Iterator[Node]:
    """Yield the commands of a substitution that has no pipeline."""
    for child in node.named_children:
        if child.type in ("list", "redirected_statement"):
            yield from _commands(child)
        elif child.type == "command":
            yield child


def _is_path(value: str) -> bool:
    return bool(value) and is_known(value.replace(OWN, "").replace(START, ""))


def _unescaped(text: str) -> str:
    """Return a text within double quotes without the backslashes that bash takes out."""
    return re.sub(r'\\(?:\n|([$`"\\]))', lambda match: match[1] or "", text)
