"""The small commands of the launch scripts: claim, check, leash, where, spawn, notice; and doctor,
for people.

Owns their options and what each says when it cannot do its work. Each ends with an exit code that
the scripts pass on: 2 a wrong argument, 69 this host cannot start. Imports no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from train.config import seconds
from train.errors import EXIT_FAILED, EXIT_UNAVAILABLE
from train.metrics import say


def main_claim(argv: Sequence[str]) -> int:
    """Take the checkpoint directory, or with --node this host's part of it; print the attempt id."""
    from train.layout import node_directory, steps_on_disk
    from train.lock import HeldByLiveJobError, check_not_replaced, claim
    from train.scheduler import VARIABLE, Scheduled
    from train.status import Status, write_status

    parser = _parser("claim")
    parser.add_argument("--checkpoint-dir", required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the launch script")
    parser.add_argument("--node", type=_node, help="this host's name among the hosts of the job")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("torch") is None:
        return _refuse(
            f"torch is not installed for {sys.executable}; activate the virtual environment that has "
            "it, install it there, or set 'python' in the spec to an interpreter that has it"
        )
    directory = Path(options.checkpoint_dir).absolute()
    held = node_directory(directory, options.node) if options.node else directory
    scheduler = os.environ.get(VARIABLE, "")
    try:
        check_not_replaced(directory, scheduler)
        attempt = claim(held, os.environ.get("DDPGEN_JOB", "?"), options.pid, scheduler=scheduler)
        if Scheduled.parse(scheduler) is None:
            # A scheduler starts the hosts one after the other, each of which claims: there the
            # script that starts them has done so, before anybody could ask this start to stop.
            (directory / "stop").unlink(missing_ok=True)
        newest = max(steps_on_disk(directory), default=0)
        write_status(held, Status("running", attempt, newest))
    except HeldByLiveJobError as error:
        return _refuse(str(error))
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        remedy = "set checkpoint.dir to a place you can write to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space there"
        say(
            f"the checkpoint directory {directory} cannot be used: "
            f"{error.strerror or error}{about}; {remedy}"
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    print(attempt)
    return 0


def main_check(argv: Sequence[str]) -> int:
    """0 when `run` would take these options; 2, and one line that says why, when it would not.

    Prints nothing then but the options themselves, when they are asked for by --help.
    """
    from train.config import parse

    for word in argv:
        # The launch script has the directory claimed, watched for stop files and asked how it ended.
        if word.startswith(("--checkpoint-dir", "--code-dir")):
            where = "checkpoint.dir" if word.startswith("--checkpoint") else "code"
            say(
                f"{word} cannot be changed here: the launch script counts on it; "
                f"set {where} in the spec (or below targets) and render again"
            )
            return 2
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse([*argv, "--checkpoint-dir=."])
    except SystemExit as end:
        if end.code:
            why = said.getvalue().partition(" error: ")[2].strip()
            say(f"{why}; --help shows the options")
        return 2 if end.code else 0
    return 0


def main_leash(argv: Sequence[str]) -> int:
    """Become the command that follows `--`, so that it ends with its starter."""
    from train.leash import exec_leashed

    command = _command(argv)
    if not command:
        print("usage: python -m train leash -- COMMAND …", file=sys.stderr)
        return 2
    exec_leashed(command)
    return 0


def main_preflight(argv: Sequence[str]) -> int:
    """Look at this host, check in with the others, say what is wrong."""
    from train.preflight.command import main

    return main(argv)


def main_supervise(argv: Sequence[str]) -> int:
    """Supervise one host's launch."""
    from train.supervisor.command import main

    return main(argv)


def main_doctor(argv: Sequence[str]) -> int:
    """Say which rank holds a training up, where each stands, and what the network says."""
    from train.health.doctor import main

    return main(argv)


def main_where(argv: Sequence[str]) -> int:
    """Print the interface and the IPv4 address by which this host takes part."""
    from train import nic

    parser = _parser("where")
    parser.add_argument("--head", required=True, help="name or IPv4 address")
    parser.add_argument("--port", type=_port, required=True)
    parser.add_argument("--nic", default="", help="the interface; default: by the route")
    parser.add_argument("--is-head", action="store_true")
    parser.add_argument("--peer", default="", help="on the head: another host")
    parser.add_argument(
        "--own", default="", help="how the others reach this host; then doubts are told"
    )
    options = parser.parse_args(argv)
    try:
        name, address = nic.choose(options.head, options.nic, options.is_head, options.peer)
        if options.is_head:
            nic.check_port_free(address, options.port)
        towards = options.peer if options.is_head else options.head
        for doubt in nic.doubts(options.own, address, towards) if options.own else ():
            say(f"warning: {doubt}")
    except nic.NetworkError as error:
        return _refuse(str(error))
    print(f"{name} {address}")
    return 0


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


def main_install(argv: Sequence[str]) -> int:
    """Make the virtual environment of a spec's requirements, unless it is there."""
    from train.supervisor import install

    return install.main(argv)


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"python -m train {command}", allow_abbrev=False)


def _command(argv: Sequence[str]) -> list[str]:
    return list(argv[1:] if argv[:1] == ["--"] else argv)


def _node(text: str) -> str:
    # It names a directory below the checkpoints.
    if not text.strip(".") or not all(c.isalnum() or c in "._-" for c in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of letters, digits, '.', '_', '-'")
    return text


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{port} is not a port")
    return port


def _refuse(why: str) -> int:
    say(why)
    return EXIT_UNAVAILABLE
