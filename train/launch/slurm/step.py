"""The step of a Slurm job's start, in which srun runs `supervise slurm-node` on every node.

Owns the step's command, the reading of its end from srun's error output, and the check whether this process belongs to
a step. Runs nothing.
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

from train.base.errors import EXIT_UNAVAILABLE, Refusal
from train.launch.slurm.decision import Failure
from train.launch.slurm.directory import FAILED
from train.launch.words import Command, displayed

# A shell is the first process on a node, because it needs no shared directory and can name one that is missing.
# The refusal also goes on file, in the form of keep_failure(), because srun may drop the last line that a node prints.
_ON_NODE = """\
me=${SLURMD_NODENAME:-$HOSTNAME} failed=$3
ddpgen_refuse() {
  printf 'ddpgen %(%F %T)T %s: %s\\n' -1 "$me" "$*" >&2
  printf '%s 69 %s %s\\n' "${DDPGEN_SCHEDULER// /.}" "$me" "$*" 2>/dev/null >"$failed"
  exit 69
}
cd -- "$1" || ddpgen_refuse "$me does not see $1; put the bundle and checkpoint.dir where all nodes see them"
[ -z "$2" ] || . "./$2"
shift 3
type -P -- "$1" >/dev/null ||
  ddpgen_refuse "there is no Python called $1 on $me (PATH=$PATH); set python: or environment: in the spec (PY001)"
exec "$@"
"""
# srun reports the end of a task so (22.05): `srun: error: node2: task 1: Exited with exit code 69`.
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [^:]+: (?:Exited with exit code (\d+))?")
# A line of a node comes from its supervisor, its shell or its slurmstepd.
_OF_NODE = re.compile(r"(?:ddpgen \S+ \S+ |slurmstepd-)([^\s:]+)(?: rank \d+)?: (?:error: )?(.+)")
# A lost node is no refusal: srun could not launch its task, or could not create the step.
_NO_REFUSAL = re.compile(r"launch|Node failure|node not available", re.IGNORECASE)
_REFUSES = (1, 255)  # srun's exit codes if it ends by itself


def on_each_node(
    options: argparse.Namespace, command: Command, nodes: int, bundle: Path, checkpoint_dir: Path
) -> list[str]:
    """Return the srun command that runs `command` on each node. Raises Refusal."""
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
        # A node that fails ends the others. A node that is done leaves them all the time that they need.
        "--kill-on-bad-exit=1", "--wait=0",
        *(_filled(word, known) for word in options.srun),
        *inside, "bash", "-c", _ON_NODE, "ddpgen", str(bundle), options.source, str(checkpoint_dir / FAILED),
        options.python, "-m", "train", "supervise", "slurm-node",
        *command.options, "--", *command.launcher, "--", *command.program, "--", *command.arguments,
    ]  # fmt: skip


def in_short(step: Sequence[str]) -> str:
    """Return the srun command for the log, without the shell's text and the command that the nodes print themselves."""
    return f"{displayed(step[: step.index(_ON_NODE)])} ... -m train supervise slurm-node ..."


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


class StepErrors:
    """Read the error output of srun and of all tasks, line by line, for the end of the step.

    When one task has failed, srun ends the others by TERM. The exit code of srun is the highest of all tasks: 143, if a
    task was still a shell or a starting Python. The lines of srun name the task that failed first.
    """

    def __init__(self) -> None:
        self._unfinished_line = b""
        self._first: tuple[str, str] | None = None
        self._srun_lines: list[str] = []
        self._has_task_output = False
        self._last: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        for line in lines:
            self._parse_line(line.decode("utf-8", "replace").strip())

    def _parse_line(self, line: str) -> None:
        if ended := _TASK_ENDED.match(line):
            # A task that was terminated may have been ended by srun itself.
            if self._first is None and not line.endswith(": Terminated"):
                self._first = ended[1], ended[2] or ""
        elif line.startswith("srun: "):
            self._srun_lines.append(line)
        elif line and not line.startswith('Try "srun'):
            self._has_task_output = True
            if (spoken := _OF_NODE.match(line)) and not spoken[2].startswith("***"):
                self._last[spoken[1]] = spoken[2]

    @property
    def is_inside_a_line(self) -> bool:
        return bool(self._unfinished_line)

    @property
    def failure(self) -> Failure | None:
        """The task that failed first, unless a signal ended it. `node` may be a list of nodes, as Slurm writes one."""
        if self._first is None or not self._first[1]:
            return None
        node, code = self._first
        return Failure(int(code), node, "")

    def last_line_of(self, nodes: Sequence[str]) -> str:
        """Return the last line of the first of `nodes` that has printed one; "" if none has."""
        return next((self._last[node] for node in nodes if node in self._last), "")

    def refusal(self, code: int) -> str:
        """Return why srun, which ended with `code`, has started nothing; "" if it has started a task, or if it could
        not reach a node."""
        if code not in _REFUSES or self._first or self._has_task_output:
            return ""
        reasons = [
            line for line in self._srun_lines if re.match("srun: (error|fatal|unrecognized)", line)
        ]
        if any(map(_NO_REFUSAL.search, reasons)):
            return ""
        return "; ".join(dict.fromkeys(reasons))


def store_of(store: str, task: str) -> str:
    """Return the URL of the checkpoints that must outlive the nodes. Each task of an array has its own."""
    return f"{store.rstrip('/')}/{task}" if store and task else store


def is_step(env: dict[str, str] | os._Environ[str], pid: int, parent: str) -> bool:
    """Return True if this process is a task of srun, or runs below one. The variables alone do not tell, because sbatch
    hands on the variables of a step in which it is called. `parent`: the title of the parent process."""
    step = env.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) > 0xFFFF0000:
        return False
    if env.get("SLURM_TASK_PID") == str(pid):
        return re.match(r"slurmstepd: \[.*\.[0-9]+\]", parent) is not None
    return True


def parent_title() -> str:
    """Return the command line of the parent process, as ps shows it; "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode("utf-8", "replace")
    return ""
