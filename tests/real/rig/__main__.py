"""A rig at one's fingertips: `python -m tests.real.rig up desk laptop`, as root, in the checkout.

Owns four commands for contributors: `up` (a shell on the rig's network; leaving it ends the rig), `slurm`
(the same for a cluster: a shell on its login node), `shell` (from another terminal: a shell on one host)
and `down` (end what the first two started, from anywhere).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real.rig import Host, Rig, RigError
from tests.real.rig.rig import PREFIX
from tests.real.rig.slurm import Slurm
from tests.real.rig.tools import where

DAY_S = 86400.0
BY_HAND = "by-hand"
ABOUT = """\
{count} hosts: {names}. You stand on their network; your files are this machine's as ever.
  ssh {first}              as trainer; ssh root@{first} as root
  python -m tests.real.rig shell {first}     the same, from another terminal
  bash build/.../hosts/run.sh     finds these hosts by their names, as every ssh from here does
Leave this shell, and the rig is gone."""
CLUSTER = """\
A cluster of {count} nodes. You are trainer on its login node, in {shared}, which all nodes see.
  sinfo, sbatch, squeue, ...
  python -m tests.real.rig shell root@node1     from another terminal: a shell on a node
Leave this shell, and the cluster is gone."""
# ssh in the shell, and for whatever is started from it.
SSH = '#!/bin/sh\nexec {ssh} -F {config} "$@"\n'


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.rig", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up_command = commands.add_parser("up", help="bring up hosts and open a shell on their network")
    up_command.add_argument("hosts", nargs="+", metavar="HOST[:NIC]", help="desk, or desk:enp5s0")
    slurm_command = commands.add_parser(
        "slurm", help="bring up a cluster, and a shell on its login node"
    )
    slurm_command.add_argument("nodes", nargs="?", type=int, default=3)
    slurm_command.add_argument(
        "--accounting", action="store_true", help="with a database, for sacct"
    )
    shell_command = commands.add_parser("shell", help="a shell on one host, or one command")
    shell_command.add_argument("host", metavar="[USER@]HOST")
    shell_command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("down", help="end the rigs that `up` started")
    given = parser.parse_args()
    try:
        if given.command == "up":
            return up(given.hosts)
        if given.command == "slurm":
            return slurm(given.nodes, accounting=given.accounting)
        return shell(given.host, given.words) if given.command == "shell" else down()
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1


def up(words: list[str]) -> int:
    hosts = []
    for word in words:
        name, _, nic = word.partition(":")
        hosts.append(Host(name, nic=nic or "eth0"))
    with Rig(hosts, lifetime_s=DAY_S) as rig:
        (rig.directory / BY_HAND).touch()
        names = [host.name for host in hosts]
        print(ABOUT.format(count=len(names), names=", ".join(names), first=names[0]), flush=True)
        wrapper = rig.directory / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(SSH.format(ssh=where("ssh"), config=rig.ssh_config))
        wrapper.chmod(0o755)
        search = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": search}
        # The terminal's Ctrl-C is for what runs in the shell.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return until_one_ends(rig, rig.control.popen([os.environ.get("SHELL", "bash")], env=env))


def slurm(nodes: int, *, accounting: bool) -> int:
    with Slurm(nodes, accounting=accounting, lifetime_s=DAY_S) as cluster:
        (cluster.rig.directory / BY_HAND).touch()
        print(CLUSTER.format(count=nodes, shared=cluster.shared), flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return until_one_ends(cluster.rig, cluster.login.popen(["bash"], cwd=cluster.shared))


def until_one_ends(rig: Rig, process: subprocess.Popen[Any]) -> int:
    """The shell, or by `down` the rig under it."""
    keeper, own = os.pidfd_open(rig.keeper_pid), os.pidfd_open(process.pid)
    try:
        if own not in select.select([keeper, own], [], [])[0]:
            print("rig: down", file=sys.stderr)
            process.send_signal(signal.SIGHUP)
            process.wait()
            return 1
    finally:
        os.close(keeper)
        os.close(own)
    return process.wait()


def shell(destination: str, words: list[str]) -> int:
    name = destination.rpartition("@")[2]
    for directory, about in rigs():
        if name in about["hosts"]:
            ssh = ["ssh", *([] if words else ["-t"]), "-F", str(directory / "ssh_config")]
            return subprocess.run([*ssh, destination, *words]).returncode
    raise RigError(f"no rig with a host {name} is up: python -m tests.real.rig up {name}")


def down() -> int:
    """Their keepers end, and with them everything; who made them takes notice."""
    for directory, about in rigs():
        if (directory / BY_HAND).exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(about["keeper"], signal.SIGKILL)
    return 0


def rigs() -> list[tuple[Path, dict[str, Any]]]:
    """All that are up, the newest first."""
    found = []
    for file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/rig.json"):
        with contextlib.suppress(OSError, ValueError):
            about = json.loads(file.read_text())
            line = Path(f"/proc/{about['keeper']}/cmdline").read_bytes()
            if str(file.parent).encode() in line.split(b"\0"):
                found.append((file.stat().st_mtime, file.parent, about))
    return [(directory, about) for _, directory, about in sorted(found, reverse=True, key=first)]


def first(found: tuple[float, Path, dict[str, Any]]) -> float:
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
