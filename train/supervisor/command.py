"""`python -m train supervise TIER …`: which tier's supervisor, with which options.

Owns the options' form and the signals that are listened to.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from train.supervisor.events import Events, Signal

# A signal that the artefact's shell has noticed before it became this process: its name.
_NOTICED = "DDPGEN_SIGNAL"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    """Supervise one launch; the exit code."""
    events = Events(_SIGNALS)  # first: from here on a signal is heard, and ends nothing by itself
    if noticed := os.environ.pop(_NOTICED, ""):
        events.inject(Signal(noticed))
    return _supervise(argv, events)


def _supervise(argv: Sequence[str], events: Events) -> int:
    from train.supervisor import words
    from train.supervisor.hosts import Hosts
    from train.supervisor.local import Local
    from train.supervisor.refusal import EXIT_USAGE
    from train.supervisor.sky import Sky
    from train.supervisor.supervisor import Supervisor, add_options

    tiers: Mapping[str, type[Local | Hosts | Sky]] = {"local": Local, "host": Hosts, "sky": Sky}
    try:
        command = words.split(argv)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    parser = argparse.ArgumentParser(prog="python -m train supervise", allow_abbrev=False)
    parser.add_argument("tier", choices=tiers)
    add_options(parser)
    tier = tiers.get(command.options[0], Local)
    tier.add_options(parser)
    command = words.take_leading(command, tier.leading)
    options = parser.parse_args(command.options)
    return Supervisor(tier(options, command), options, command, events).run()
