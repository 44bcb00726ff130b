"""The commands spawn and notice.

Owns their options. Imports no torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from train.config import seconds


def main_spawn(argv: Sequence[str]) -> int:
    """Run the command that follows `--` once for each rank of this host."""
    from train.spawn import Ranks, spawn

    own, dashes, command = list(argv), "--", list[str]()
    if dashes in own:
        at = own.index(dashes)
        own, command = own[:at], own[at + 1 :]
    parser = _parser("spawn")
    parser.add_argument("--procs", type=int, required=True, help="processes on this host")
    parser.add_argument("--first-rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--node-rank", type=int, default=0, help="becomes GROUP_RANK")
    options = parser.parse_args(own)
    if not command:
        parser.error("the command is missing: … -- COMMAND")
    if not 0 < options.procs <= options.world_size - options.first_rank <= options.world_size:
        parser.error("these ranks do not fit into the world")
    ranks = Ranks(options.first_rank, options.procs, options.world_size, options.node_rank)
    return spawn(command, ranks)


def main_notice(argv: Sequence[str]) -> int:
    """Make the stop file, as this machine is taken back, and wait until the job has ended."""
    from train import notice

    parser = _parser("notice")
    parser.add_argument("--stop-file", type=Path, required=True)
    parser.add_argument("--wait", type=seconds, default=60.0, help="at most so long")
    options = parser.parse_args(argv)
    return notice.ask_and_wait(options.stop_file.expanduser().absolute(), options.wait)


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"python -m train {command}", allow_abbrev=False)
