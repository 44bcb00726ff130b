"""`python -m train script FILE`: a user's own training loop under the same launch artefacts.

Owns the contract's other side: the script is run as it would be by itself, and how it ends becomes
the status. Knows nothing of what the script does.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from train import leash
from train.errors import EXIT_FAILED, EXIT_STOPPED
from train.lock import read_lock
from train.metrics import say
from train.status import Status, read_status, write_status


def main(argv: Sequence[str]) -> int:
    """Run FILE with the arguments after it. 0 is done, 75 stopped, everything else failed."""
    leash.die_with_parent(signal.SIGKILL)
    if not argv:
        print("usage: python -m train script FILE [ARG ...]", file=sys.stderr)
        return 2
    path = Path(argv[0]).absolute()
    directory = Path(os.environ.get("DDPGEN_CHECKPOINT_DIR", ".")).absolute()
    attempt = os.environ.get("DDPGEN_ATTEMPT", "")
    holder = read_lock(directory) if attempt else None
    if holder is not None and holder.attempt != attempt:
        say(f"attempt {attempt} was replaced by {holder.attempt} on {holder.host}; ending")
        return 0
    if not path.is_file():
        return _end(
            directory, attempt, "failed", f"{path} is not there; is it listed under 'code'?"
        )
    code = _run_script(path, list(argv[1:]))
    if code == 0:
        return _end(directory, attempt, "done")
    if code == EXIT_STOPPED:
        return _end(directory, attempt, "stopped")
    return code


def _run_script(path: Path, arguments: list[str]) -> int:
    """The script's exit code. An exception in it passes through: torchrun restarts the workers."""
    # The script sees its own directory first, as under `python FILE`, and not this package: its
    # own module may well be called `train`.
    for name in [n for n in sys.modules if n == "train" or n.startswith("train.")]:
        del sys.modules[name]
    sys.path[0] = str(path.parent)
    sys.argv = [str(path), *arguments]
    os.chdir(path.parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return exit_.code or 0
        print(exit_.code, file=sys.stderr)
        return EXIT_FAILED
    return 0


def _end(directory: Path, attempt: str, word: str, reason: str = "") -> int:
    """Rank 0 writes the status; every rank exits 0, because torchrun would restart it otherwise."""
    if reason:
        say(reason)
    holder = read_lock(directory)
    mine = holder is not None and holder.attempt == attempt
    if os.environ.get("RANK", "0") == "0" and attempt and mine:
        step = (read_status(directory) or Status(word, attempt, 0)).step
        write_status(directory, Status(word, attempt, step, reason))
    return 0
