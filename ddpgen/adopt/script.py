"""A launch script in bash → fields of a spec, and the traps in it."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpgen.adopt import expansion
from ddpgen.adopt.draft import Draft
from ddpgen.adopt.expansion import INDEX, is_known, plain
from ddpgen.adopt.launcher import WORKDIR, Launch
from ddpgen.adopt.statements import Statements
from ddpgen.adopt.syntax import Break, first_break, parse
from ddpgen.errors import Finding, Position, SpecInvalidError

_KINDS = ("torchrun", "accelerate", "deepspeed", "python")
_COUNT_OPTIONS = {
    "torchrun": ("nnodes", "nproc-per-node"),
    "accelerate": ("num-machines", "num-processes"),
    "deepspeed": ("num-nodes", "num-gpus"),
}
# Values of --nproc-per-node for which the launcher counts devices on the machine.
_COUNTED_ON_MACHINE = ("gpu", "auto", "cpu", "xpu")
# Options of the rendezvous, which ddpgen sets by itself.
_RENDEZVOUS_OPTIONS = re.compile(
    r"rdzv-.*|master-.*|main-process-.*|node-rank|machine-rank|standalone|local-addr|monitor-interval|use-env|multi-gpu|same-network"
)
# A script that the launch script hands to sbatch.
_SUBMITS = re.compile(
    r"^[^#\n]*\bsbatch [^\n;|&)]*?(?<=\s)([\w./-]+\.(?:sh|bash|sbatch|slurm|sl|sub|job))\b",
    re.MULTILINE,
)
_PIPEFAIL = re.compile(r"^[ \t]*set\b.*\bpipefail\b", re.MULTILINE)
# An operator behind the training → the text by which the script ends with the training's exit code all the same.
_KEEPS_EXIT_CODE = {
    **dict.fromkeys(("|", "|&"), re.compile("PIPESTATUS")),
    "||": re.compile(r"\|\|\s*(\{[^}]{0,400}\b)?exit\b(?!\s+0)"),
    "&": re.compile(r"\bwait\s+[^\s;&|#]"),
}


class Script(Statements):
    """One launch script, started on a known number of nodes."""

    def __init__(
        self, draft: Draft, own_directory: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(draft, own_directory, variables)
        self.nodes, self.gpus, self.tasks = 1, 0, 1
        self._directory, self._text = "", ""
        self._filled_once = False  # the words of the launch, on the first node

    def read(self, text: str, first: int = 1) -> None:
        """Read the script into the draft. Raise SpecInvalidError unless it starts one training."""
        self._text = text
        self._read_head(text)
        root = parse(text)
        self.read_statements(root, first)
        # If a launcher starts a training, a command with Python may only prepare its data.
        preferred = min((_KINDS.index(launch.kind) for launch in self.launches), default=0)
        chosen = [launch for launch in self.launches if launch.kind == _KINDS[preferred]]
        if len(chosen) != 1:
            raise self._refused_launches(chosen, first_break(root), first)
        for launch in self.launches:
            if launch is not chosen[0]:
                when = "before the launch" if launch.line < chosen[0].line else "after the job"
                self.draft.report_lost(launch.line, launch.text, f"do it {when}")
        self._directory = self.shell.directory = chosen[0].directory
        for name, value in chosen[0].prefix.env:
            self._assign(name, value, True, chosen[0].line, chosen[0].text)
        self._activate(chosen[0])
        self._read_step(chosen[0])
        procs = self._launch(chosen[0])
        self._read_launch(procs, chosen[0])
        for name, line in self.shell.unused.items():
            self.draft.report_lost(
                line, f"the variable {name}, which the training command does not use"
            )

    def starts_in(self, directory: str) -> None:
        """Set the directory in which the commands run, relative to the script's own."""
        self.shell.directory = directory

    def find_training_script(self, file: Path, home: Path) -> None:
        """Find the training script, and set `train.script` and `code` by its path. A command is the spec's as it is.

        `home`: the directory of the spec, in or below which the code must lie.
        """
        if self.draft.get("train.command"):
            self.draft.put("code", ".")
            self._report_cd()
            return
        script, home, starts = self.draft.get("train.script"), home.resolve(), (Path(), file.parent)
        line = self.draft.fields["train", "script"].line
        module = script.startswith("module:")
        given = self._directory
        if script.startswith(("../", "/")):
            script = os.path.normpath(os.path.join(self._directory, script))
            self._directory = ""
        if script.startswith("~/") or (
            script.startswith("/") and not Path(script).is_relative_to(home)
        ):
            self._report_cd()
            return  # the hosts have it
        if script.startswith(("../", "/")):
            self._directory, script = os.path.split(script)
        self.draft.put("train.script", script, line)
        names = [script]
        if module:
            path = script.removeprefix("module:").replace(".", "/")
            names = [f"{path}.py", f"{path}/__main__.py"]
        roots = [Path(self._directory), file.parent / self._directory, file.resolve().parent.parent]
        roots += [Path(), file.parent] if given.startswith(("/", "~")) else []
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
        self._check_paths([start / given for start in starts], code or home)
        if code is None and not module:  # a module may be an installed one
            problem = f"{script}, which is not found from {os.path.relpath(home)}"
            remedy = "correct code, or write train.script: /PATH where setup fetches it"
            self.draft.report_lost(0, problem, remedy)
        if code not in [(root / given).resolve() for root in starts]:
            self._report_cd()

    def _check_paths(self, starts: Sequence[Path], code: Path) -> None:
        """Report the arguments that are paths from where the script starts, and none in the job's directory."""
        line = self.draft.fields["train", "script"].line
        remedy = "the job has links to the files of code: write an absolute path, or add the file to code"
        for word in self.draft.get("train.args") or ():
            path = word.rpartition("=")[2]
            is_file = path and any(os.path.exists(start / path) for start in starts)
            if path.startswith("../") or (is_file and not os.path.exists(code / path)):
                self.draft.report_lost(line, f"the place of the argument {word}", remedy)
            if word in self.shell.globs and (
                word.startswith(("/", "~"))
                or any(any(glob.iglob(word, root_dir=each)) for each in starts)
            ):
                problem = f"the argument {word}, for which bash writes the names of files"
                self.draft.report_lost(line, problem, "write the names in train.args")

    def _report_cd(self) -> None:
        if self.directory_change:
            self.draft.report_lost(*self.directory_change, WORKDIR)

    def _read_head(self, text: str) -> None:
        """Read the lines that are not commands, such as directives."""

    def _activate(self, launch: Launch) -> None:
        """Put the commands that make the launch's Python usable into the draft."""
        for activation in self.activations:
            self.draft.add("python.activate", activation.text, activation.line)

    def _read_step(self, launch: Launch) -> None:
        """Read the options in front of the launcher that ask for a size."""

    def _read_launch(self, procs: int, launch: Launch) -> None:
        """Report what the whole launch lacks. `procs`: the number of processes that it starts on a node."""

    def _refused_launches(
        self, chosen: Sequence[Launch], broken: Break | None, first: int
    ) -> SpecInvalidError:
        """Return the error for a script that does not start one training, with the place where reading stopped."""
        if chosen:
            lines = ", ".join(str(launch.line) for launch in chosen)
            return self._refused(chosen[0].line, f"lines {lines} each start a training")
        if broken:
            problem = f"from {broken.word} on, this is no bash"
            return self._refused(first + broken.row, problem, "correct the script")
        line, reason = self.stop if self.stop[1] else self.unread
        if not self.stop[1] and (submits := _SUBMITS.search(self._text)):
            line = first + self._text.count("\n", 0, submits.start(1))
            reason = f"sbatch gets {submits[1]}: adopt {submits[1]} in its place"
        problem = "no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py"
        return self._refused(line, f"{problem}: {reason}" if reason else problem)

    def _check_operator(self, launch: Launch, operator: str) -> None:
        keeps = _KEEPS_EXIT_CODE.get(operator)
        behind = "\n".join(self._text.split("\n")[launch.line - self._first :])
        kept = keeps is not None and keeps.search(behind)
        if not kept and not (operator[:2] in ("|", "|&") and _PIPEFAIL.search(self._text)):
            super()._check_operator(launch, operator)

    # --- the command that trains ------------------------------------------------------------------

    def _launch(self, launch: Launch) -> int:
        """Put nodes, processes and the training script into the draft, and return the processes on a node."""
        draft, line, options = self.draft, launch.line, dict(launch.options)
        for problem, remedy in (*launch.prefix.lost, *launch.lost):
            draft.report_lost(line, problem, remedy)
        self._interpreter(launch)
        count, procs_option = _COUNT_OPTIONS.get(launch.kind, ("", ""))
        count_option = options.pop(count, "")
        minimum, _, maximum = count_option.partition(":")
        if minimum.isdecimal() and (maximum or minimum).isdecimal():
            self._check_nodes(count_option, int(maximum or minimum), line)
        elif count_option:
            problem = f"--{count}={plain(count_option)}"
            draft.report_lost(line, problem, f"the spec's job has {self.nodes} nodes")
        procs = self._procs(launch, procs_option, options.pop(procs_option, ""))
        draft.put("procs_per_node", procs, line)
        module = "m" in options or "module" in options
        words = [options["m"], *launch.rest] if options.get("m") else list(launch.rest)
        name, arguments = (words[0] if words else ""), words[1:]
        path = name if module and is_known(name) else self._path(name)
        if not path:
            raise self._refused(line, f"the script's name is not known: {plain(name)}")
        is_command = options.pop("no-python", None) is not None
        if not is_command:
            draft.put("train.script", f"module:{path}" if module else os.path.normpath(path), line)
        if arguments and re.fullmatch(r"\$\{?[@*]\}?", plain(arguments[-1])):
            problem = f'"{plain(arguments.pop())}": arguments after the launch command are added'
            draft.report_needless(line, problem)
        if arguments := self._without_resume(arguments, line):
            self._arguments(arguments, line)
        if is_command:
            given = draft.fields.pop(("train", "args"), None)
            draft.put("train.command", [path, *(given.value if given else ())], line)
        self._options(options, line)
        return procs

    def _interpreter(self, launch: Launch) -> None:
        """Put the Python of a launcher that is named by its path into the draft."""
        folder, program = posixpath.split(launch.program)
        if not folder:
            return
        path = self._path(folder) or ""
        if path.startswith(("/", "~/")):
            python = program if program.startswith("python") else "python"
            self.draft.put("python.interpreter", f"{path}/{python}", launch.line)
        else:
            remedy = "write python: with the path of its Python on the hosts"
            self.draft.report_lost(launch.line, plain(launch.program), remedy)

    def _procs(self, launch: Launch, option: str, value: str) -> int:
        """Return the number of processes on a node. `value`: the value of the launcher's `option`."""
        if value.isdecimal():
            return max(1, int(value) // (self.nodes if launch.kind == "accelerate" else 1))
        counted = value in _COUNTED_ON_MACHINE or "nvidia-smi" in value
        if launch.kind in ("accelerate", "deepspeed") and not value:
            counted = True
        if self.gpus and counted and value not in ("cpu", "xpu"):
            return self.gpus
        if counted:
            problem = f"--{option}={plain(value)}" if value else f"a launch without --{option}"
            problem += ", for which the launcher counts what the machine has"
            remedy = "write procs_per_node, and gpus_per_node if it has GPUs"
            self.draft.report_lost(launch.line, problem, remedy)
        elif value:
            problem = f"--{option}={plain(value)}"
            self.draft.report_lost(launch.line, problem, "write procs_per_node")
        return self.tasks if launch.kind == "python" else 1

    def _refused(
        self, line: int, problem: str, remedy: str = "adopt a script with one such line"
    ) -> SpecInvalidError:
        finding = Finding(Position(line), "", self.draft.hide(problem), remedy)
        return SpecInvalidError(self.draft.filename, [finding])

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        """Report a trap if the launcher waits for another number of nodes than the job has."""
        if nodes != self.nodes:
            problem = f"the launcher waits for {option} nodes, and the job has {self.nodes}"
            self.draft.report_trap(line, problem, "the spec's nodes are the job's")

    def _without_resume(self, arguments: Sequence[str], line: int) -> list[str]:
        """Return the arguments without those that depend on a checkpoint, which go into `train.resume`."""
        kept: list[str] = []
        for word in arguments:
            marks = [i for i in range(len(self.resumes)) if chr(expansion.FIRST_RESUME + i) in word]
            if not marks:
                kept.append(word)
                continue
            resume = self.resumes[marks[0]]
            is_option = resume.args[0].startswith("-")
            if len(word) > 1 or (kept and _expects_value(kept[-1]) and not is_option):
                option = word[:-1] or kept.pop()
                problem = f"{option} {' '.join(resume.args)}, where {resume.exists} is there"
                self.draft.report_lost(line, problem, "write it in train.resume.args")
            elif self.draft.get("train.resume.exists"):
                problem = f"{' '.join(resume.args)}, where {resume.exists} is there"
                self.draft.report_lost(resume.line, problem, "the spec has one such condition")
            else:
                self.draft.put("train.resume.exists", resume.exists, resume.line)
                self.draft.put("train.resume.args", resume.args, resume.line)
        return kept

    def _arguments(self, arguments: Sequence[str], line: int) -> None:
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
            elif not is_known(word.replace(INDEX, "")):
                problem = f"the argument {plain(word)}, whose value adopt does not know"
                self.draft.report_lost(line, problem, "correct it in train.args")
            elif re.match(r"(/tmp/|/dev/shm/)", word.rpartition("=")[2]) and self.nodes > 1:
                self.draft.report_trap(
                    line, f"{word} is on each node's own disk", "name a shared place"
                )
        escaped = [
            word.replace("{", "{{").replace("}", "}}") if re.search(r"\{\w+\}", word) else word
            for word in arguments
        ]
        self.draft.put("train.args", [plain(word) for word in escaped], line)

    def _options(self, options: Mapping[str, str], line: int) -> None:
        for name, value in options.items():
            if name == "max-restarts" and value.isdecimal():
                self.draft.put("restarts", int(value), line)
                if value == "0":
                    self.draft.report_trap(
                        line, "--max-restarts=0: the first crash ends the job", "set restarts: 3"
                    )
            elif name == "mixed-precision":
                self.draft.variable("ACCELERATE_MIXED_PRECISION", value, line)
            elif name not in ("m", "module") and not _RENDEZVOUS_OPTIONS.fullmatch(name):
                self.draft.report_lost(line, f"--{name}={plain(value)}" if value else f"--{name}")
            local = re.match(r"(localhost|127\.0\.0\.1):", value) or (
                not self._filled_once and re.search(r"\$(\(hostname|HOSTNAME)", value)
            )
            if local and self.nodes > 1 and re.search("endpoint|addr|-ip$", name):
                problem = f"--{name}={plain(value)} is another place on each of {self.nodes} nodes"
                self.draft.report_trap(line, problem, "the spec's job meets at its first node")
            port = (
                re.fullmatch(r"(?:.*:)?([1-9]\d*)", value)
                if re.search("port|endpoint", name)
                else None
            )
            if port and self.shares_nodes:
                self._check_port(port[1], line)


class HandStarted(Script):
    """A launch script that its user starts on each machine."""

    def _check_nodes(self, option: str, nodes: int, line: int) -> None:
        if nodes > 1:
            self.nodes = nodes
            problem = f"{option} machines, whose names are not known"
            self.draft.report_lost(line, problem, "write targets: {hosts: {hosts: [NAME, NAME]}}")

    def _read_launch(self, procs: int, launch: Launch) -> None:
        if image := launch.prefix.container.get("image"):
            remedy = "start it in there, or write targets.slurm.environment.container"
            self.draft.report_lost(launch.line, f"the container {image}", remedy)
        remedy = f"if so, write gpus_per_node: {procs}"
        self.draft.report_lost(launch.line, "whether it trains on GPUs", remedy)


def _expects_value(word: str) -> bool:
    return word.startswith("-") and "=" not in word
