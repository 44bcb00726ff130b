"""`python -m train supervise TIER …`: choose the tier, read its options and run its supervisor.

Owns the table of the tiers, and the choice of the signals that become events.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from train.launch.events import Events, Signal

# The variable with the name of a signal that the artefact's shell has noticed before it became this process.
_NOTICED = "DDPGEN_SIGNAL"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Slurm sends USR1, or the USR2 of a user's SBATCH_SIGNAL, before a time limit. The batch script ignores both while it
# becomes this process.
_SLURMS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# The module and the adapter class of each tier.
_TIERS = {
    "local": ("local", "Local"),
    "host": ("hosts", "Hosts"),
    "sky": ("sky", "Sky"),
    "slurm": ("slurm.batch", "Slurm"),
    "slurm-node": ("slurm.node", "SlurmNode"),
}


def main(argv: Sequence[str]) -> int:
    """Supervise one launch; return the exit code."""
    # This comes first: from here on a signal becomes an event, and ends nothing by itself.
    scheduled = "".join(argv[:1]).startswith("slurm")
    events = Events(_SLURMS if scheduled else _SIGNALS, even_ignored=scheduled)
    if scheduled:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is no terminal that could close
    if noticed := os.environ.pop(_NOTICED, ""):
        events.inject(Signal(noticed))
    try:
        return _supervise(argv, events)
    finally:
        events.close()


def _supervise(argv: Sequence[str], events: Events) -> int:
    from train.base.console import say
    from train.base.errors import EXIT_USAGE, Refusal
    from train.launch import words
    from train.launch.options import add_options, take_leading
    from train.launch.supervisor import Supervisor

    try:
        command = words.split(argv)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    name = command.options[0]
    # Import this tier only: the imports of the other tiers would take longer than all the rest of a start.
    module, adapter = _TIERS.get(name, _TIERS["local"])
    tier: Any = getattr(importlib.import_module(f"train.launch.{module}"), adapter)
    parser = argparse.ArgumentParser(prog="python -m train supervise", allow_abbrev=False)
    parser.add_argument("tier", choices=_TIERS)
    add_options(parser)
    tier.add_options(parser)
    command = take_leading(command, tier.leading)

    def train(command: words.Command) -> int:
        options = parser.parse_args(command.options)
        if name == "slurm":  # runs on the first node, and starts slurm-node on every node
            return int(tier(options, command, events).run())
        return Supervisor(tier(options, command), options, command, events).run()

    if not any(option.startswith("--point") for option in command.options) or name == "slurm-node":
        return train(command)
    from train.launch import points

    try:
        return points.train(command, "hosts" if name == "host" else name, train)
    except Refusal as refusal:
        say(str(refusal))
        return refusal.code
