"""The command line of `python -m train supervise`: its sections and its placeholders. Pure.

Its form is `TIER [--OPTION=…] -- LAUNCHER … -- PROGRAM … -- ARGUMENT …`. The four sections are the supervisor's
options, the launcher (torchrun or spawn), the program of each process, and the arguments that the user added behind
the script's name.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from train.base.placeholders import MASTER_PORT, NEWEST

_PLACEHOLDER = re.compile(
    "{(nodes|head|port|address|node_rank|first_rank|world_size|launch|is_head|checkpoint_dir|store)}"
)
# The placeholders in the words of a user's script. The script gets {{name}} as {name}.
_SCRIPTS = re.compile(
    r"(?<!\$){({?)(checkpoint_dir|job|attempt|world_size|array_index|port|newest|--)}(}?)"
)
_RESUMES = "--resume-arg="
# The text after one of these options is the user's. Its braces stay braces.
_USERS = re.compile("--(arg|workload)=")
_TORCHRUN = ("-m", "torch.distributed.run")
_SPAWN = ("-m", "train", "spawn")
_WIDTH = 110


@dataclass(frozen=True)
class Command:
    """The four sections. `options` begins with the tier."""

    options: tuple[str, ...]
    launcher: tuple[str, ...]
    program: tuple[str, ...]
    arguments: tuple[str, ...]


def split(argv: Sequence[str]) -> Command:
    """Split `argv` into its sections. Raises ValueError if one of the first three is missing."""
    sections: list[list[str]] = [[]]
    for word in argv:
        if word == "--" and len(sections) < 4:
            sections.append([])
        else:
            sections[-1].append(word)
    if len(sections) < 3 or not all(sections[:3]):
        raise ValueError("usage: supervise TIER … -- LAUNCHER … -- PROGRAM … [-- ARGUMENT …]")
    options, launcher, program, *rest = map(tuple, sections)
    return Command(options, launcher, program, rest[0] if rest else ())


def workers(command: Command, values: Mapping[str, str]) -> list[str]:
    """Return the command that starts the processes of this host, with its placeholders filled in.

    The program's words reach the processes unchanged. torchrun expands a single `$` as its own macro, so each `$` is
    doubled. It also accepts abbreviations of its options, so `--` stands before the program.
    """
    launcher = [fill(word, values) for word in command.launcher]
    program = [*filled_program(command, values), *command.arguments]
    if launcher[0] == "torchrun":
        words = [*_TORCHRUN, *launcher[1:], "-m", "--", "train"]
        return [sys.executable, *words, *(word.replace("$", "$$") for word in program)]
    if launcher[0] == "spawn":
        words = [*_SPAWN, *launcher[1:], "--", sys.executable, "-m", "train"]
        return [sys.executable, *words, *program]
    raise ValueError(f"the launcher is torchrun or spawn, not {launcher[0]!r}")


def filled_program(command: Command, values: Mapping[str, str]) -> Iterable[str]:
    """Return the program's words with their placeholders filled in."""
    if command.program[0] == "run":
        return [word if _USERS.match(word) else fill(word, values) for word in command.program]
    values = {**values, "port": MASTER_PORT, "newest": "{newest}"}
    words = (
        (word, {**values, "newest": NEWEST} if word.startswith(_RESUMES) else values)
        for word in command.program
    )
    return [_SCRIPTS.sub(partial(_fill_for_script, values=known), word) for word, known in words]


def _fill_for_script(match: re.Match[str], values: Mapping[str, str]) -> str:
    if match[1] and match[3]:
        return f"{{{match[2]}}}"
    in_store = match[2] == "checkpoint_dir" and values.get("store")
    return f"{match[1]}{in_store or values[match[2]]}{match[3]}"


def fill(word: str, values: Mapping[str, str]) -> str:
    """Fill in the placeholders of `word` that have a value. Every other brace stays."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word)


def displayed(words: Sequence[str], indent: str = "  ") -> str:
    """Return a command as a person would type it, over lines of at most 110 columns where that is possible."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if lines and len(lines[-1]) + 1 + len(word) <= _WIDTH - 2:
            lines[-1] += f" {word}"
        else:
            lines.append((indent if not lines else indent * 2) + word)
    return " \\\n".join(lines)
