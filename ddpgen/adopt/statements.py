"""The statements of a launch script in bash: their effects on a job's variables, directory and Python, and its launches.

Reads statements in their order, and runs nothing. A statement under a condition, in a loop or in a function that is
never called is reported as not carried over.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpgen.adopt import expansion
from ddpgen.adopt.draft import Draft
from ddpgen.adopt.expansion import OWN, START, Shell, Value, is_known, plain, text_of
from ddpgen.adopt.launcher import Launch, Prefix, launched, prefixed
from ddpgen.adopt.syntax import Node, first_break, parse, source

# Commands without an effect on the training.
_IGNORED = frozenset([
    "echo", "printf", "date", "hostname", "pwd", "nvidia-smi", "set", "wait", "which", "printenv", ":", "true",
    "sleep", "exit", "shopt", "clear",
])  # fmt: skip
_ACTIVATION = frozenset(
    ["module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "eval", "ulimit"]
)
# Around a file of variables, so that the training gets them.
_EXPORTS_ALL = re.compile(r"set [-+](a|o allexport)")
# Variables of the rendezvous, which the supervisor sets.
_RENDEZVOUS_VARIABLES = frozenset(
    ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"]
)
_SLOW_SETTINGS = ("NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1", "NCCL_P2P_DISABLE=1")
# Operators that hide the exit code of the command in front of them.
_HIDING = ("||", "|", "|&", "&")
SUBMISSION = "the directory of sbatch"
# The text of a command that starts a training, perhaps in a way that is not read.
_STARTS = re.compile(
    r"torchrun|accelerate launch|torch\.distributed|python\S* (-\w+ )*\S*\.py\b|deepspeed (-|\S+\.py\b)"
)
# The job's own warning before the time limit, and its way back into the queue.
_BY_ITSELF = re.compile(
    r"scontrol requeue\b|trap ['\"]?(\w+|.*scontrol requeue.*)['\"]? (SIG)?USR[12]$"
)
# A redirection that writes no file.
_NO_FILE = re.compile(r">&\s*[12]$|/dev/null$")
_BLOCK = "a condition, a loop or a function"
_SIMPLE = ("command", "declaration_command", "variable_assignment", "unset_command")


class Resume(NamedTuple):
    """A file that shows progress, and the words that the command gets if the file exists."""

    exists: str
    args: list[str]
    line: int


class Activation(NamedTuple):
    """A command that makes a Python usable. `inside`: True if it runs in a container."""

    words: Sequence[str]
    text: str
    line: int
    inside: bool


class Statements:
    """The statements of one launch script.

    `own_directory`: the script's directory, or "" if that is not known. `variables`: the values of variables.
    `launches`: the commands that train. `activations`: the commands that make a Python usable. `resumes`: the
    conditions on a checkpoint. `directory_change`: the line and text of the last command that left the starting
    directory. `stop`: the line and the words at which the search for a training ended last. `unread`: those of the last
    command that is not carried over.
    """

    shares_nodes = False
    """True if another job may run on the same nodes at the same time."""

    activates_in = "the bundle"
    """The directory in which the spec's job runs the lines of `python.activate`."""

    copied = False
    """True if the scheduler runs a copy of the script in another directory."""

    def __init__(
        self, draft: Draft, own_directory: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        self.draft, self._own_directory = draft, own_directory
        self.shell = Shell(variables or {}, own_directory and posixpath.basename(draft.filename))
        self.launches: list[Launch] = []
        self.activations: list[Activation] = []
        self.resumes: list[Resume] = []
        self.directory_change: tuple[int, str] | None = None
        self.stop = self.unread = (1, "")
        self._first = 1
        self._functions: dict[str, Node] = {}
        self._ports: set[str] = set()
        self._on_hosts: set[str] = set()  # the variables that lines of python.activate set
        # The words in front of a shell that runs the statements, and its line.
        self._prefix, self._shell_line = Prefix(), 0
        self._readers = {
            **dict.fromkeys(("program", "compound_statement", "pipeline"), self._sequence),
            **dict.fromkeys(("variable_assignment", "variable_assignments"), self._assignments),
            **dict.fromkeys(("test_command", "unset_command"), self._lost),
            "declaration_command": self._assignments,
            "redirected_statement": self._redirected,
            "function_definition": self._function,
            "subshell": self._subshell,
            "if_statement": self._if,
            "list": self._list,
            "command": self._command,
        }

    def read_statements(self, root: Node, first: int) -> None:
        """Read all statements. `first`: the number of the first line."""
        self._first = first
        self._report_break(root)
        self._statement(root, "")
        for body in self._functions.values():
            self._block(body)

    def _statement(self, node: Node, operator: str) -> None:
        """Read a statement. `operator`: the operator behind the statement."""
        if node.is_error or (node.has_error and node.type in _SIMPLE):
            self._report_break(node)
        else:
            self._readers.get(node.type, self._block)(node, operator)

    def _report_break(self, node: Node) -> None:
        if broken := first_break(node):
            line = self._shell_line or self._first + broken.row
            self.draft.report_lost(line, f"{broken.word} and what follows, which is no bash")

    def _sequence(self, node: Node, operator: str) -> None:
        for child in node.named_children:
            behind = child.next_sibling
            if behind and behind.is_error and behind.start_point[0] == child.end_point[0]:
                continue  # a part of the statement is no bash
            hides = behind is not None and behind.type in _HIDING
            self._statement(child, behind.type if behind and hides else operator)

    def _redirected(self, node: Node, operator: str) -> None:
        if self._read_text(node):
            return
        if source(node.named_children[0]) == "exec" and _written(node):
            self._lost(node, operator)
        launches = len(self.launches)
        for child in node.named_children:
            if child.type == "heredoc_redirect":  # another command may stand behind it
                for other in child.named_children:
                    if other.type in ("command", "pipeline", "list"):
                        self._statement(other, operator)
            elif not child.type.endswith("_redirect"):
                self._statement(child, operator)
        if self.launches[launches:]:
            self._report_redirects(node)

    def _report_redirects(self, node: Node) -> None:
        for child in _written(node):
            self.draft.report_lost(self._line(child), source(child))

    def _read_text(self, node: Node) -> bool:
        """Take the text of `read -r -d '' NAME <<EOF`. Return False for another statement."""
        document = next(
            (body for child in node.named_children for body in child.named_children
             if body.type == "heredoc_body"), None,
        )  # fmt: skip
        words = (
            self.shell.command(node.named_children[0])[1]
            if node.named_children[0].type == "command"
            else []
        )
        if document is None or words[:1] != ["read"] or "-d" not in words:
            return False
        self.shell.variables[words[-1]] = self.shell.filled(document)
        self.shell.unused[words[-1]] = self._line(node)
        return True

    def _function(self, node: Node, _operator: str) -> None:
        name, body = (node.child_by_field_name(field) for field in ("name", "body"))
        if name and body:
            self._functions[source(name)] = body

    def _subshell(self, node: Node, operator: str) -> None:
        self._nested(node, self._prefix, self._shell_line, operator)

    def _lost(self, node: Node, _operator: str) -> None:
        self.draft.report_lost(self._line(node), _one_line(source(node)))

    def _nested(self, node: Node, prefix: Prefix, line: int, operator: str) -> None:
        """Read the statements of another shell. `prefix`: the words in front of it. `line`: the shell's line, or 0."""
        saved = self._prefix, self._shell_line, self.shell.directory, {**self.shell.variables}
        self._prefix, self._shell_line = prefix, line
        launches = len(self.launches)
        for child in node.named_children:
            self._statement(child, "")
        for launch in self.launches[launches:]:
            self._check_operator(launch, operator)
        self._prefix, self._shell_line, self.shell.directory, self.shell.variables = saved

    def _list(self, node: Node, operator: str) -> None:
        left, right = node.named_children[0], node.named_children[-1]
        joint = node.children[1].type
        exists = self._file_test(left)
        if joint == "&&" and exists and self._resume(exists, [right], []):
            return
        self._statement(left, joint)
        if joint == "&&" and left.type != "test_command":
            self._statement(right, operator)
        else:
            self._block(right)

    def _if(self, node: Node, _operator: str) -> None:
        branches: dict[str, list[Node]] = {"if": [], "then": []}
        branch = "if"
        for child in node.children:
            if child.type == "then":
                branch = "then"
            elif child.is_named and child.type != "comment":
                branches[branch].append(child)
        *then, last = branches["then"] or [node]
        if last.type == "else_clause":
            otherwise = [child for child in last.named_children if child.type != "comment"]
        else:
            then, otherwise = [*then, last], []
        exists = self._file_test(branches["if"][0]) if len(branches["if"]) == 1 else ""
        if not (exists and self._resume(exists, then, otherwise)):
            self._block(node)

    def _block(self, node: Node, _operator: str = "") -> None:
        """Report the commands of a block, which runs under a condition, several times, or not at all."""
        if node.type not in _SIMPLE:
            for child in node.named_children:
                if child.type != "command_substitution":
                    self._block(child)
            return
        line, text = self._line(node), _one_line(source(node))
        if self._is_ignored(node):
            return
        if _BY_ITSELF.match(text):
            self.draft.report_needless(line, text)
            return
        if node.type == "command":
            words = self.shell.command(node)[1]
            rest = prefixed(words, Prefix())[1]
            starts = rest and (launched(rest) or rest[0] in ("bash", "sh"))
            if starts or _STARTS.search(text):
                self.stop = line, f"{plain(words[0])} stands in {_BLOCK}"
        self.draft.report_lost(line, text, f"it stands in {_BLOCK}")

    def _is_ignored(self, node: Node) -> bool:
        if node.type == "redirected_statement":
            node = node.named_children[0]
        words = self.shell.command(node)[1] if node.type == "command" else []
        return node.type == "comment" or bool(words and words[0] in _IGNORED)

    # --- conditions on a checkpoint ---------------------------------------------------------------

    def _file_test(self, node: Node) -> str:
        """Return the path whose existence a condition tests; "" for another condition."""
        words: list[str] = []
        if node.type == "redirected_statement":
            node = node.named_children[0]
        if node.type == "command":
            words = self.shell.command(node)[1]
        elif node.type == "test_command" and node.named_children[0].type == "unary_expression":
            parts = node.named_children[0].named_children
            words = ["test", source(parts[0]), *self.shell.words(parts[-1])]
        match words:
            case ["test", "-f" | "-e" | "-d" | "-s", path] if is_known(path):
                return path
            case ["ls" | "compgen", *_, path] if is_known(path):
                return path
        return ""

    def _resume(self, exists: str, then: Sequence[Node], otherwise: Sequence[Node]) -> bool:
        """Take what the script adds to its variables if a checkpoint exists. Return False for other commands."""
        then = [statement for statement in then if not self._is_ignored(statement)]
        assignments = [each for statement in then for each in _assignments(statement)]
        if not assignments or any(not [*_assignments(statement)] for statement in then):
            return False
        for statement in otherwise:
            values = [self._assigned(each)[1] for each in _assignments(statement)]
            if (not values or any(map(text_of, values))) and not self._is_ignored(statement):
                self._block(statement)
        for assignment in assignments:
            name, value = self._assigned(assignment)
            line = self._line(assignment)
            old = self.shell.variables.get(name, "")
            before, after = _words(old), _words(value)
            args = after[len(before) :]
            if after[: len(before)] != before or not args or not all(map(is_known, args)):
                self.draft.report_lost(line, source(assignment), f"it stands in {_BLOCK}")
                continue
            mark = chr(expansion.FIRST_RESUME + len(self.resumes))
            self.resumes.append(Resume(exists, args, line))
            self.shell.variables[name] = (
                [*old, mark] if isinstance(old, list) else f"{old} {mark}".strip()
            )
            self.shell.unused[name] = line
        return True

    # --- assignments ------------------------------------------------------------------------------

    def _assignments(self, node: Node, _operator: str) -> None:
        text, line = _one_line(source(node)), self._line(node)
        words = [source(child) for child in node.children]
        exported = words[0] == "export" or "-x" in words
        for child in node.named_children if node.type != "variable_assignment" else [node]:
            if child.type == "variable_assignment":
                name, value = self._assigned(child)
                self._assign(name, value, exported, line, text)
            elif (
                child.type == "variable_name" and exported and source(child) in self.shell.variables
            ):
                name = source(child)
                self._assign(name, self.shell.variables[name], exported, line, text)
            elif exported:
                self.draft.report_lost(line, text)

    def _assigned(self, node: Node) -> tuple[str, Value]:
        """Return the name and the value of an assignment."""
        name, operator, *_ = map(source, node.children)
        value = self.shell.value(node.child_by_field_name("value"))
        old = self.shell.variables.get(name, "")
        if operator != "+=":
            return name, value
        if isinstance(value, list) or isinstance(old, list):
            return name, [*_words(old), *_words(value)]
        return name, old + value

    def _assign(self, name: str, value: Value, exported: bool, line: int, command: str) -> None:
        text = text_of(value)
        if not re.fullmatch(r"\w+", name):  # an element of an array
            self.draft.report_lost(line, command)
            return
        self.shell.variables.pop(name, None)
        secret = self.draft.is_secret(name, text)
        if not secret:
            self.shell.variables[name] = value
        self._check_variable(name, text, line)
        parts = expansion.unknown_parts(text)
        named = {each for part in parts for each in re.findall(r"[$`]\{?(\w*)", part)}
        if name in _RENDEZVOUS_VARIABLES or (exported and name.startswith(("SLURM_", "SRUN_"))):
            self.draft.report_needless(line, f"{name}={plain(text)}")
        elif not exported or _is_of_launch(expansion.split(text)):
            self.shell.unused[name] = line
        elif is_known(text) or (secret and named == {name}):
            self.draft.variable(name, text if is_known(text) else "", line)
        elif (
            parts and not secret and named <= {name, *expansion.OF_MACHINE, *self._on_hosts}
        ):  # such as PATH=$HOME/bin:$PATH
            del self.shell.variables[name]
            self._on_hosts.add(name)
            export = f'export {name}="{plain(text)}"'
            self._activation(("export",), export, line)
        else:
            remedy = f"only a machine knows {[*parts, plain(text)][0]}: write it in env, as {name}"
            self.draft.report_lost(line, command, remedy)

    def _check_variable(self, name: str, value: str, line: int) -> None:
        if name == "MASTER_PORT" and value.isdecimal():
            self._check_port(value, line)
        elif f"{name}={value}" in _SLOW_SETTINGS:
            problem = f"{name}={value} keeps NCCL from the fast network"
            self.draft.report_trap(line, problem, "leave it out, unless you know why it is there")

    # --- commands ---------------------------------------------------------------------------------

    def _command(self, node: Node, operator: str) -> None:
        line = self._line(node)
        whole = node.parent if node.parent and node.parent.type == "redirected_statement" else node
        text = _one_line(self.shell.filled(whole))
        env, words = self.shell.command(node)
        prefix, rest = prefixed([*(f"{name}={value}" for name, value in env), *words], self._prefix)
        if not rest:
            return
        if inner := _shell_text(rest):
            self._nested(parse(f"{expansion.as_source(inner)}\n"), prefix, line, operator)
        elif rest[0] in self._functions:
            self._call(rest, operator)
        elif launch := launched(rest):
            launch = launch._replace(
                prefix=prefix,
                line=line,
                text=_one_line(source(whole)),
                directory=self.shell.directory,
            )
            self.launches.append(launch)
            self._report_redirects(node)
            self._check_operator(launch, operator)
        elif words[0] == "cd":
            self.change_directory(words[-1] if words[1:] else "~", line, text)
        elif words[0] in _ACTIVATION or _EXPORTS_ALL.fullmatch(text):
            if re.search(r"\$\{?(?!HOME|USER)\w", text):
                self.draft.report_lost(line, text, "write it in python.activate")
            else:
                self._activation(words, text, line)
        elif _BY_ITSELF.match(text):
            self.draft.report_needless(line, text)
        elif words[0] not in _IGNORED and not (words[0] == "shift" and self.shell.shift(words[1:])):
            self._stop(rest, line, source(whole), prefix.srun)
            self.draft.report_lost(line, text)

    def _stop(self, words: Sequence[str], line: int, text: str, srun: bool) -> None:
        """Remember where the search for a training ended. `srun`: True if srun starts the command."""
        reason = f"reading stopped at {plain(words[0])}"
        if posixpath.basename(words[0]) in ("bash", "sh") and re.match(
            r"[^-]", "".join(words[1:2])
        ):
            self.stop = line, f"{reason} {plain(words[1])}: adopt {plain(words[1])} in its place"
        elif (
            srun
            or not is_known(words[0])
            or _STARTS.search(text)
            or any(word.endswith(".py") for word in words)
        ):
            self.stop = line, reason
        self.unread = line, reason

    def _activation(self, words: Sequence[str], text: str, line: int) -> None:
        """Take a command that makes a Python usable. Report a relative path in it, which would begin elsewhere."""
        # A limit that a host refuses is no reason to end the job.
        kept = f"{text} || true" if words[0] == "ulimit" else text
        self.activations.append(Activation(words, kept, line, bool(self._prefix.container)))
        is_submission = self.activates_in == SUBMISSION
        if words[0] in ("source", "."):
            # bash looks for a name such as `activate` on the PATH.
            relative = re.match(r"(?![/~$])\S*[/.]", plain("".join(words[1:2])))
            elsewhere = bool(relative) and not (is_submission and not self.shell.directory)
        else:
            elsewhere = "$(dirname" in text or ("$PWD" in text and not is_submission)
        if elsewhere:
            problem = f"the directory of {text}, whose path begins at {self.activates_in} in the spec's job"
            self.draft.report_lost(line, problem, "write an absolute path in python.activate")

    def _call(self, words: Sequence[str], operator: str) -> None:
        """Read the commands of a function of the script. The function is then gone, so that a recursion ends."""
        body = self._functions.pop(words[0])
        outer = self.shell.positional()
        self.shell.set_positional(words[1:])
        self._statement(body, operator)
        self.shell.set_positional(outer)

    def change_directory(self, directory: str, line: int, text: str) -> None:
        """Go to a directory. `text`: the command that does it."""
        path = self._path(directory)
        if path is None:
            self.draft.report_lost(line, text, "name the directory in code, or in train.workdir")
            return
        base = "" if path.startswith("~") else self.shell.directory
        joined = os.path.normpath(os.path.join(base, path))
        self.shell.directory = "" if joined == "." else joined
        if directory == START or not self.shell.directory:
            self.draft.report_needless(line, text)
        elif self.copied and OWN in directory:
            problem = "$0 is Slurm's copy of the script, which is somewhere else"
            self.draft.report_trap(line, problem, "the spec's job finds its code by itself")
        else:
            self.directory_change = line, text

    def _path(self, value: str) -> str | None:
        """Return a path with the script's own directory, relative to the working one; None if it is not known."""
        value = expansion.HOME.sub("~", value)
        if value.startswith(START) and not os.path.isabs(self.shell.directory):
            value = os.path.relpath(f"./{value[1:]}", self.shell.directory or ".")
        value = value.replace(OWN, self._own_directory or OWN)
        return value if is_known(value) else None

    def _check_operator(self, launch: Launch, operator: str) -> None:
        if operator in _HIDING:
            problem = f"{operator} after the training hides its exit code"
            self.draft.report_trap(launch.line, problem, "the spec's job ends with it")

    def _check_port(self, port: str, line: int) -> None:
        if port not in self._ports:
            self._ports.add(port)
            problem = f"port {port} is fixed: two jobs on one node meet"
            self.draft.report_trap(line, problem, "the spec's job takes a free one")

    def _line(self, node: Node) -> int:
        return self._shell_line or self._first + node.start_point[0]


def _shell_text(words: Sequence[str]) -> str:
    """Return the text that `bash -c` or `eval` runs; "" for another command, and for `eval` of what is no training."""
    if posixpath.basename(words[0]) in ("bash", "sh"):
        return "".join(words[2:3]) if re.match(r"-\w*c$", "".join(words[1:2])) else ""
    text = " ".join(words[1:])
    starts = _STARTS.search(text) or re.search(r"srun |python", text)
    return text if words[0] == "eval" and is_known(text[:1]) and starts else ""


def _is_of_launch(words: Sequence[str]) -> bool:
    """True if the words of a variable are a launcher, or a training script and its arguments."""
    rest = prefixed(words, Prefix())[1]
    return bool(rest) and (
        launched(rest) is not None or (rest[1:] != [] and rest[0].endswith(".py"))
    )


def _assignments(node: Node) -> Iterator[Node]:
    """Yield the assignments of a statement that is one, or several."""
    if node.type == "variable_assignment":
        yield node
    elif node.type == "variable_assignments":
        yield from node.named_children


def _written(node: Node) -> list[Node]:
    """Return the redirections of a statement to or from files."""
    redirects = (child for child in node.children if child.type == "file_redirect")
    return [each for each in redirects if not _NO_FILE.search(source(each))]


def _words(value: Value) -> list[str]:
    return value if isinstance(value, list) else expansion.split(value)


def _one_line(text: str) -> str:
    """Return the text of a statement as one line, without its here-document."""
    text = text.replace("\\\n", " ")
    return " ".join((text.partition("\n")[0] if "<<" in text else text).split())
