"""The step that a start of a Slurm job consists of: `supervise slurm-node` on every node, by srun.

Owns its command, and the look at whether this process is one of a step. Runs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from train.errors import EXIT_UNAVAILABLE, Refusal
from train.supervisor.words import Command, shown

# What a node runs first of all: by a shell, which needs no shared directory, and says so where it has none.
_ON_NODE = """\
me=${SLURMD_NODENAME:-$HOSTNAME}
cd -- "$1" || { echo "ddpgen: $me does not see the bundle, $1; put it where all nodes see it" >&2; exit 69; }
[ -z "$2" ] || . "./$2"
shift 2
type -P -- "$1" >/dev/null || {
  echo "ddpgen: there is no Python called $1 on $me (PATH=$PATH); set python: or environment: in the spec (PY001)" >&2
  exit 69
}
exec "$@"
"""


def on_each_node(
    options: argparse.Namespace, command: Command, nodes: int, bundle: Path, checkpoint_dir: Path
) -> list[str]:
    """The words of srun that run `command` on each node. Raises Refusal."""
    known = {"{bundle}": str(bundle), "{checkpoint_dir}": str(checkpoint_dir)}
    inside = [_filled(word, known) for word in options.inside]
    if inside and shutil.which(inside[0]) is None:
        raise Refusal(
            EXIT_UNAVAILABLE,
            f"there is no {inside[0]} on {socket.gethostname()} (PATH={os.environ.get('PATH')}); "
            "environment.modules may name the module that has it",
        )
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
        *([f"--cpus-per-task={cpus}"] if cpus else []),  # some versions do not inherit it
        # A node that fails takes the others along; one that is done leaves them all the time they need.
        "--kill-on-bad-exit=1", "--wait=0",
        *(_filled(word, known) for word in options.srun),
        *inside, "bash", "-c", _ON_NODE, "ddpgen", str(bundle), options.source,
        options.python, "-m", "train", "supervise", "slurm-node",
        *command.options, "--", *command.launcher, "--", *command.program, "--", *command.arguments,
    ]  # fmt: skip


def in_short(step: Sequence[str]) -> str:
    """The words of srun for the log: without the shell's text, and the command that the nodes print themselves."""
    return f"{shown(step[: step.index(_ON_NODE)])} ... -m train supervise slurm-node ..."


def _filled(word: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(name, value)
    return word


def store_of(store: str, task: str) -> str:
    """Where checkpoints go that are to outlive the nodes; each task of an array has a place of its own."""
    return f"{store.rstrip('/')}/{task}" if store and task else store


def is_step(env: dict[str, str] | os._Environ[str], pid: int, parent: str) -> bool:
    """Whether this process is, or is below, a task of srun. The variables alone do not tell: sbatch hands on
    those of a step that it is called in. `parent`: the title of the parent process."""
    step = env.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) > 0xFFFF0000:
        return False
    if env.get("SLURM_TASK_PID") == str(pid):
        return re.match(r"slurmstepd: \[.*\.[0-9]+\]", parent) is not None
    return True


def parent_title() -> str:
    """What ps would show of the parent process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode("utf-8", "replace")
    return ""
