"""The bash of launch scripts: commands with their lines, and words in which known variables are filled in.

Reads simple commands. A command in a condition, a loop or a function is marked, and never evaluated.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_BLOCK_BEGINS = ("if", "for", "while", "until", "case", "{", "function")
_BLOCK_ENDS = ("fi", "done", "esac", "}")
_FUNCTION = re.compile(r"[^=]*\(\)")
_OPERATORS = ("&&", "||", ";", "|", "&")
# $X, ${X}, ${X:-default}, ${X[@]}
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?-([^}$]*))?\}|(\w+))")
_PRODUCT = re.compile(r"\$\(\(\s*\$?\{?(\w+)\}?\s*\*\s*\$?\{?(\w+)\}?\s*\)\)")
_REDIRECTION = re.compile(r"\d*(>>?|<<?<?-?)")
_ARRAY = re.compile(r"\s*\w+=\([^)]*", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"[^\s<]*<<-?(?!<)([^\s<>()]*)(?:[>)].*)?")
# A script's own directory. filled() replaces all ways to name it by this one.
OWN_DIRECTORY = '$(dirname "$0")'
_SCRIPT_PATH = r"\"?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})\"?"
_OWN_DIRECTORY = re.compile(
    rf"\$\(\s*dirname (?:-- )?(?:{_SCRIPT_PATH}|\"?\$\((?:realpath|readlink -f) {_SCRIPT_PATH}\)\"?)\s*\)"
    r"|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
)
_CD_PWD = re.compile(
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

    `words`: as written, without quotes. `operator`: what joins it to the next command. `in_block`: True if it
    is in a condition, a loop or a function. `text`: the whole line if the command is alone on it, else its words.
    """

    line: int
    words: tuple[str, ...]
    operator: str
    in_block: bool
    text: str


def commands(text: str, first: int = 1) -> Iterator[Command]:
    """Yield the commands of `whole`, whose first line is number `first`. Raise UnreadableError."""
    depth, here_document_end = 0, ""
    for line, source in _logical_lines(text, first):
        if here_document_end:
            here_document_end = "" if source.strip() == here_document_end else here_document_end
            continue
        here_document_end = _here_document_end(source)
        simple = list(_simple(line, source))
        for words, operator in simple:
            command_text = source.strip() if len(simple) == 1 else " ".join(words)
            depth -= words[0] in _BLOCK_ENDS
            opens = (
                words[0] in _BLOCK_BEGINS or words[-1] == "{" or bool(_FUNCTION.fullmatch(words[0]))
            )
            in_block = depth > 0 or opens or words[0] in _BLOCK_ENDS
            yield Command(line, words, operator, in_block, command_text)
            depth += opens


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers. Lines that a backslash or an open quote continues are one."""
    logical, begin = "", first
    lines = text.splitlines()
    for number, line in enumerate(lines, first):
        begin = begin if logical else number
        logical += line
        if logical.endswith("\\"):
            logical = logical[:-1] + " "
            continue
        if not _is_whole(logical):
            logical += "\n"
            continue
        if logical.strip() and not logical.lstrip().startswith("#"):
            yield begin, logical
        logical = ""
    if logical.strip():
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
        if token in _OPERATORS:
            if words:
                yield tuple(words), token
            words = []
        elif not skips and not _REDIRECTION.match(token):
            word = re.sub(_MASK.format(r"(\d+)"), lambda match: inner[int(match[1])], token)
            words.append(word.replace(_HASH, "#"))
        skips = bool(_REDIRECTION.fullmatch(token))  # its file is the next word


def _tokens(masked: str) -> list[str]:
    """Return the words and operators of a line, without comments. Raise ValueError for a quote that does not end."""
    lexer = shlex.shlex(masked, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    return list(lexer)


def _here_document_end(source: str) -> str:
    """Return the word that ends the here-document of this line; "" if the line begins no here-document."""
    masked, inner = _masked(source)
    for part in inner:
        if (
            part.startswith("$(")
            and not part.endswith(")")
            and (word := _here_document_end(part[2:]))
        ):
            return word
    try:
        tokens = _tokens(masked)
    except ValueError:  # _simple() reports it
        return ""
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if match := _HERE_DOCUMENT.fullmatch(token):
            return match[1] or following
    return ""


def _masked(text: str) -> tuple[str, list[str]]:
    """Return `text` with a mark for each $(…), `…` and # within a word, and the list of the $(…) and `…`."""
    inner: list[str] = []
    out, position = "", 0
    while position < len(text):
        end = position
        if text.startswith("$(", position):
            depth, end = 1, position + 2
            while end < len(text) and depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
        elif text[position] == "`" and "`" in text[position + 1 :]:
            end = text.index("`", position + 1) + 1
        if end > position:
            inner.append(text[position:end])
            out, position = out + _MASK.format(len(inner) - 1), end
        else:
            out, position = out + text[position], position + 1
    return re.sub(r"(?<=[^\s;&|(])#", _HASH, out), inner


def filled(word: str, variables: Mapping[str, str]) -> str:
    """Return `word` with the values of known variables and of products of two.

    All ways to name the script's own directory become OWN_DIRECTORY.
    """

    def value(match: re.Match[str]) -> str:
        default = match[0] if match[2] is None else match[2]
        return variables.get(match[1] or match[3], default)

    def product(match: re.Match[str]) -> str:
        factors = [variables.get(name, name) for name in match.groups()]
        return str(int(factors[0]) * int(factors[1])) if "".join(factors).isdigit() else match[0]

    word = _OWN_DIRECTORY.sub(lambda _: OWN_DIRECTORY, word)
    word = _VARIABLE.sub(value, _PRODUCT.sub(product, word))
    return _CD_PWD.sub(lambda match: match[1], word)


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
