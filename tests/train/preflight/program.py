"""The preflight by itself, as a program: python -m tests.train.preflight.program SETTINGS [--only] [--driven]

SETTINGS is a line of JSON. A launch has no use for it: the supervisor calls run() with its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.base import processes
from train.base.errors import EXIT_UNAVAILABLE, start_command
from train.base.scheduler import VARIABLE
from train.preflight.command import run
from train.preflight.settings import Settings


def main(argv: Sequence[str]) -> int:
    """Run the check; the exit code."""
    processes.die_with_parent(signal.SIGTERM)
    given = json.loads(argv[0]) | {"check_only": "--only" in argv}
    return EXIT_UNAVAILABLE if run(settings(given), has_driver="--driven" in argv) else 0


def settings(given: dict[str, Any]) -> Settings:
    """Of fields of Settings, as JSON has them."""
    return Settings(
        **given
        | {
            "checkpoint_dir": Path(given.get("checkpoint_dir", "")).absolute(),
            "is_head": given.get("node_rank", 0) == 0,
            "ignore": frozenset(given.get("ignore", ())),
            "scheduler": os.environ.get(VARIABLE, ""),
            "script": start_command(among_hosts=True),
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
