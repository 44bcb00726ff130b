"""`python -m train supervise TIER …`: which tier's supervisor, with which options.

Owns the options' form and the signals that are listened to.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from train.supervisor.events import Events
from train.supervisor.words import Command

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Slurm sends USR1 before a time limit; its batch script has them ignored while it becomes this process.
_SLURMS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def main(argv: Sequence[str]) -> int:
    """Supervise one launch; the exit code."""
    # First: from here on a signal is heard, and ends nothing by itself.
    scheduled = "".join(argv[:1]).startswith("slurm")
    events = Events(_SLURMS if scheduled else _SIGNALS, even_ignored=scheduled)
    return _supervise(argv, events)


def _supervise(argv: Sequence[str], events: Events) -> int:
    from train.supervisor import words
    from train.supervisor.refusal import EXIT_USAGE

    runs = {"local": _local, "slurm": _slurm, "slurm-node": _slurm_node}
    try:
        command = words.split(argv)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    parser = argparse.ArgumentParser(prog="python -m train supervise", allow_abbrev=False)
    parser.add_argument("tier", choices=runs)
    tier = command.options[0]
    if tier not in runs:
        parser.parse_args([tier])
    return runs[tier](parser, command, events)


def _local(parser: argparse.ArgumentParser, command: Command, events: Events) -> int:
    from train.supervisor import supervisor
    from train.supervisor.local import Local

    supervisor.add_options(parser)
    options = parser.parse_args(command.options)
    return supervisor.Supervisor(Local(options), options, command, events).run()


def _slurm(parser: argparse.ArgumentParser, command: Command, events: Events) -> int:
    from train.supervisor import slurm, supervisor

    supervisor.add_options(parser)
    slurm.add_options(parser)
    return slurm.Slurm(parser.parse_args(command.options), command, events).run()


def _slurm_node(parser: argparse.ArgumentParser, command: Command, events: Events) -> int:
    from train.supervisor import slurm, slurm_node, supervisor

    supervisor.add_options(parser)
    slurm.add_options(parser)
    slurm_node.add_options(parser)
    options = parser.parse_args(command.options)
    return supervisor.Supervisor(slurm_node.SlurmNode(options), options, command, events).run()
