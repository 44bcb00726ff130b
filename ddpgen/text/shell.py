"""Words for bash: values known now, values known only at run time, and their quoting. Pure.

Owns the quoting of strings in scripts, so that each string reaches its program byte for byte. Knows no template and
no spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Var(NamedTuple):
    """A shell variable whose value only the host knows: Var("HOME") becomes "$HOME"."""

    name: str


class JoinedWord(NamedTuple):
    """One word made of pieces, some known now and some only at run time."""

    parts: tuple[str | Var, ...]


Word = str | Var | JoinedWord

# `{name}`, a placeholder of the supervisor, needs no quotes: a brace expansion has a comma or two dots.
_SAFE = re.compile(
    r"(?:[A-Za-z0-9_@%+:,./-]|\{[a-z_]+\})(?:[A-Za-z0-9_@%+=:,./-]|\{[a-z_]+\})*", re.ASCII
)
_OPTION = re.compile(r"--[A-Za-z][A-Za-z0-9-]*=", re.ASCII)
# Control characters, line separators and marks that reverse the reading direction. People read the script, so it
# must not contain them raw. The set is spelled out, because str.isprintable() changes with the Python version and
# the same spec has to give the same bytes everywhere.
_INVISIBLE = re.compile("[\x01-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_WIDTH = 110
_SHORT_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def quote(word: Word) -> str:
    """Return `word` as bash source that expands to exactly that one word.

    Raises ValueError for a character that no argument can hold: a NUL, or half of a surrogate pair.
    """
    if isinstance(word, Var):
        return f'"${word.name}"'
    if isinstance(word, JoinedWord):
        return "".join(_quote_piece(part) for part in word.parts)
    option = _OPTION.match(word)
    if option and option.end() < len(word):
        return option.group() + _quote_text(word[option.end() :])
    return _quote_text(word)


def expand_home(path: str) -> Word:
    """Return `path` as a word. If the path begins with ~/, the host puts its own home directory in the place of ~."""
    if path == "~":
        return Var("HOME")
    return JoinedWord((Var("HOME"), path[1:])) if path.startswith("~/") else path


def pieces(word: Word) -> tuple[str | Var, ...]:
    """Return the pieces of a word, to be joined with more."""
    return word.parts if isinstance(word, JoinedWord) else (word,)


def directive(option: str) -> str:
    """Return an option of sbatch as a #SBATCH line needs it. Such a line is not bash.

    Only a space and quotes need quotes: the spec refuses all other characters that sbatch would misread
    (tiers/slurm/notation.py).
    """
    name, _, value = option.partition("=")
    if '"' in value:
        return f"{name}='{value}'"
    return f'{name}="{value}"' if {" ", "'"} & {*value} else option


def as_argument(path: str) -> str:
    """Return the path in a form that no program takes for an option."""
    return f"./{path}" if path.startswith("-") else path


def sections(command: Iterable[Iterable[Word]], indent: int = 0) -> str:
    """Return the sections of a command with `--` between them, each on its own lines.

    A line has at most 110 columns, unless one word needs more.

    `indent`: the number of spaces before the command itself.
    """
    space = " " * indent
    return f" -- \\\n{space}  ".join(_wrapped(words, space) for words in command)


def _wrapped(words: Iterable[Word], space: str) -> str:
    lines: list[str] = []
    for source in map(quote, words):
        # 10 columns stay free for the text before the first line, and for ` -- \\` behind the last line.
        if lines and len(lines[-1]) + len(source) < _WIDTH - 10 - len(space):
            lines[-1] += f" {source}"
        else:
            lines.append(source)
    return f" \\\n{space}    ".join(lines)


def comment_text(text: str) -> str:
    """Return `text` on one line, safe in a comment of a script."""
    return _INVISIBLE.sub("?", text)


def _quote_piece(part: str | Var) -> str:
    if isinstance(part, Var):
        return f'"${part.name}"'
    return _quote_text(part) if part else ""


def _quote_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a program")
    text.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    if _SAFE.fullmatch(text):
        return text
    if not _INVISIBLE.search(text):
        return "'" + text.replace("'", "'\\''") + "'"
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _INVISIBLE.sub(_escape, escaped) + "'"


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT_ESCAPES.get(character) or "".join(f"\\{byte:03o}" for byte in character.encode())
