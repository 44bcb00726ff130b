"""The supervisor's options that every tier has, and the arguments that the user adds behind the script's name."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from train.base.errors import EXIT_USAGE, Refusal
from train.base.words import did_you_mean
from train.launch.words import Command
from train.preflight.finding import codes
from train.run.config import build_parser, seconds
from train.run.config import parse as parse_run

# The options that every tier has in front of the user's arguments. --help leaves out an option without a text.
LEADING = {"--preflight": "only check whether the job can start", "--point=": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every tier has."""
    add = parser.add_argument
    add("--job", required=True)
    add("--checkpoint-dir", required=True, help="from the bundle's directory, or absolute")
    add("--procs", type=int, default=1, help="processes on each host")
    add("--gpus", type=int, default=0, help="GPUs used on each host")
    add("--backend", default="gloo")
    add("--nic", default="", help="the interface to take part by")
    add("--threads", type=int, default=1, help="OMP_NUM_THREADS of each process")
    add("--keep", type=names, default=(), help="variables of the spec's env, not to be pinned")
    add("--secrets", type=secrets, default=(), help="A,B=~/FILE: variables that must be set")
    add("--store", default="", help="where checkpoints outlive the machine")
    add("--no-preflight", action="store_true")
    add("--ignore", type=codes, default=(), help="codes that are only warnings")
    add("--bits-may-differ", action="store_true", help="nothing is promised about the bits")
    add(
        "--shared", choices=("true", "false"), help="what the spec says of the checkpoint directory"
    )
    add("--lock", default="", help="the lock of the packages that the job's Python has")
    add("--install", action="store_true", help="only install that")
    add("--setup", default="", help="a file of bash, run once in the environment before all else")
    add("--timeout", type=seconds, default=120.0, help="how long the others are waited for")
    add("--preflight", action="store_true", help="only check whether the job can start")
    add("--points", action="store_true", help="the job is a sweep, and points.json has its points")
    add("--point", default="", help="the point of the sweep to train")
    add("--point-id", default="", help="the id of this point's training")
    add(
        "--driven", default="", metavar="TOKEN",
        help="all hosts speak on one terminal, by hosts/run.sh, which knows the end of a host by this word",
    )  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    """Split A,B into its words."""
    return tuple(filter(None, text.split(",")))


def secrets(text: str) -> tuple[tuple[str, str], ...]:
    """Split A,B=~/FILE into the names, each with its file; "" stands for the environment."""
    return tuple((word.partition("=")[0], word.partition("=")[2]) for word in names(text))


def ports(text: str) -> range:
    """Return the ports of FROM-TO, or the one port."""
    low, _, high = text.partition("-")
    first, last = int(low), int(high or low)
    if not 0 < first <= last < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of ports")
    return range(first, last + 1)


def check_arguments(command: Command, leading: Mapping[str, str]) -> None:
    """Check the user's arguments, because otherwise every process would fail on a wrong option at every restart.

    Raises Refusal with the exit code 2. For --help, prints the options, also the supervisor's own in `leading`, and
    raises Refusal with 0.
    """
    if command.program[0] != "run" or not command.arguments:
        return
    for word in command.arguments:
        for fixed, field in (("--checkpoint-dir", "checkpoint.dir"), ("--code-dir", "code")):
            if word.startswith(fixed):
                raise Refusal(
                    EXIT_USAGE,
                    f"{word} cannot be changed here: the supervisor counts on it; "
                    f"set {field} in the spec (or below targets) and render again",
                )
    complaint, told = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(told):
            parse_run([*_literal(command.program[1:]), *command.arguments])
    except SystemExit as end:
        if not end.code:
            print(help_text(leading, told.getvalue()))
            raise Refusal(0, "") from None
        why = complaint.getvalue().partition(" error: ")[2].strip()
        raise Refusal(EXIT_USAGE, f"{why}{_hint(why) or ';'} --help shows the options") from None


def _hint(why: str) -> str:
    """Return a hint for an option that is misspelt, or written without its dashes; else ""."""
    _, unknown, word = why.partition("unrecognized arguments: ")
    if not unknown:
        return ""
    name = "--" + re.split("[ =]", word)[0].lstrip("-")
    known = re.findall(r"^ +(--[a-z-]+)", build_parser().format_help(), re.MULTILINE)
    return did_you_mean(name, [*LEADING, *known])


def _literal(program: Sequence[str]) -> list[str]:
    """Return the program's words with 1 as the world size, which is known only later."""
    return ["--world-size=1" if word.startswith("--world-size=") else word for word in program]


def help_text(leading: Mapping[str, str], of_training: str) -> str:
    """Return the text of --help: the supervisor's options, then the training's from `of_training`, the help of
    `python -m train run`."""
    own = [f"  {name:<22}{what}" for name, what in leading.items() if what]
    options = re.split(r"\n\n(?:options|optional arguments):\n", of_training)[-1].rstrip()
    first = "options that come first:"
    rest = "options of the training, after those of the spec, whose place they take:"
    return "\n".join([first, *own, "", rest, options])


def take_leading(command: Command, names: Iterable[str]) -> Command:
    """Move the supervisor's own options from the front of the user's arguments to the command's options. `names`:
    `--NAME` for a switch, `--NAME=` for an option with a value."""
    taken, rest = list(command.options), list(command.arguments)
    while rest and any(rest[0] == n or (n[-1] == "=" and rest[0].startswith(n)) for n in names):
        taken.append(rest.pop(0))
    return Command(tuple(taken), command.launcher, command.program, tuple(rest))
