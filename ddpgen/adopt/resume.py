"""A launch script's way to resume its training: `if [ -f ckpt.pt ]; then RESUME="--resume ckpt.pt"; fi`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ddpgen.adopt.bash import Command, is_known

_THERE = re.compile(r"(?:if )?(?:\[\[?|test) -[edfs] (\S+)(?: \]\]?)?")


class Resume(NamedTuple):
    """A file that shows progress, and the words that the command gets if the file exists."""

    exists: str
    args: list[str]
    line: int


class Resumes:
    """The variables that a script sets if a checkpoint exists. `found`: by their names."""

    def __init__(self, fill: Callable[[str], str]) -> None:
        self._fill = fill
        self._exists, self._other = "", False
        self.found: dict[str, Resume] = {}

    def take(self, command: Command) -> bool:
        """Take a command. Return True if it is a part of such a condition."""
        words = command.words
        if there := _THERE.fullmatch(" ".join(words)):
            path = self._fill(there[1])
            held = words[0] == "if" or command.after == "&&"
            self._exists, self._other = path if held and is_known(path) else "", False
            return bool(self._exists)
        if not self._exists:
            return False
        if words[0] in ("then", "else"):
            self._other, words = words[0] == "else", words[1:]
        if not words or words == ("fi",):
            self._exists = "" if words else self._exists
            return True
        taken = self._assigns(" ".join(words), command.line)
        if not (taken and command.inside):  # the end of `[ -f … ] && …`, or another command
            self._exists = ""
        return taken

    def _assigns(self, text: str, line: int) -> bool:
        """Take NAME=VALUE or NAME=(WORD …), and return True; in the else branch, only with an empty value."""
        found = re.fullmatch(r"(\w+)=\(?([^()]*)\)?", text)
        value = self._fill(found[2]) if found else ""
        if found is None or not is_known(value) or (self._other and value):
            return False
        if not self._other:
            self.found[found[1]] = Resume(self._exists, value.split(), line)
        return True
