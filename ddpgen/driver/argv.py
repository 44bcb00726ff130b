"""The driver's command line → one command. Pure.

Owns the options and the usage text. Only the first word may be an option of the driver. All other words
belong to the training, which refuses options that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

USAGE = """\
usage: bash hosts/run.sh [ARGS...]   start or resume the job on every host;
                                     ARGS are added to the training command: --steps=50
       bash hosts/run.sh --preflight     only look whether the hosts can start it, and say what is wrong
       bash hosts/run.sh --status        how every host stands
       bash hosts/run.sh --stop          ask for a clean stop
       bash hosts/run.sh --logs [HOST]   the newest output of the hosts, kept on this machine
       bash hosts/run.sh --fetch [DIR]   bring the newest checkpoints and the metrics to DIR; left out:
                                         checkpoints/NAME beside the bundle, NAME being the job's
       bash hosts/run.sh -- ARGS...      start, though the first of ARGS looks like one of the above
       bash hosts/run.sh --point=NAME ...  in front of all of these: only this point of a sweep; may be repeated
       bash hosts/run.sh --help

Ctrl-C stops cleanly on all hosts, a second one kills, a third one ends this command at once: what
still runs on a host then ends by itself, at the latest after the collective timeout.
Exit code: 0 done, 1 failed, 2 a wrong argument, 69 could not start, 75 stopped cleanly.
"""
# The largest number of operands of each option. --preflight is an argument of the hosts' scripts, but must come alone.
_OPERANDS = {
    "--preflight": 0,
    "--status": 0,
    "--stop": 0,
    "--logs": 1,
    "--fetch": 1,
    "--help": 0,
    "-h": 0,
}


class UsageError(Exception):
    """The command line is wrong. The message has the reason."""


@dataclass(frozen=True)
class DriverCommand:
    """One command: `action` is run, status, stop, logs, fetch or help. `points`: the points of a sweep to act on."""

    action: str
    operand: str | None = None
    arguments: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


_POINT = "--point="


def parse(words: Sequence[str]) -> DriverCommand:
    """Return the command in `words`. Raise UsageError."""
    first = next((i for i, word in enumerate(words) if not word.startswith(_POINT)), len(words))
    if first:
        points = tuple(word.removeprefix(_POINT) for word in words[:first])
        return replace(parse(words[first:]), points=points)
    option, equals, value = words[0].partition("=") if words else ("--", "", "")
    if option not in _OPERANDS:
        return DriverCommand("run", arguments=tuple(words[1:] if option == "--" else words))
    operands = [*([value] if equals else []), *words[1:]]
    allowed = _OPERANDS[option]
    if len(operands) > allowed:
        raise UsageError(
            f"{option} takes {'one word' if allowed else 'nothing'} behind it, and {operands[allowed]!r} is given "
            "as well; see --help"
        )
    if operands and not operands[0]:
        raise UsageError(f"{option} was given an empty operand; see --help")
    if option == "--preflight":
        return DriverCommand("run", arguments=(option,))
    action = "help" if option == "-h" else option.removeprefix("--")
    return DriverCommand(action, operands[0] if operands else None)
