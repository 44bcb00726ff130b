"""The bash of launch scripts: commands with their lines, and words in which known variables are filled in.

Reads simple commands. A command in a condition, a loop or a function is marked, and never evaluated.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_OPEN = ("if", "for", "while", "until", "case", "{", "function")
_CLOSE = ("fi", "done", "esac", "}")
_FUNCTION = re.compile(r"[^=]*\(\)")
_JOINS = ("&&", "||", ";", "|", "&")
# $X, ${X}, ${X:-default}, ${X[@]}
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?-([^}$]*))?\}|(\w+))")
_PRODUCT = re.compile(r"\$\(\(\s*\$?\{?(\w+)\}?\s*\*\s*\$?\{?(\w+)\}?\s*\)\)")
_REDIRECTION = re.compile(r"\d*(>>?|<<?<?-?)")
_ARRAY = re.compile(r"\s*\w+=\([^)]*", re.DOTALL)
_HERE = re.compile(r"[^\s<]*<<-?(?!<)([^\s<>()]*)(?:[>)].*)?")
# A script's own directory. filled() replaces all ways to name it by this one.
OWN_DIRECTORY = '$(dirname "$0")'
_ITSELF = r"\"?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})\"?"
_OWN_DIRECTORY = re.compile(
    rf"\$\(\s*dirname (?:-- )?(?:{_ITSELF}|\"?\$\((?:realpath|readlink -f) {_ITSELF}\)\"?)\s*\)"
    r"|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
)
_ENTERED = re.compile(
    rf"\$\(\s*cd\s+(?:-\S*\s+)?\"?((?:{re.escape(OWN_DIRECTORY)})?[\w./-]*)\"?\s[^()]*pwd[^()]*\)"
)
# Stands for a command in a word, which shlex would split.
_MASK = "\ue000{}\ue001"
# Stands for a # within a word, which begins no comment in bash but does in shlex.
_HASH = "\ue002"


class UnreadableError(Exception):
    """From `line` on, the text is no bash that this module can read."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class Command(NamedTuple):
    """One simple command.

    `words`: as written, without quotes. `after`: the operator between it and the next command. `inside`: True if it
    is in a condition, a loop or a function. `text`: the whole line if the command is alone on it, else its words.
    """

    line: int
    words: tuple[str, ...]
    after: str
    inside: bool
    text: str


def commands(whole: str, first: int = 1) -> Iterator[Command]:
    """Yield the commands of `whole`, whose first line is number `first`. Raise UnreadableError."""
    depth, until = 0, ""
    for line, source in _logical_lines(whole, first):
        if until:
            until = "" if source.strip() == until else until
            continue
        until = _here(source)
        found = list(_simple(line, source))
        for words, after in found:
            text = source.strip() if len(found) == 1 else " ".join(words)
            depth -= words[0] in _CLOSE
            opens = words[0] in _OPEN or words[-1] == "{" or bool(_FUNCTION.fullmatch(words[0]))
            inside = depth > 0 or opens or words[0] in _CLOSE
            yield Command(line, words, after, inside, text)
            depth += opens


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers. Lines that a backslash or an open quote continues are one."""
    held, begin = "", first
    lines = text.splitlines()
    for number, line in enumerate(lines, first):
        begin = begin if held else number
        held += line
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        if not _is_whole(held):
            held += "\n"
            continue
        if held.strip() and not held.lstrip().startswith("#"):
            yield begin, held
        held = ""
    if held.strip():
        raise UnreadableError(begin)


def _is_whole(text: str) -> bool:
    if text.lstrip().startswith("#"):
        return True
    if _ARRAY.fullmatch(text):
        return False
    try:
        shlex.split(_masked(text)[0], comments=True)
    except ValueError:
        return False
    return True


def _simple(line: int, source: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words of each simple command without redirections, and the operator behind it."""
    masked, inner = _masked(source)
    masked = re.sub(r"\d?>&\d", "", masked).replace("&>", ">")
    try:
        tokens = _tokens(masked)
    except ValueError:
        raise UnreadableError(line) from None
    words: list[str] = []
    skips = False
    for token in [*tokens, ";"]:
        if token in _JOINS:
            if words:
                yield tuple(words), token
            words = []
        elif not skips and not _REDIRECTION.match(token):
            shown = re.sub(_MASK.format(r"(\d+)"), lambda found: inner[int(found[1])], token)
            words.append(shown.replace(_HASH, "#"))
        skips = bool(_REDIRECTION.fullmatch(token))  # its file is the next word


def _tokens(masked: str) -> list[str]:
    """Return the words and operators of a line, without comments. Raise ValueError for a quote that does not end."""
    lexer = shlex.shlex(masked, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    return list(lexer)


def _here(source: str) -> str:
    """Return the word that ends the here-document of this line; "" if the line begins no here-document."""
    masked, inner = _masked(source)
    for part in inner:
        if part.startswith("$(") and not part.endswith(")") and (word := _here(part[2:])):
            return word
    try:
        tokens = _tokens(masked)
    except ValueError:  # _simple() reports it
        return ""
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if here := _HERE.fullmatch(token):
            return here[1] or following
    return ""


def _masked(text: str) -> tuple[str, list[str]]:
    """Return `text` with a mark for each $(…), `…` and # within a word, and the list of the $(…) and `…`."""
    inner: list[str] = []
    out, at = "", 0
    while at < len(text):
        end = at
        if text.startswith("$(", at):
            depth, end = 1, at + 2
            while end < len(text) and depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
        elif text[at] == "`" and "`" in text[at + 1 :]:
            end = text.index("`", at + 1) + 1
        if end > at:
            inner.append(text[at:end])
            out, at = out + _MASK.format(len(inner) - 1), end
        else:
            out, at = out + text[at], at + 1
    return re.sub(r"(?<=[^\s;&|(])#", _HASH, out), inner


def filled(word: str, known: Mapping[str, str]) -> str:
    """Return `word` with the values of known variables and of products of two.

    All ways to name the script's own directory become OWN_DIRECTORY.
    """

    def value(found: re.Match[str]) -> str:
        default = found[0] if found[2] is None else found[2]
        return known.get(found[1] or found[3], default)

    def product(found: re.Match[str]) -> str:
        factors = [known.get(name, name) for name in found.groups()]
        return str(int(factors[0]) * int(factors[1])) if "".join(factors).isdigit() else found[0]

    word = _OWN_DIRECTORY.sub(lambda _: OWN_DIRECTORY, word)
    word = _VARIABLE.sub(value, _PRODUCT.sub(product, word))
    return _ENTERED.sub(lambda found: found[1], word)


def is_known(word: str) -> bool:
    """True if the word has no variable and no command, whose value only a machine knows."""
    return "$" not in word and "`" not in word


def option(words: list[str], short: Mapping[str, str], flags: frozenset[str]) -> tuple[str, str]:
    """Remove an option from the front of `words`, and return its name and value.

    Its forms are --name=value, --name value, -n2 and -n 2. Options in `flags` take no value.
    """
    word = words.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--") and len(word) > 2 and short:
        name, value, equals = word[1], word[2:].removeprefix("="), "="
    name = short.get(name, name)
    if (
        not equals
        and name.replace("_", "-") not in flags
        and words
        and not words[0].startswith("-")
    ):
        value = words.pop(0)
    return name, value
