"""The preflight by itself, as a program: python -m tests.train.preflight.program OPTION …

A launch has no use for it: the supervisor calls run() with the settings of its own arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from train import processes
from train.config import seconds
from train.errors import start_command
from train.preflight.command import run
from train.preflight.finding import codes
from train.preflight.settings import Settings
from train.scheduler import VARIABLE


def main(argv: Sequence[str]) -> int:
    """Run the check; the exit code."""
    options = _parser().parse_args(argv)
    processes.die_with_parent(signal.SIGTERM)
    return run(_settings(options), options.only, options.driven)


def _settings(options: argparse.Namespace) -> Settings:
    addresses = dict(options.roster)
    least, nodes = options.nodes
    return Settings(
        job=options.job,
        me=options.me,
        checkpoint_dir=options.checkpoint_dir.absolute(),
        node_rank=options.node_rank,
        nodes=nodes,
        least=least,
        world_size=options.world_size,
        procs=options.procs,
        head=options.head,
        port=options.port,
        is_head=options.node_rank == 0,
        addresses=addresses,
        nic=options.nic,
        backend=options.backend,
        gpus=options.gpus,
        same_bits=options.same_bits,
        shared=None if options.shared is None else options.shared == "true",
        timeout_s=options.timeout,
        ignore=frozenset(options.ignore),
        scheduler=os.environ.get(VARIABLE, ""),
        script=start_command(among_hosts=True),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--job", required=True)
    add("--checkpoint-dir", type=Path, required=True)
    add("--me", default=socket.gethostname(), help="this host's name among the hosts of the job")
    add("--head", default="", help="name or IPv4 address; left out: a job on one machine")
    add("--port", type=int, default=0)
    add("--node-rank", type=int, default=0, help="the head has 0")
    add("--nodes", type=_nodes, default=(1, 1), help="how many hosts: 3, or 2:4 for an elastic job")
    add("--world-size", type=int, default=1)
    add("--procs", type=int, default=1, help="processes on this host")
    add("--roster", type=_roster, default=(), help="lines of NAME [ADDRESS], by node rank")
    add("--nic", default="", help="the interface; default: by the route")
    add("--backend", default="gloo")
    add("--gpus", type=int, default=0, help="how many the processes of this host use")
    add("--same-bits", action="store_true", help="the result is to be the same to the bit")
    add(
        "--shared", choices=("true", "false"), help="what the spec says of the checkpoint directory"
    )
    add("--timeout", type=seconds, default=120.0, help="how long a host is waited for")
    add("--ignore", type=codes, default=(), help="codes that are warnings, comma between")
    add("--driven", action="store_true", help="all hosts speak on one terminal")
    add(
        "--only", action="store_true", help="nothing will be started after it: say that all is well"
    )
    return parser


def _nodes(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    least, most = int(low), int(high or low)
    if not 1 <= least <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hosts")
    return least, most


def _roster(text: str) -> tuple[tuple[str, str], ...]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if any(len(words) > 2 for words in lines):
        raise argparse.ArgumentTypeError("a line does not hold NAME or NAME ADDRESS")
    return tuple((words[0], words[1] if len(words) > 1 else "") for words in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
