"""A batch script: its #SBATCH lines → fields of the tier slurm, and the traps in them. Source: sbatch(1)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ddpgen.adopt.draft import Draft
from ddpgen.adopt.expansion import INDEX, is_known, plain, unknown
from ddpgen.adopt.launcher import SLURM_FLAGS, SLURM_SHORT, Launch, option
from ddpgen.adopt.script import Script
from ddpgen.adopt.statements import SUBMISSION
from ddpgen.spec.groups import SBATCH_OPTIONS
from ddpgen.tiers.slurm.directives import WRITTEN_OPTIONS, Gres, gres_items
from ddpgen.tiers.slurm.fields import DIRECTIVES

_SIZE_OPTIONS = frozenset([
    "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-task", "cpus-per-gpu",
    "job-name", "chdir",
])  # fmt: skip
# Options of srun that count for the step alone, so that they replace those of the job.
_OF_A_STEP = _SIZE_OPTIONS - {"nodes", "job-name", "chdir"}
# Within a job these, and --mem=0, choose a part of it or have no effect.
_PART_OF_A_JOB = frozenset([
    "exclusive", "nodelist", "exclude", "partition", "account", "qos", "reservation",
])  # fmt: skip
_TASKS = ("ntasks", "ntasks-per-node")
_NEEDLESS_OPTIONS = frozenset(["requeue", "open-mode", "output", "error", "export", "parsable"])
# Options about a number of tasks that the spec's job does not have, and those that no script needs.
_OTHER_TASKS = re.compile(
    r"ntasks-per-.*|(?!threads).*-per-(socket|core)|distribution|.*-bind|overcommit|input|wrap|test-only"
)
_FILLED_RANK = re.compile(
    r"(node|machine).rank[= ][\"']?" + unknown(r"\$\{?SLURM_(NODEID|PROCID)\}?")
)
# The name of each node, which its own shell fills in.
_OWN_NAME = re.compile(rf"(?<!{unknown('')[0]})\$(\(hostname|\{{?HOSTNAME)")
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
    activates_in = SUBMISSION

    def __init__(self, draft: Draft, own_directory: str = "") -> None:
        super().__init__(draft, own_directory)
        self.directives: dict[str, tuple[str, int]] = {}  # by name: the value, the line
        self._cpus = 0, 0  # of one node, and their line

    def _read_head(self, text: str) -> None:
        self._read_directives(text)
        self.copied = bool(self.directives)
        directory, line = self.directives.get("chdir", ("", 0))
        if directory:
            self.change_directory(directory, line, f"--chdir={directory}")

    def _read_step(self, launch: Launch) -> None:
        """See Script. An option of the launch's srun counts where no directive is the same, and a step's size always."""
        step: dict[str, tuple[str, int]] = {}
        for name, value in launch.prefix.asks.items():
            old, _ = self.directives.get(name, (None, 0))
            if old is None and not is_known(value):
                self.draft.report_lost(launch.line, f"srun --{name}={plain(value)}")
            elif name == "nodes" and old and is_known(value) and _number(value) != self.nodes:
                remedy = f"the spec's job has {self.nodes} nodes"
                self.draft.report_lost(launch.line, f"srun --nodes={value}", remedy)
            elif is_known(value) and self._counts(name, value):
                step[name] = value, launch.line
        self._filled_once = not _OWN_NAME.search(" ".join(launch.prefix.words))
        if step:
            known = () if step.keys() & {*_TASKS} else _TASKS
            tasks = {name: self.directives[name] for name in known if name in self.directives}
            self._size(tasks | step)
            self.directives = {**step, **self.directives}
        self._check_tasks(*{**self.directives, **step}.get("ntasks", ("", 0)))

    def _check_tasks(self, tasks: str, line: int) -> None:
        """Report a number of tasks that Slurm may divide among other nodes than the spec's."""
        sizes = self.directives.keys() & {"nodes", "ntasks-per-node"}
        elastic = "-" in self.directives.get("nodes", ("", 0))[0]
        whole = elastic or _number(tasks) in (0, self.nodes * self.tasks)
        if _number(tasks) > 1 and not (sizes and whole):
            problem = f"--ntasks={tasks}, which Slurm may divide otherwise than {self.tasks} on each of {self.nodes} nodes"
            remedy = "write nodes, procs_per_node and gpus_per_node"
            self.draft.report_lost(line, problem, remedy)

    def _check_port(self, port: str, line: int) -> None:
        if self.directives.get("exclusive", ("shared", 0))[0]:
            super()._check_port(port, line)

    def _counts(self, name: str, value: str) -> bool:
        """True if the job has to have this option of a srun."""
        if name in self.directives:
            return name in _OF_A_STEP and self.directives[name][0] != value
        is_part = name in _PART_OF_A_JOB or (name, value) == ("mem", "0")
        return not (self.directives and is_part)

    def _activate(self, launch: Launch) -> None:
        """See Script. `python.activate` runs in the container if there is one, and modules are loaded outside of it."""
        if not launch.prefix.container:
            super()._activate(launch)
            return
        for words, text, line, inside in self.activations:
            if inside:
                self.draft.add("python.activate", text, line)
            elif words[:2] in (["module", "load"], ["module", "use"]):
                use = "use " if words[1] == "use" else ""
                for name in words[2:]:
                    self.draft.add("targets.slurm.environment.modules", f"{use}{name}", line)
            else:
                self.draft.report_lost(line, text, "the container has an environment of its own")

    def _read_launch(self, procs: int, launch: Launch) -> None:
        draft, line, tasks, prefix = self.draft, launch.line, self.tasks, launch.prefix
        if launch.kind != "python" and not prefix.srun and not self._cpus[0] and tasks > procs:
            sizes = (self.directives.get(name, ("", 0)) for name in _TASKS)
            self._cpus = tasks, max(number for _, number in sizes)  # each has one CPU
        self._fields(procs)
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
        if not prefix.srun and self.nodes > 1 and launch.kind != "deepspeed":  # it uses ssh
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
        self._read_export()
        self.draft.put("nodes", 1)
        self._size(self.directives)

    def _read_directive(self, line: str, number: int) -> None:
        try:
            words = shlex.split(line[7:], comments=True)
        except ValueError:
            self.draft.report_lost(number, line.strip(), "its quotes do not end")
            return
        if words in (["hetjob"], ["packjob"]):
            problem = f"#SBATCH {words[0]}: a job of several components"
            raise self._refused(number, problem, "adopt a script with one component")
        while words:
            name, value = option(words, SLURM_SHORT, SLURM_FLAGS)
            name = _unabbreviated(name)
            if name == "mail-type" and name in self.directives:  # sbatch adds them up
                value = f"{self.directives[name][0]},{value}"
            self.directives[name] = (value, number)

    def _read_export(self) -> None:
        """Take the variables of --export=ALL,NAME=VALUE."""
        value, line = self.directives.get("export", ("", 0))
        if value in ("NONE", "NIL"):
            del self.directives["export"]
            remedy = "the job gets the variables of the shell that starts it"
            self.draft.report_lost(line, f"--export={value}", remedy)
        for item in value.split(",") if "=" in value else ():
            name, equals, text = item.partition("=")
            self.directives.pop("export", None)
            if equals:
                self._assign(name, text, True, line, f"--export={item}")
            elif name != "ALL":
                remedy = "the job gets all variables of the shell that starts it"
                self.draft.report_lost(line, f"--export={name}", remedy)

    def _size(self, options: Mapping[str, tuple[str, int]]) -> None:
        """Take the sizes that the directives name, or after them the options of a srun."""
        tasks, tasks_per_node, cpus_per_gpu, cpus_per_task = (
            _number(options.get(name, ("", 0))[0])
            for name in ("ntasks", "ntasks-per-node", "cpus-per-gpu", "cpus-per-task")
        )
        self._count_nodes(options, -(-tasks // tasks_per_node) if tasks_per_node else 0)
        if tasks or tasks_per_node:
            self.tasks = tasks_per_node or max(1, tasks // self.nodes)
        self._count_gpus(options)
        if cpus := cpus_per_task * self.tasks or cpus_per_gpu * self.gpus:
            name = "cpus-per-task" if cpus_per_task else "cpus-per-gpu"
            self._cpus = cpus, options[name][1]
        variables = {"ARRAY_TASK_ID": INDEX, "NNODES": self.nodes, "JOB_NUM_NODES": self.nodes, "NTASKS": self.nodes * self.tasks,
                "NTASKS_PER_NODE": self.tasks, "GPUS_ON_NODE": self.gpus, "GPUS_PER_NODE": self.gpus,
                "CPUS_PER_TASK": cpus_per_task}  # fmt: skip
        self.shell.variables |= {
            f"SLURM_{name}": str(value) for name, value in variables.items() if value
        }
        if "job-name" in options:
            self.draft.put("name", *options["job-name"])

    def _count_nodes(self, options: Mapping[str, tuple[str, int]], needed: int) -> None:
        """Take the number of nodes. `needed`: the number for all tasks; 0 if it is not known."""
        default = str(needed) if needed and "nodes" not in self.directives else ""
        value, line = options.get("nodes", (default, 0))
        minimum, _, maximum = value.partition("-")
        if _number(minimum) and _number(maximum or minimum):
            self.nodes = int(maximum or minimum)
            nodes = f"{minimum}..{maximum}" if _number(maximum) > int(minimum) else int(minimum)
            self.draft.put("nodes", nodes, line)
        elif value:
            self.draft.report_lost(line, f"--nodes={value}", "write nodes: 2, or 2..4")

    def _count_gpus(self, options: Mapping[str, tuple[str, int]]) -> None:
        """Take the GPUs of a node, and put the other items of --gres into `extra`."""
        has_gpus = bool(self.gpus)
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            value, line = options.get(name, ("", 0))
            value = value if name == "gres" else re.sub("(^|,)(?=.)", r"\1gpu:", value)
            items = gres_items(value) if value else []
            gpus = [item for item in items if item.name == "gpu"]
            if len(gpus) > 1 or not all(re.fullmatch(r"[\w.-]*", item.kind) for item in gpus):
                self.draft.report_lost(line, f"--{name}={options[name][0]}", "write gpus_per_node")
                continue
            for item in items:
                if item.name != "gpu":
                    self.draft.add("targets.slurm.extra", f"--gres={item.text}", line)
                    continue
                self._put_gpus(name, item, line)
                if name == "gres" and not has_gpus:
                    self.draft.put("targets.slurm.gpu_request", "gres", line)

    def _put_gpus(self, name: str, item: Gres, line: int) -> None:
        self.gpus = item.number // (self.nodes if name == "gpus" else 1)
        self.gpus *= self.tasks if name == "gpus-per-task" else 1
        self.draft.put("gpus_per_node", self.gpus, line)
        if item.kind:
            self.draft.put("targets.slurm.gpu_type", item.kind, line)

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
        signal, line = self.directives.get("signal", ("", 0))
        if "@" in signal and "B:" not in signal:
            remedy = "if the script handles the signal, write it in train.stop.signal"
            draft.report_lost(line, f"--signal={signal}", remedy)
        mails, line = self.directives.get("mail-type", ("", 0))
        if mails and "mail-user" not in self.directives:
            remedy = "write targets.slurm.mail_to: ADDRESS"
            draft.report_lost(line, f"--mail-type={mails}", remedy)
        cpus, line = self._cpus
        if cpus:
            draft.put("targets.slurm.cpus_per_proc", max(1, cpus // procs), line)
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


def _unabbreviated(name: str) -> str:
    """Return the option of sbatch that begins with `name`, if there is one."""
    known = SBATCH_OPTIONS | WRITTEN_OPTIONS.keys()
    whole = [each for each in known if each.startswith(name)]
    return whole[0] if len(whole) == 1 else name


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
