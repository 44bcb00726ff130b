"""The errors a run ends with on purpose.

Owns the distinction between a failure that a restart can cure (any other exception) and one that it
cannot. Knows nothing of how either is reported.
"""

from __future__ import annotations

import os

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits(3): the directory is taken, or torch is missing
EXIT_CHANGED = 76  # left to meet again as another world: torchrun's agents start the workers anew
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits(3): stopped cleanly, run the same command to go on


class TrainError(Exception):
    """A fault that a restart would only meet again.

    The message says what is wrong, why, and what to do about it. It ends the attempt: it is
    reported without a traceback, and no worker is restarted.
    """


class ToldError(TrainError):
    """A fault of another process, which tells it itself; this one only ends with it."""


def start_command(among_hosts: bool) -> str:
    """What to type to start the job, for a message. A launch script that knows better says so."""
    ours = "bash hosts/run.sh" if among_hosts else "bash local.sh"
    return os.environ.get("DDPGEN_SCRIPT") or ours
