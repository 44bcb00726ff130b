"""A launch script in bash → fields of a spec, and the traps in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpgen.adopt.bash import OWN_DIRECTORY, Command, commands, filled, is_known, option
from ddpgen.adopt.draft import Draft
from ddpgen.adopt.launcher import Launch, launched
from ddpgen.adopt.resume import Resumes
from ddpgen.errors import Finding, Position, SpecInvalidError

# Stands for {array_index} until the spec is written. A user's script does not contain it.
INDEX = "\x01"
# Commands without an effect on the training.
_IGNORED = frozenset([
    "echo", "printf", "date", "hostname", "pwd", "nvidia-smi", "set", "wait", "which", "printenv", ":", "true",
    "sleep", "exit", "ulimit",
])  # fmt: skip
_ACTIVATION = frozenset(["module", "ml", "source", ".", "conda", "mamba", "eval"])
# Variables of the rendezvous, which the supervisor sets.
_RENDEZVOUS_VARIABLES = frozenset(
    ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"]
)
_SLOW_SETTINGS = ("NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1", "NCCL_P2P_DISABLE=1")
_PREFIXES = frozenset(["exec", "time", "nohup", "env", "command", "stdbuf"])
_KINDS = ("torchrun", "accelerate", "python")
_SRUN_FLAGS = frozenset(["label", "l", "u", "unbuffered", "exclusive", "overlap"])
_COUNT_OPTIONS = {
    "torchrun": ("nnodes", "nproc-per-node"),
    "accelerate": ("num-machines", "num-processes"),
}
# Values of --nproc-per-node for which the launcher counts devices on the machine.
_COUNTED_ON_MACHINE = ("gpu", "auto", "cpu", "xpu")
# Options of the rendezvous, which ddpgen sets by itself.
_RENDEZVOUS_OPTIONS = re.compile(
    r"rdzv-.*|master-.*|main-process-.*|node-rank|machine-rank|standalone|local-addr|monitor-interval|use-env|multi-gpu|same-network"
)


class Script:
    """One launch script, started on a known number of nodes.

    `own_directory`: its directory, or "" if that is not known. `variables`: the values of variables.
    """

    shares_nodes = False
    """True if another job may run on the same nodes at the same time."""

    copied = False
    """True if the scheduler runs a copy of the script in another directory."""

    def __init__(
        self, draft: Draft, own_directory: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        self.draft, self._own_directory = draft, own_directory
        self.nodes, self.gpus, self.tasks = 1, 0, 1
        self._variables = dict(variables or {})
        self._unused: dict[str, int] = {}
        self._launches: list[Launch] = []
        self._directory = ""
        self._ports: set[str] = set()
        self._resumes = Resumes(self._fill)

    def read(self, text: str, first: int = 1) -> None:
        """Read the script into the draft. Raise UnreadableError; SpecInvalidError unless it starts one training."""
        self._read_head(text)
        for command in commands(text, first):
            if not self._resumes.read_command(command):
                self._read_command(command)
        # If a launcher starts a training, a command with Python may only prepare its data.
        preferred = min((_KINDS.index(launch.kind) for launch in self._launches), default=0)
        chosen = [launch for launch in self._launches if launch.kind == _KINDS[preferred]]
        if len(chosen) != 1:
            lines = ", ".join(str(launch.command.line) for launch in chosen)
            problem = (
                f"lines {lines} each start a training"
                if chosen
                else "no line starts a training with torchrun, accelerate launch or python FILE.py"
            )
            raise self._refused(chosen[0].command.line if chosen else 1, problem)
        for launch in self._launches:
            if launch is not chosen[0]:
                self.draft.report_lost(
                    launch.command.line, launch.command.text, "do it before the launch"
                )
        self._directory = chosen[0].directory
        procs = self._launch(chosen[0])
        self._resume(chosen[0])
        self._read_launch(procs, chosen[0])
        for name, line in self._unused.items():
            self.draft.report_lost(
                line, f"the variable {name}, which the training command does not use"
            )

    def starts_in(self, directory: str) -> None:
        """Set the directory in which the commands run, relative to the script's own."""
        self._directory = directory

    def find_training_script(self, file: Path, home: Path) -> None:
        """Find the training script, and set `train.script` and `code` by its path.

        `home`: the directory of the spec, in or below which the code must lie.
        """
        script, home = self.draft.get("train.script"), home.resolve()
        if script.startswith("~/"):
            return
        line = self.draft.fields["train", "script"].line
        module = script.startswith("module:")
        if script.startswith(("../", "/")):
            script = os.path.normpath(os.path.join(self._directory, script))
            self._directory = ""
        if script.startswith("/") and not Path(script).is_relative_to(home):
            return  # the hosts have it
        if script.startswith(("../", "/")):
            self._directory, script = os.path.split(script)
        self.draft.put("train.script", script, line)
        names = [script]
        if module:
            path = script.removeprefix("module:").replace(".", "/")
            names = [f"{path}.py", f"{path}/__main__.py"]
        roots = (Path(self._directory), file.parent / self._directory, file.resolve().parent.parent)
        resolved = [root.resolve() for root in roots]
        roots_found = [root for root in resolved if any((root / name).is_file() for name in names)]
        code = next((each for each in roots_found if each.is_relative_to(home)), None)
        if code is None and roots_found:
            directory = os.path.relpath(roots_found[0])
            problem = f"{script} is in {directory}, which is not below {os.path.relpath(home)}"
            remedy = f"write the spec there: -o {os.path.join(directory, 'job.yaml')}"
            raise SpecInvalidError(
                self.draft.filename, [Finding(Position(line), "", problem, remedy)]
            )
        self.draft.put("code", "." if code is None else os.path.relpath(code, home))
        if code is None and not module:  # a module may be an installed one
            problem = f"{script}, which is not found from {os.path.relpath(home)}"
            remedy = "correct code, or write train.script: /PATH where setup fetches it"
            self.draft.report_lost(0, problem, remedy)

    def _read_head(self, text: str) -> None:
        """Read the lines that are not commands, such as directives."""

    def _read_launch(self, procs: int, launch: Launch) -> None:
        """Report what the whole launch lacks. `procs`: the number of processes that it starts on a node."""

    # --- the body ---------------------------------------------------------------------------------

    def _read_command(self, command: Command) -> None:
        words = list(command.words)
        launch = self._recognise(command)
        if launch is not None and not command.in_block:
            self._launches.append(launch._replace(directory=self._directory))
            if command.operator in ("||", "|", "&"):
                problem = f"{command.operator} after the training hides its exit code"
                self.draft.report_trap(command.line, problem, "the spec's job ends with it")
        elif command.in_block:
            self.draft.report_lost(
                command.line, command.text, "it stands in a condition, a loop or a function"
            )
        elif words[0] in ("export", "declare", "readonly") or re.match(r"\w+=", words[0]):
            self._assign_all(words, command)
        elif _is_cd(words) and is_known(directory := self._with_own_directory(words[1])):
            parent = "" if directory.startswith("~") else self._directory
            self._directory = os.path.normpath(os.path.join(parent, directory))
            if self.copied and OWN_DIRECTORY in self._fill(words[1]):
                problem = "$0 is Slurm's copy of the script, which is somewhere else"
                self.draft.report_trap(
                    command.line, problem, "the spec's job finds its code by itself"
                )
        elif words[0] in _ACTIVATION:
            text = self._fill(command.text)
            if re.search(r"\$\{?(?!HOME|USER)\w", text):
                self.draft.report_lost(command.line, text, "write it in python.activate")
            else:
                self.draft.add("python.activate", text, command.line)
        elif words[0] not in _IGNORED:
            self.draft.report_lost(command.line, " ".join(words))

    def _assign_all(self, words: list[str], command: Command) -> None:
        exports = words[0] == "export"
        if re.match(r"\w+=\(", words[0]):  # an array
            words = [" ".join(words).replace("(", "", 1).removesuffix(")")]
        for word in words[1:] if exports else words:
            self._assign(word, exports, command)

    def _assign(self, word: str, is_exported: bool, command: Command) -> None:
        name, equals, value = word.partition("=")
        line = command.line
        value = self._fill(value)
        if not equals or not re.fullmatch(r"\w+", name):
            self.draft.report_lost(line, command.text)
            return
        self._variables.pop(name, None)
        if is_known(self._with_own_directory(value)) and not self.draft.is_secret(name, value):
            self._variables[name] = value
        self._check_variable(name, value, line)
        if name in _RENDEZVOUS_VARIABLES:
            self.draft.report_needless(line, f"{name}={value}")
        elif not is_exported:
            self._unused[name] = line
        elif is_known(value):
            self.draft.variable(name, value, line)
        else:
            self.draft.report_lost(
                line, command.text, f"only a machine knows its value: write it in env, as {name}"
            )

    def _check_variable(self, name: str, value: str, line: int) -> None:
        if name == "MASTER_PORT" and value.isdigit():
            self._check_port(value, line)
        elif f"{name}={value}" in _SLOW_SETTINGS:
            problem = f"{name}={value} keeps NCCL from the fast network"
            self.draft.report_trap(line, problem, "leave it out, unless you know why it is there")

    def _fill(self, word: str) -> str:
        for name in re.findall(r"\$\{?(\w+)", word):
            self._unused.pop(name, None)
        return filled(word, self._variables)

    def _with_own_directory(self, word: str) -> str:
        """Return the word as _fill does, with the path of the script's own directory."""
        return self._fill(word).replace(OWN_DIRECTORY, self._own_directory or OWN_DIRECTORY)

    # --- the command that trains ------------------------------------------------------------------

    def _recognise(self, command: Command) -> Launch | None:
        """Return the training that a command starts, or None."""
        words = [part for word in command.words for part in self._expanded(word)]
        srun, env = False, []
        while words and (
            words[0] in _PREFIXES or words[0] == "srun" or re.match(r"\w+=", words[0])
        ):
            word = words.pop(0)
            env += [word] if "=" in word else []
            while word == "srun" and words and words[0].startswith("-"):
                option(words, {}, _SRUN_FLAGS)
            srun = srun or word == "srun"
        if len(words) > 2 and words[0] in ("bash", "sh") and words[1] in ("-c", "-lc"):
            inner = next(iter(commands(words[2], command.line)), None)
            found = self._recognise(inner) if inner else None
        else:
            found = launched(words, command)
        return found and found._replace(command=command, srun=srun, env=(*env, *found.env))

    def _expanded(self, word: str) -> list[str]:
        """Return the words in `word`: a variable that is the whole word may hold several."""
        full = self._fill(word)
        if _variable_name(word) in self._resumes.by_variable:
            return []
        return full.split() if _variable_name(word) and is_known(full) else [full]

    def _launch(self, launch: Launch) -> int:
        """Put nodes, processes and the training script into the draft, and return the processes on a node."""
        draft, line, options = self.draft, launch.command.line, dict(launch.options)
        for word in launch.env:
            self._assign(word, True, launch.command)
        count, procs_option = _COUNT_OPTIONS.get(launch.kind, ("", ""))
        count_option = options.pop(count, "")
        minimum, _, maximum = count_option.partition(":")
        if minimum.isdigit():
            self._check_nodes(count_option, int(maximum or minimum), line)
        procs = self.tasks if launch.kind == "python" else 1
        procs_value = options.pop(procs_option, "")
        if procs_value.isdigit():
            procs = max(1, int(procs_value) // (self.nodes if launch.kind == "accelerate" else 1))
        elif self.gpus and (
            procs_value in ("gpu", "auto") or (not procs_value and launch.kind == "accelerate")
        ):
            procs = self.gpus
        elif procs_value in _COUNTED_ON_MACHINE or (
            not procs_value and launch.kind == "accelerate"
        ):
            problem = (
                f"--{procs_option}={procs_value}"
                if procs_value
                else f"a launch without --{procs_option}"
            )
            problem += ", for which the launcher counts what the machine has"
            draft.report_lost(
                line, problem, "write procs_per_node, and gpus_per_node if it has GPUs"
            )
        elif procs_value:
            draft.report_lost(line, f"--{procs_option}={procs_value}", "write procs_per_node")
        draft.put("procs_per_node", procs, line)
        module = "m" in options or "module" in options
        name = self._with_own_directory(options.get("m") or (launch.rest[0] if launch.rest else ""))
        arguments = list(launch.rest if options.get("m") else launch.rest[1:])
        if not name or not is_known(name):
            raise self._refused(line, f"the script's name is not known: {name}")
        draft.put("train.script", f"module:{name}" if module else os.path.normpath(name), line)
        if arguments and arguments[-1] in ("$@", "${@}", "$*", "${*}"):
            self.draft.report_needless(
                line, f'"{arguments.pop()}": arguments after the launch command are added'
            )
        if arguments:
            self._arguments(arguments, line)
        self._options(options, line)
        return procs

    def _refused(self, line: int, problem: str) -> SpecInvalidError:
        finding = Finding(
            Position(line), "", self.draft.hide(problem), "adopt a script with one such line"
        )
        return SpecInvalidError(self.draft.filename, [finding])

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        """Report a trap if the launcher waits for another number of nodes than the job has."""
        if nodes != self.nodes:
            problem = f"the launcher waits for {option} nodes, and the job has {self.nodes}"
            self.draft.report_trap(line, problem, "the spec's nodes are the job's")

    def _arguments(self, arguments: Sequence[str], line: int) -> None:
        escaped = [
            word.replace("{", "{{").replace("}", "}}") if re.search(r"\{\w+\}", word) else word
            for word in arguments
        ]
        last_option = ""
        for word in arguments:
            option, _, value = (
                word.partition("=") if word.startswith("-") else (last_option, "", word)
            )
            last_option = word if word.startswith("-") and not value else ""
            if is_known(value) and self.draft.is_secret_option(option, value):
                problem, remedy = (
                    f"the value of {option}, a secret",
                    "have the script read it from its environment",
                )
                self.draft.report_lost(line, problem, remedy)
            elif not is_known(word):
                self.draft.report_lost(
                    line,
                    f"the argument {word}, which only a machine knows",
                    "correct it in train.args",
                )
            elif re.match(r"(/tmp/|/dev/shm/)", word.rpartition("=")[2]) and self.nodes > 1:
                self.draft.report_trap(
                    line, f"{word} is on each node's own disk", "name a shared place"
                )
        self.draft.put(
            "train.args", [word.replace(INDEX, "{array_index}") for word in escaped], line
        )

    def _resume(self, launch: Launch) -> None:
        for name in map(_variable_name, launch.command.words):
            resume = self._resumes.by_variable.get(name)
            if resume and self.draft.get("train.resume.exists"):
                problem = f"{' '.join(resume.args)}, where {resume.exists} is there"
                self.draft.report_lost(resume.line, problem, "the spec has one such condition")
            elif resume:
                self.draft.put("train.resume.exists", resume.exists, resume.line)
                self.draft.put("train.resume.args", resume.args, resume.line)

    def _options(self, options: Mapping[str, str], line: int) -> None:
        for name, value in options.items():
            if name == "max-restarts" and value.isdigit():
                self.draft.put("restarts", int(value), line)
                if value == "0":
                    self.draft.report_trap(
                        line, "--max-restarts=0: the first crash ends the job", "set restarts: 3"
                    )
            elif name == "mixed-precision":
                self.draft.variable("ACCELERATE_MIXED_PRECISION", value, line)
            elif name not in ("m", "module") and not _RENDEZVOUS_OPTIONS.fullmatch(name):
                self.draft.report_lost(line, f"--{name}={value}" if value else f"--{name}")
            local = re.match(r"(localhost|127\.0\.0\.1):|.*\$(\(hostname|HOSTNAME)", value)
            if local and self.nodes > 1:
                problem = f"--{name}={value} is another place on each of {self.nodes} nodes"
                self.draft.report_trap(line, problem, "the spec's job meets at its first node")
            port = (
                re.fullmatch(r"(?:.*:)?([1-9]\d*)", value)
                if re.search("port|endpoint", name)
                else None
            )
            if port and self.shares_nodes:
                self._check_port(port[1], line)

    def _check_port(self, port: str, line: int) -> None:
        if port not in self._ports:
            self._ports.add(port)
            problem = f"port {port} is fixed: two jobs on one node meet"
            self.draft.report_trap(line, problem, "the spec's job takes a free one")


class HandStarted(Script):
    """A launch script that its user starts on each machine."""

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        if nodes > 1:
            self.nodes = nodes
            problem = f"{option} machines, whose names are not known"
            self.draft.report_lost(line, problem, "write targets: {hosts: {hosts: [NAME, NAME]}}")

    def _read_launch(self, procs: int, launch: Launch) -> None:
        remedy = f"if so, write gpus_per_node: {procs}"
        self.draft.report_lost(launch.command.line, "whether it trains on GPUs", remedy)


def _is_cd(words: Sequence[str]) -> bool:
    """True if the words are a `cd` to a directory that they name."""
    return words[0] == "cd" and len(words) == 2 and words[1] != "-"


def _variable_name(word: str) -> str:
    """Return the name of the variable that is the whole word, or ""."""
    match = re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?", word)
    return match[1] if match else ""
