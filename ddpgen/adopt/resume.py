"""A launch script's way to resume its training: `if [ -f ckpt.pt ]; then RESUME="--resume ckpt.pt"; fi`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ddpgen.adopt.bash import Command, is_known

_FILE_TEST = re.compile(r"(?:if )?(?:\[\[?|test) -[edfs] (\S+)(?: \]\]?)?")


class Resume(NamedTuple):
    """A file that shows progress, and the words that the command gets if the file exists."""

    exists: str
    args: list[str]
    line: int


class Resumes:
    """The variables that a script sets if a checkpoint exists. `by_variable`: by their names."""

    def __init__(self, fill: Callable[[str], str]) -> None:
        self._fill = fill
        self._exists, self._in_else = "", False
        self.by_variable: dict[str, Resume] = {}

    def read_command(self, command: Command) -> bool:
        """Take a command. Return True if it is a part of such a condition."""
        words = command.words
        if test := _FILE_TEST.fullmatch(" ".join(words)):
            path = self._fill(test[1])
            is_condition = words[0] == "if" or command.operator == "&&"
            self._exists, self._in_else = path if is_condition and is_known(path) else "", False
            return bool(self._exists)
        if not self._exists:
            return False
        if words[0] in ("then", "else"):
            self._in_else, words = words[0] == "else", words[1:]
        if not words or words == ("fi",):
            self._exists = "" if words else self._exists
            return True
        assigned = self._assigns(" ".join(words), command.line)
        if not (assigned and command.in_block):  # the end of `[ -f … ] && …`, or another command
            self._exists = ""
        return assigned

    def _assigns(self, text: str, line: int) -> bool:
        """Take NAME=VALUE or NAME=(WORD …), and return True; in the else branch, only with an empty value."""
        match = re.fullmatch(r"(\w+)=\(?([^()]*)\)?", text)
        value = self._fill(match[2]) if match else ""
        if match is None or not is_known(value) or (self._in_else and value):
            return False
        if not self._in_else:
            self.by_variable[match[1]] = Resume(self._exists, value.split(), line)
        return True
