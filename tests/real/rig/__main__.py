"""A rig by hand: `python -m tests.real.rig up desk laptop`, as root, in the checkout.

Owns two commands for contributors: `up`, a shell on the rig's network, and `slurm`, a shell on a cluster's
login node. Leaving the shell ends what was brought up.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tests.real.rig import Host, Rig, RigError
from tests.real.rig.slurm import Slurm
from tests.real.rig.tools import where

ABOUT = """\
{count} hosts: {names}. You are on their network; your files are this machine's as ever.
  ssh {first}              as trainer; ssh root@{first} as root
  ssh -F {config} {first}   the same, from another terminal
  bash build/.../hosts/run.sh     finds these hosts by their names, as every ssh from here does
Leave this shell, and the rig is gone."""
CLUSTER = """\
A cluster of {count} nodes. You are trainer on its login node, in {shared}, which all nodes see.
  sinfo, sbatch, squeue, ...
  ssh -F {config} root@node1     from another terminal: a shell on a node
Leave this shell, and the cluster is gone."""
# ssh in the shell, and for whatever is started from it.
SSH = '#!/bin/sh\nexec {ssh} -F {config} "$@"\n'


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.rig", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up_command = commands.add_parser("up", help="bring up hosts and open a shell on their network")
    up_command.add_argument("hosts", nargs="+", metavar="HOST[:NIC]", help="desk, or desk:enp5s0")
    slurm_command = commands.add_parser("slurm", help="bring up a cluster, and a shell on it")
    slurm_command.add_argument("nodes", nargs="?", type=int, default=3)
    given = parser.parse_args()
    # The terminal's Ctrl-C is for what runs in the shell.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return up(given.hosts) if given.command == "up" else slurm(given.nodes)
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1


def up(words: list[str]) -> int:
    pairs = [word.partition(":") for word in words]
    with Rig([Host(name, nic=nic or "eth0") for name, _, nic in pairs]) as rig:
        names = [name for name, _, _ in pairs]
        about = {"names": ", ".join(names), "first": names[0], "config": rig.ssh_config}
        print(ABOUT.format(count=len(names), **about), flush=True)
        wrapper = rig.directory / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(SSH.format(ssh=where("ssh"), config=rig.ssh_config))
        wrapper.chmod(0o755)
        path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
        shell = os.environ.get("SHELL", "bash")
        return rig.control.popen([shell], env={**os.environ, "PATH": path}).wait()


def slurm(nodes: int) -> int:
    with Slurm(nodes) as cluster:
        about = {"shared": cluster.shared, "config": cluster.rig.ssh_config}
        print(CLUSTER.format(count=nodes, **about), flush=True)
        return cluster.login.popen(["bash"], cwd=cluster.shared).wait()


if __name__ == "__main__":
    sys.exit(main())
