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
_IDLE = frozenset([
    "echo", "printf", "date", "hostname", "pwd", "nvidia-smi", "set", "wait", "which", "printenv", ":", "true",
    "sleep", "exit", "ulimit",
])  # fmt: skip
_ACTIVATES = frozenset(["module", "ml", "source", ".", "conda", "mamba", "eval"])
# Variables of the rendezvous, which the supervisor sets.
_MEETING = frozenset(
    ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"]
)
_SLOW = ("NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1", "NCCL_P2P_DISABLE=1")
_BEFORE = frozenset(["exec", "time", "nohup", "env", "command", "stdbuf"])
_KINDS = ("torchrun", "accelerate", "python")
_SRUN_FLAGS = frozenset(["label", "l", "u", "unbuffered", "exclusive", "overlap"])
_COUNTS = {
    "torchrun": ("nnodes", "nproc-per-node"),
    "accelerate": ("num-machines", "num-processes"),
}
# Values of --nproc-per-node for which the launcher counts devices on the machine.
_COUNTED_THERE = ("gpu", "auto", "cpu", "xpu")
# Options of the rendezvous, which ddpgen sets by itself.
_MEETS = re.compile(
    r"rdzv-.*|master-.*|main-process-.*|node-rank|machine-rank|standalone|local-addr|monitor-interval|use-env|multi-gpu|same-network"
)


class Script:
    """One launch script, started on a known number of nodes.

    `own`: its directory, or "" if that is not known. `known`: the values of variables.
    """

    shares_nodes = False
    """True if another job may run on the same nodes at the same time."""

    copied = False
    """True if the scheduler runs a copy of the script in another directory."""

    def __init__(self, draft: Draft, own: str = "", known: Mapping[str, str] | None = None) -> None:
        self.draft, self._own = draft, own
        self.nodes, self.gpus, self.tasks = 1, 0, 1
        self._known = dict(known or {})
        self._unused: dict[str, int] = {}
        self._launches: list[Launch] = []
        self._directory = ""
        self._ports: set[str] = set()
        self._resumes = Resumes(self._fill)

    def read(self, text: str, first: int = 1) -> None:
        """Read the script into the draft. Raise UnreadableError; SpecInvalidError unless it starts one training."""
        self._read_head(text)
        for command in commands(text, first):
            if not self._resumes.take(command):
                self._take(command)
        # If a launcher starts a training, a command with Python may only prepare its data.
        best = min((_KINDS.index(each.kind) for each in self._launches), default=0)
        chosen = [each for each in self._launches if each.kind == _KINDS[best]]
        if len(chosen) != 1:
            lines = ", ".join(str(each.command.line) for each in chosen)
            what = (
                f"lines {lines} each start a training"
                if chosen
                else "no line starts a training with torchrun, accelerate launch or python FILE.py"
            )
            raise self._refused(chosen[0].command.line if chosen else 1, what)
        for each in self._launches:
            if each is not chosen[0]:
                self.draft.lost(each.command.line, each.command.text, "do it before the launch")
        self._directory = chosen[0].directory
        procs = self._launch(chosen[0])
        self._resume(chosen[0])
        self._read_launch(procs, chosen[0])
        for name, line in self._unused.items():
            self.draft.lost(line, f"the variable {name}, which the training command does not use")

    def starts_in(self, directory: str) -> None:
        """Set the directory in which the commands run, relative to the script's own."""
        self._directory = directory

    def place(self, file: Path, home: Path) -> None:
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
        wanted = [script]
        if module:
            path = script.removeprefix("module:").replace(".", "/")
            wanted = [f"{path}.py", f"{path}/__main__.py"]
        roots = (Path(self._directory), file.parent / self._directory, file.resolve().parent.parent)
        resolved = [root.resolve() for root in roots]
        found = [root for root in resolved if any((root / name).is_file() for name in wanted)]
        code = next((each for each in found if each.is_relative_to(home)), None)
        if code is None and found:
            shown = os.path.relpath(found[0])
            what = f"{script} is in {shown}, which is not below {os.path.relpath(home)}"
            remedy = f"write the spec there: -o {os.path.join(shown, 'job.yaml')}"
            raise SpecInvalidError(self.draft.filename, [Finding(Position(line), "", what, remedy)])
        self.draft.put("code", "." if code is None else os.path.relpath(code, home))
        if code is None and not module:  # a module may be an installed one
            what = f"{script}, which is not found from {os.path.relpath(home)}"
            remedy = "correct code, or write train.script: /PATH where setup fetches it"
            self.draft.lost(0, what, remedy)

    def _read_head(self, text: str) -> None:
        """Read the lines that are not commands, such as directives."""

    def _read_launch(self, procs: int, launch: Launch) -> None:
        """Report what the whole launch lacks. `procs`: the number of processes that it starts on a node."""

    # --- the body ---------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        words = list(command.words)
        launch = self._recognise(command)
        if launch is not None and not command.inside:
            self._launches.append(launch._replace(directory=self._directory))
            if command.after in ("||", "|", "&"):
                what = f"{command.after} after the training hides its exit code"
                self.draft.trap(command.line, what, "the spec's job ends with it")
        elif command.inside:
            self.draft.lost(
                command.line, command.text, "it stands in a condition, a loop or a function"
            )
        elif words[0] in ("export", "declare", "readonly") or re.match(r"\w+=", words[0]):
            self._assign_all(words, command)
        elif _goes(words) and is_known(place := self._placed(words[1])):
            before = "" if place.startswith("~") else self._directory
            self._directory = os.path.normpath(os.path.join(before, place))
            if self.copied and OWN_DIRECTORY in self._fill(words[1]):
                what = "$0 is Slurm's copy of the script, which is somewhere else"
                self.draft.trap(command.line, what, "the spec's job finds its code by itself")
        elif words[0] in _ACTIVATES:
            shown = self._fill(command.text)
            if re.search(r"\$\{?(?!HOME|USER)\w", shown):
                self.draft.lost(command.line, shown, "write it in python.activate")
            else:
                self.draft.add("python.activate", shown, command.line)
        elif words[0] not in _IDLE:
            self.draft.lost(command.line, " ".join(words))

    def _assign_all(self, words: list[str], command: Command) -> None:
        exports = words[0] == "export"
        if re.match(r"\w+=\(", words[0]):  # an array
            words = [" ".join(words).replace("(", "", 1).removesuffix(")")]
        for word in words[1:] if exports else words:
            self._assign(word, exports, command)

    def _assign(self, word: str, exported: bool, command: Command) -> None:
        name, equals, value = word.partition("=")
        line = command.line
        value = self._fill(value)
        if not equals or not re.fullmatch(r"\w+", name):
            self.draft.lost(line, command.text)
            return
        self._known.pop(name, None)
        if is_known(self._placed(value)) and not self.draft.is_secret(name, value):
            self._known[name] = value
        self._trap_of(name, value, line)
        if name in _MEETING:
            self.draft.needless(line, f"{name}={value}")
        elif not exported:
            self._unused[name] = line
        elif is_known(value):
            self.draft.variable(name, value, line)
        else:
            self.draft.lost(
                line, command.text, f"only a machine knows its value: write it in env, as {name}"
            )

    def _trap_of(self, name: str, value: str, line: int) -> None:
        if name == "MASTER_PORT" and value.isdigit():
            self._trap_of_port(value, line)
        elif f"{name}={value}" in _SLOW:
            what = f"{name}={value} keeps NCCL from the fast network"
            self.draft.trap(line, what, "leave it out, unless you know why it is there")

    def _fill(self, word: str) -> str:
        for name in re.findall(r"\$\{?(\w+)", word):
            self._unused.pop(name, None)
        return filled(word, self._known)

    def _placed(self, word: str) -> str:
        """Return the word as _fill does, with the path of the script's own directory."""
        return self._fill(word).replace(OWN_DIRECTORY, self._own or OWN_DIRECTORY)

    # --- the command that trains ------------------------------------------------------------------

    def _recognise(self, command: Command) -> Launch | None:
        """Return the training that a command starts, or None."""
        words = [part for word in command.words for part in self._expanded(word)]
        srun, env = False, []
        while words and (words[0] in _BEFORE or words[0] == "srun" or re.match(r"\w+=", words[0])):
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
        if _of_variable(word) in self._resumes.found:
            return []
        return full.split() if _of_variable(word) and is_known(full) else [full]

    def _launch(self, launch: Launch) -> int:
        """Put nodes, processes and the training script into the draft, and return the processes on a node."""
        draft, line, options = self.draft, launch.command.line, dict(launch.options)
        for word in launch.env:
            self._assign(word, True, launch.command)
        count, each = _COUNTS.get(launch.kind, ("", ""))
        count_option = options.pop(count, "")
        least, _, most = count_option.partition(":")
        if least.isdigit():
            self._check_nodes(count_option, int(most or least), line)
        procs = self.tasks if launch.kind == "python" else 1
        said = options.pop(each, "")
        if said.isdigit():
            procs = max(1, int(said) // (self.nodes if launch.kind == "accelerate" else 1))
        elif self.gpus and (said in ("gpu", "auto") or (not said and launch.kind == "accelerate")):
            procs = self.gpus
        elif said in _COUNTED_THERE or (not said and launch.kind == "accelerate"):
            what = f"--{each}={said}" if said else f"a launch without --{each}"
            what += ", for which the launcher counts what the machine has"
            draft.lost(line, what, "write procs_per_node, and gpus_per_node if it has GPUs")
        elif said:
            draft.lost(line, f"--{each}={said}", "write procs_per_node")
        draft.put("procs_per_node", procs, line)
        module = "m" in options or "module" in options
        name = self._placed(options.get("m") or (launch.rest[0] if launch.rest else ""))
        arguments = list(launch.rest if options.get("m") else launch.rest[1:])
        if not name or not is_known(name):
            raise self._refused(line, f"the script's name is not known: {name}")
        draft.put("train.script", f"module:{name}" if module else os.path.normpath(name), line)
        if arguments and arguments[-1] in ("$@", "${@}", "$*", "${*}"):
            self.draft.needless(
                line, f'"{arguments.pop()}": arguments after the launch command are added'
            )
        if arguments:
            self._arguments(arguments, line)
        self._options(options, line)
        return procs

    def _refused(self, line: int, what: str) -> SpecInvalidError:
        finding = Finding(
            Position(line), "", self.draft.hide(what), "adopt a script with one such line"
        )
        return SpecInvalidError(self.draft.filename, [finding])

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        """Report a trap if the launcher waits for another number of nodes than the job has."""
        if nodes != self.nodes:
            what = f"the launcher waits for {option} nodes, and the job has {self.nodes}"
            self.draft.trap(line, what, "the spec's nodes are the job's")

    def _arguments(self, arguments: Sequence[str], line: int) -> None:
        kept = [
            word.replace("{", "{{").replace("}", "}}") if re.search(r"\{\w+\}", word) else word
            for word in arguments
        ]
        before = ""
        for word in arguments:
            option, _, value = word.partition("=") if word.startswith("-") else (before, "", word)
            before = word if word.startswith("-") and not value else ""
            if is_known(value) and self.draft.is_secret_option(option, value):
                what, remedy = (
                    f"the value of {option}, a secret",
                    "have the script read it from its environment",
                )
                self.draft.lost(line, what, remedy)
            elif not is_known(word):
                self.draft.lost(
                    line,
                    f"the argument {word}, which only a machine knows",
                    "correct it in train.args",
                )
            elif re.match(r"(/tmp/|/dev/shm/)", word.rpartition("=")[2]) and self.nodes > 1:
                self.draft.trap(line, f"{word} is on each node's own disk", "name a shared place")
        self.draft.put("train.args", [word.replace(INDEX, "{array_index}") for word in kept], line)

    def _resume(self, launch: Launch) -> None:
        for name in map(_of_variable, launch.command.words):
            resume = self._resumes.found.get(name)
            if resume and self.draft.get("train.resume.exists"):
                what = f"{' '.join(resume.args)}, where {resume.exists} is there"
                self.draft.lost(resume.line, what, "the spec has one such condition")
            elif resume:
                self.draft.put("train.resume.exists", resume.exists, resume.line)
                self.draft.put("train.resume.args", resume.args, resume.line)

    def _options(self, options: Mapping[str, str], line: int) -> None:
        for name, value in options.items():
            if name == "max-restarts" and value.isdigit():
                self.draft.put("restarts", int(value), line)
                if value == "0":
                    self.draft.trap(
                        line, "--max-restarts=0: the first crash ends the job", "set restarts: 3"
                    )
            elif name == "mixed-precision":
                self.draft.variable("ACCELERATE_MIXED_PRECISION", value, line)
            elif name not in ("m", "module") and not _MEETS.fullmatch(name):
                self.draft.lost(line, f"--{name}={value}" if value else f"--{name}")
            local = re.match(r"(localhost|127\.0\.0\.1):|.*\$(\(hostname|HOSTNAME)", value)
            if local and self.nodes > 1:
                what = f"--{name}={value} is another place on each of {self.nodes} nodes"
                self.draft.trap(line, what, "the spec's job meets at its first node")
            port = (
                re.fullmatch(r"(?:.*:)?([1-9]\d*)", value)
                if re.search("port|endpoint", name)
                else None
            )
            if port and self.shares_nodes:
                self._trap_of_port(port[1], line)

    def _trap_of_port(self, port: str, line: int) -> None:
        if port not in self._ports:
            self._ports.add(port)
            what = f"port {port} is fixed: two jobs on one node meet"
            self.draft.trap(line, what, "the spec's job takes a free one")


class ByHand(Script):
    """A launch script that its user starts on each machine."""

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        if nodes > 1:
            self.nodes = nodes
            what = f"{option} machines, whose names are not known"
            self.draft.lost(line, what, "write targets: {hosts: {hosts: [NAME, NAME]}}")

    def _read_launch(self, procs: int, launch: Launch) -> None:
        remedy = f"if so, write gpus_per_node: {procs}"
        self.draft.lost(launch.command.line, "whether it trains on GPUs", remedy)


def _goes(words: Sequence[str]) -> bool:
    """True if the words are a `cd` to a directory that they name."""
    return words[0] == "cd" and len(words) == 2 and words[1] != "-"


def _of_variable(word: str) -> str:
    """Return the name of the variable that is the whole word, or ""."""
    found = re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?", word)
    return found[1] if found else ""
