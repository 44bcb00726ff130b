"""A batch script: its #SBATCH lines → fields of the tier slurm, and the traps in them. Source: sbatch(1)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ddpgen.adopt.draft import Draft
from ddpgen.adopt.expansion import INDEX, unknown
from ddpgen.adopt.launcher import SLURM_FLAGS, SLURM_SHORT, Launch, option
from ddpgen.adopt.script import Script
from ddpgen.tiers.slurm.fields import DIRECTIVES

_SIZE_OPTIONS = frozenset([
    "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-task", "cpus-per-gpu",
    "job-name", "chdir",
])  # fmt: skip
_NEEDLESS_OPTIONS = frozenset(["requeue", "open-mode", "output", "error", "export", "parsable"])
# Options about a number of tasks that the spec's job does not have, and those that no script needs.
_OTHER_TASKS = re.compile(
    r"ntasks-per-.*|.*-per-(socket|core)|distribution|.*-bind|overcommit|input|wrap|test-only"
)
_GPUS = re.compile(
    r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<number>\d+))?|(?:([A-Za-z][\w.-]*):)?(\d+)"
)
_FILLED_RANK = re.compile(
    r"(node|machine).rank[= ][\"']?" + unknown(r"\$\{?SLURM_(NODEID|PROCID)\}?")
)
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def _duration(value: str) -> str | None:
    """Return a --time (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS) as a duration; None for other forms."""
    match = _TIME.fullmatch(value)
    if match is None:
        return None
    days, a, b, c = (int(number or 0) for number in match.groups())
    if match[1]:
        seconds = days * 86400 + a * 3600 + b * 60 + c
    else:
        seconds = a * 3600 + b * 60 + c if match[4] else a * 60 + b
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}min"


# Options of sbatch → the field, and a function from the option's value to the field's; it returns None for a value
# that the field cannot hold.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    **{option: (name, str) for option, name in DIRECTIVES.items()},
    "time": ("time", _duration),
    "mem": ("mem", str),
    "exclusive": ("exclusive", lambda value: None if value else True),
    "no-requeue": ("requeues", lambda _: 0),
    "mail-user": ("mail_to", str),
    "mail-type": ("mail_on", lambda value: value.upper().split(",")),
    "signal": ("warning", lambda value: f"{value.partition('@')[2]}s" if "@" in value else None),
}  # fmt: skip


class Batch(Script):
    """A launch script for sbatch. Slurm runs a copy of it."""

    shares_nodes = True

    def __init__(self, draft: Draft, own_directory: str = "") -> None:
        super().__init__(draft, own_directory)
        self.directives: dict[str, tuple[str, int]] = {}  # by name: the value, the line

    def _read_head(self, text: str) -> None:
        self._read_directives(text)
        self.copied = bool(self.directives)
        directory, line = self.directives.get("chdir", ("", 0))
        if directory:
            self.change_directory(directory, line, f"--chdir={directory}")

    def _activate(self, launch: Launch) -> None:
        """See Script. `python.activate` runs in the container if there is one, and modules are loaded outside of it."""
        if not launch.prefix.container:
            super()._activate(launch)
            return
        for words, text, line, inside in self.activations:
            if inside:
                self.draft.add("python.activate", text, line)
            elif words[:2] == ["module", "load"]:
                for module in words[2:]:
                    self.draft.add("targets.slurm.environment.modules", module, line)
            else:
                self.draft.report_lost(line, text, "the container has an environment of its own")

    def _read_launch(self, procs: int, launch: Launch) -> None:
        self._fields(procs)
        draft, line, tasks, prefix = self.draft, launch.line, self.tasks, launch.prefix
        for name, value in prefix.container.items():
            draft.put(f"targets.slurm.environment.container.{name}", value, line)
        if not self.gpus:
            remedy = f"if so, write gpus_per_node: {procs}"
            draft.report_lost(line, "whether it trains on GPUs, which no option asks for", remedy)
        if launch.kind == "python":
            return
        if prefix.srun and tasks > 1:
            problem = f"{tasks} tasks on a node, and each starts {procs} processes"
            draft.report_trap(line, problem, "the spec has one task on a node")
        if not prefix.srun and self.nodes > 1:
            problem = f"no srun before it: of {self.nodes} nodes only the first starts it"
            draft.report_trap(line, problem, "the spec starts it on each")
        if prefix.srun and _FILLED_RANK.search(" ".join(prefix.words)):
            problem = "the node's rank is filled in once, on the first node, and is 0 on all"
            draft.report_trap(line, problem, "the spec's launch numbers the nodes")

    def _read_directives(self, text: str) -> None:
        first_command = 0
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#SBATCH") and first_command:
                problem = f"{line.strip()} stands below line {first_command}, the first command: sbatch does not read it"
                self.draft.report_trap(number, problem, "say it in the spec if it is meant")
            elif line.startswith("#SBATCH"):
                self._read_directive(line, number)
            elif line.strip() and not line.startswith("#"):
                first_command = first_command or number
        self._size()

    def _read_directive(self, line: str, number: int) -> None:
        try:
            words = shlex.split(line[7:], comments=True)
        except ValueError:
            self.draft.report_lost(number, line.strip(), "its quotes do not end")
            return
        while words:
            name, value = option(words, SLURM_SHORT, SLURM_FLAGS)
            self.directives[name] = (value, number)

    def _size(self) -> None:
        value, line = self.directives.get("nodes", ("1", 0))
        minimum, _, maximum = value.partition("-")
        if _number(minimum) and _number(maximum or minimum):
            self.nodes = int(maximum or minimum)
            self.draft.put(
                "nodes",
                f"{minimum}..{maximum}" if maximum and maximum != minimum else int(minimum),
                line,
            )
        else:
            self.draft.report_lost(line, f"--nodes={value}", "write nodes: 2, or 2..4")
        tasks = _number(self.directives.get("ntasks", ("", 0))[0])
        tasks_per_node = _number(self.directives.get("ntasks-per-node", ("", 0))[0])
        self.tasks = tasks_per_node or max(1, tasks // self.nodes)
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            value, line = self.directives.get(name, ("", 0))
            match = _GPUS.fullmatch(value)
            if match is None:
                if value:
                    self.draft.report_lost(line, f"--{name}={value}", "write gpus_per_node")
                continue
            gpu_type, number = match["type"] or match[3], match["number"] or match[4] or 1
            self.gpus = int(number) // (self.nodes if name == "gpus" else 1)
            self.gpus *= self.tasks if name == "gpus-per-task" else 1
            self.draft.put("gpus_per_node", self.gpus, line)
            if gpu_type:
                self.draft.put("targets.slurm.gpu_type", gpu_type, line)
            if name == "gres":
                self.draft.put("targets.slurm.gpu_request", "gres", line)
        cpus = self.directives.get("cpus-per-task", ("", 0))[0]
        variables = {"ARRAY_TASK_ID": INDEX, "NNODES": self.nodes, "JOB_NUM_NODES": self.nodes, "NTASKS": self.nodes * self.tasks,
                "NTASKS_PER_NODE": self.tasks, "GPUS_ON_NODE": self.gpus, "GPUS_PER_NODE": self.gpus,
                "CPUS_PER_TASK": cpus}  # fmt: skip
        self.shell.variables |= {
            f"SLURM_{name}": str(value) for name, value in variables.items() if value
        }
        if "job-name" in self.directives:
            self.draft.put("name", *self.directives["job-name"])

    def _fields(self, procs: int) -> None:
        """Put the directives into the draft, and report their traps. `procs`: the number of processes on a node."""
        draft = self.draft
        for name, (value, line) in self.directives.items():
            option_text = f"--{name}={value}" if value else f"--{name}"
            if name in _FIELDS:
                field, change = _FIELDS[name]
                changed = change(value)
                if changed is None:
                    draft.report_lost(line, option_text, f"write targets.slurm.{field}")
                else:
                    draft.put(f"targets.slurm.{field}", changed, line)
            elif name in _NEEDLESS_OPTIONS:
                draft.report_needless(line, option_text)
            elif _OTHER_TASKS.fullmatch(name) and name not in _SIZE_OPTIONS:
                draft.report_lost(line, option_text, "the spec's job has one task on a node")
            elif name not in _SIZE_OPTIONS:
                draft.add("targets.slurm.extra", option_text, line)
        for name, count in (("cpus-per-gpu", self.gpus), ("cpus-per-task", self.tasks)):
            cpus, line = self.directives.get(name, ("", 0))
            if cpus.isdigit() and count:
                cpus_per_process = max(1, int(cpus) * count // procs)
                draft.put("targets.slurm.cpus_per_proc", cpus_per_process, line)
        self._traps(procs)

    def _traps(self, procs: int) -> None:
        draft, values = self.draft, self.directives
        if not {"requeue", "no-requeue"} & values.keys():
            problem = "no --requeue: after a preemption or a lost node the job is gone"
            draft.report_trap(0, problem, "the spec's job goes back into the queue")
        if "signal" not in values:
            problem = (
                "no --signal: what is trained since the last checkpoint is lost at the time limit"
            )
            draft.report_trap(0, problem, "the spec's job is warned, stops cleanly and goes on")
        limit, line = values.get("time", ("", 0))
        if re.fullmatch(r"\d+:\d+", limit):
            problem = f"--time={limit} is minutes and seconds to Slurm"
            draft.report_trap(line, problem, "correct targets.slurm.time if hours were meant")
        output, line = values.get("output", ("%j", 0))
        if not re.search("%[0-9]*[jA]|/dev/null", output):
            draft.report_trap(
                line,
                f"--output={output} has no %j: each job writes over the log before",
                "the spec's has",
            )
        if not {"cpus-per-task", "cpus-per-gpu"} & values.keys() and procs > self.tasks:
            problem = f"no --cpus-per-task: {procs} processes may share one CPU"
            draft.report_trap(0, problem, "set targets.slurm.cpus_per_proc")


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
