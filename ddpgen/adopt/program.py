"""Faults of a training script or a workload that are visible before the launch, in its source.

Faults of a user's script are warnings with their line. Reads only the script's own file, and warns only if it is
sure.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpgen.adopt import source, workloads
from ddpgen.bundle import code
from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import TORCHRUN_VARIABLES, Conflict
from ddpgen.tiers.command import argument_words

# A script that calls one of these saves files.
_SAVE_CALLS = frozenset([
    "save", "save_state", "save_checkpoint", "save_model", "save_pretrained", "save_file", "dump",
    "async_save", "fit", "Trainer", "savez",
])  # fmt: skip
# Functions that write a checkpoint, and functions that read one. `fit` and `Trainer` do both, so they count as reads.
_CHECKPOINT_WRITES = frozenset(["save", "save_state", "save_checkpoint", "save_file", "async_save"])
_CHECKPOINT_READS = frozenset([
    "load", "load_state", "load_checkpoint", "load_file", "load_state_dict", "from_pretrained", "fit", "Trainer",
])  # fmt: skip
# Words that ask for a GPU → the words for a machine without GPUs.
_CPU_WORDS = {"cuda": "cpu", "nccl": "gloo"}
_ASK_TORCH = "let the script ask torch.cuda.is_available()"
# The supervisor fills in these names (train/launch/words.py). In resume.args it also fills in `newest`.
_PLACEHOLDERS = ("checkpoint_dir", "job", "attempt", "world_size", "port", "array_index")
# A placeholder, or the beginning of a path with a placeholder that is not closed. {{name}} reaches the script as {name}.
_BRACES = re.compile(r"(?<![{$])\{([a-z_]+)(?:(\})(?!\})|(?=/|$))", re.MULTILINE)
# The names of options that make a script go on from a checkpoint.
_RESUME_OPTION = re.compile(r"resume|continue|init[-_]from|load[-_]c", re.IGNORECASE)
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_SHELL_FLAGS = re.compile(r"-[aefhklnpuvx]+")  # those without a value
_TRAINERS = ("Trainer", "Fabric")


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the job's script, command or workload. `home`: the spec's directory."""
    yield from workloads.check(job, home)
    yield from _command(job.train.command)
    yield from _file_of_command(job, home)
    yield from _placeholders(job)
    yield from _lost_patterns(job)
    yield from _words(job.train)
    yield from source.module(job, home)
    path = source.python_file(job, home)
    if path is None:
        return
    parsed = source.parsed(path, f"train.{job.train.program_field}")
    if isinstance(parsed, Conflict):
        yield parsed
        return
    if job.train.workload:
        yield from source.function(job.train, path, parsed)
        return
    script = _Script(path.name, parsed)
    yield from _gpus(job, script)
    yield from _devices(job, script)
    yield from _arguments(job, script)
    yield from _saves(script, job, home)
    yield from _lost_saves(job, script)


def _command(words: Sequence[str]) -> Iterator[Conflict]:
    """Yield a warning if the command is a launcher, because each process would start one, or Python, which is better as
    a script."""
    text, first = " ".join(words), words[0] if words else ""
    single_process = re.search(r"--num[_-]processes[ =]1\b", text)
    launcher = re.match(
        r"(\S*/)?(torchrun|deepspeed|accelerate launch|srun|mpirun|mpiexec|horovodrun)\b|.* -m torch\.distributed\.",
        text,
    )
    if launcher and not single_process:
        problem = "is a launcher, and each process of the job would start it"
        remedy = (
            "name what it launches (script: train.py); for accelerate launch add --num_processes=1"
        )
        yield _warning("train.command", problem, remedy)
    elif re.fullmatch(r"(\S*/)?python[0-9.]*", first) and len(words) > 1:
        problem = (
            "is Python, of which more is known as a script: its saves, its steps, its exceptions"
        )
        module = re.search(r"^(?:-\w+ )*?-m (\S+)", " ".join(words[1:]))
        file = next((word for word in words[1:] if not word.startswith("-")), "FILE.py")
        script = f"module:{module[1]}" if module else file
        yield _warning("train.command", problem, f"write script: {script}, and the rest as args")


def _file_of_command(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the faults of the file that a command starts. A working directory on the hosts may have any file."""
    program, *words = job.train.command or ("",)
    if job.train.workdir or not program or program.startswith(("/", "~")):
        return
    path = posixpath.normpath(program)
    file = code.find(job.code, home, path).get(path)
    if file and "/" not in program:
        problem = f"{program} is looked for on the PATH, and not in code"
        yield _warning("train.command", problem, f"write ./{program}")
    elif file and not file.stat().st_mode & 0o100:
        problem = f"{program} cannot be started: its owner may not execute it"
        remedy = f"run chmod +x {path} in code, or write the program that reads it in front"
        yield _warning("train.command", problem, remedy)
    script = next((word for word in words if not _SHELL_FLAGS.fullmatch(word)), "")
    here = script.endswith(".sh") and not script.startswith(("/", "~", "{"))
    if here and _SHELL.fullmatch(program):
        path = posixpath.normpath(script)
        if job.code and path not in code.find(job.code, home, path):
            problem = f"{script} is not in code ({', '.join(job.code)})"
            yield _warning("train.command", problem, "create it, or correct the path")


def _words(train: Train) -> Iterator[Conflict]:
    """Yield warnings about a list of words in `args`, which is passed word for word."""
    if isinstance(train.args, Mapping):
        return
    if train.args_style and train.args:
        problem = "is for a mapping, and train.args is a list, which is passed word for word"
        yield _warning("train.args_style", problem, "leave it out")
    for word in train.args:
        if re.match(r"--?[A-Za-z][\w-]* +\S", word):
            option, _, value = word.partition(" ")
            problem = f'"{word}" is one word with a space in it'
            yield _warning("train.args", problem, f'write two words: "{option}", "{value.strip()}"')


def _placeholders(job: JobSpec) -> Iterator[Conflict]:
    """Yield the placeholders that stay as they are. A job fills in those of its program, and none of a directory."""
    train, directory = job.train, job.checkpoint.path or ""
    args = train.args.values() if isinstance(train.args, Mapping) else train.args
    places: list[tuple[str, Iterable[object], Sequence[str]]] = [
        ("checkpoint.dir", [directory], ())
    ]
    if train.program_field != "workload":
        places += [
            ("train.args", args, _PLACEHOLDERS),
            ("train.command", train.command, _PLACEHOLDERS),
            ("train.workdir", [train.workdir or ""], _PLACEHOLDERS),
            ("train.guard", train.guard, _PLACEHOLDERS),
            ("train.resume.exists", train.resume.exists, _PLACEHOLDERS),
            ("train.resume.args", train.resume.args, (*_PLACEHOLDERS, "newest")),
        ]
    for field, words, filled in places:
        for found in _BRACES.finditer("\n".join(map(str, words))):
            if fault := _placeholder_fault(found, filled, job):
                yield _warning(field, *fault)
    for pattern in re.findall(r"(?<![%\w])%[AajJuUx](?!\w)", directory):
        remedy = "write the name itself; Slurm fills it in in the names of its logs alone"
        yield _warning("checkpoint.dir", f"{pattern} stays as it is", remedy)


def _placeholder_fault(
    found: re.Match[str], filled: Sequence[str], job: JobSpec
) -> tuple[str, str] | None:
    """Return the problem of a word in braces, and its remedy; None if it is filled in, or means something else."""
    name, problem = found[1], f"{{{found[1]}}} stays as it is"
    if not found[2]:
        return (f"{{{name} has no closing brace", f"write {{{name}}}") if name in filled else None
    if name == "array_index" and name in filled and getattr(job, "indices", "") is None:
        return "{array_index} is empty, because array is not given", "leave it out, or write array"
    if name in filled:
        return None
    if name == "newest" and filled:
        problem = "{newest} is filled in in train.resume.args alone, and stays as it is here"
        return problem, "move it there"
    if not filled:
        return (problem, "write the name itself") if name in _PLACEHOLDERS else None
    if name.upper() in TORCHRUN_VARIABLES:
        return problem, f"let the script read the variable {name.upper()}"
    remedy = did_you_mean(name, filled)
    return (problem, remedy) if remedy.startswith("did you mean") else None


class Outline(NamedTuple):
    """The facts of a script for its first spec.

    `options`: its argparse options. `saves`: a pattern of its checkpoint's name. `resume`: the words with which it
    goes on from the checkpoint. Capitals stand for parts that the source does not show.
    """

    options: tuple[str, ...] = ()
    saves: str = "CHECKPOINT"
    resume: str = "--OPTION=CHECKPOINT"


def outline(file: Path) -> Outline:
    """Return the outline of a script, as far as its source shows it."""
    try:
        script = _Script(file.name, ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Outline()
    saves = next(
        filter(None, (_saved_name(call, script) for call in script.calls)), Outline().saves
    )
    options = _options(script) or _Options({}, ())
    option = next((name for name in options.long if _RESUME_OPTION.search(name)), "OPTION")
    word = _word_to_resume(script, option)
    value = f"={word or ('{newest}' if '*' in saves else saves)}"
    value = "" if options.long.get(option, _Option()).flag else value
    return Outline(tuple(options.long), saves, f"--{option}{value}")


def _saved_name(call: ast.Call, script: _Script) -> str:
    """Return the path that this call saves, with * for computed parts; "" if the source does not show it."""
    if _name(call.func) not in _CHECKPOINT_WRITES or len(call.args) < 2:
        return ""
    text = _path_text(call.args[1], script)
    return text if text.strip("*/") else ""


def _path_text(name: ast.expr, script: _Script) -> str:
    """Return a path as text; "" if the source does not show it."""
    if isinstance(name, ast.Constant):
        return str(name.value)
    if isinstance(name, ast.Name):
        return _constant(script.assigned.get(name.id))
    if isinstance(name, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.FormattedValue) else p for p in name.values)
        return "".join(_path_text(part, script) or "*" for part in parts)
    if isinstance(name, ast.Call) and _name(name.func) == "join":
        parts_of_path = [_path_text(part, script) for part in name.args]
        return "/".join(parts_of_path) if all(parts_of_path) else ""
    return ""


def _word_to_resume(script: _Script, option: str) -> str:
    """Return the value of `option` with which the script goes on, as in `init_from == "resume"`; else ""."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Compare) and _name(node.left) == option.replace("-", "_"):
            word = _constant(node.comparators[0])
            if _RESUME_OPTION.search(word):
                return word
    return ""


class _Script:
    """The calls and globals of a script.

    `assigned`: the first value of each global. `settings`: the globals that arguments replace, as nanoGPT's
    configurator does with `globals()`.
    """

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.called = {_name(call.func): call for call in reversed(self.calls)}
        self.assigned: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, node.value)
        self.settings: dict[str, ast.expr] = {}
        if "ArgumentParser" not in self.called and (reads := self._reads_arguments()):
            self.settings = {n: v for n, v in self.assigned.items() if v.lineno < reads}

    def _reads_arguments(self) -> int:
        """Return the line at which words of the command line become globals; 0 without such a line."""
        if "globals" not in self.called:
            return 0
        first = self.called.get("exec")
        if first is not None and "configurator.py" in ast.unparse(first):
            return min(first.lineno, self.called["globals"].lineno)
        words = any(isinstance(n, ast.Attribute) and n.attr == "argv" for n in ast.walk(self.tree))
        return self.called["globals"].lineno if words else 0

    def location(self, node: ast.expr) -> str:
        return f"{self.name}:{node.lineno}"


def _gpus(job: JobSpec, script: _Script) -> Iterator[Conflict]:
    if any(machine.gpus for machine in job.machines):
        return
    values = _option_values(job.train)
    request = next(_gpu_requests(script, values), None)
    if request:
        node, value, remedy = request
        problem = f"{script.location(node)} asks for {value}, and the job has no GPUs"
        remedy = f"write gpus_per_node: {job.procs_per_node}, or {remedy}"
        yield _warning("train.script", problem, remedy)


def _gpu_requests(
    script: _Script, values: Mapping[str, str]
) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield each expression that asks for a GPU, its word, and the remedy. `values`: those of the job's arguments."""
    for name, value in script.settings.items():
        word = values.get(name, _constant(value))
        if (
            word in _CPU_WORDS
            and not _may_use_cpu(script, name)
            and not _reads_settings_file(values)
        ):
            yield value, word, f"set train.args.{name}: {_CPU_WORDS[word]}"
    if "is_available" in script.called:
        return
    for call in script.calls:
        function, option = _name(call.func), ""
        if function == "cuda" and isinstance(call.func, ast.Attribute):
            yield call, "cuda", _ASK_TORCH
        if function == "add_argument" and call.args:
            option = _constant(call.args[-1]).lstrip("-").replace("-", "_")
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            word = _constant(value)
            if word in _CPU_WORDS and values.get(option, word).partition(":")[0] in _CPU_WORDS:
                yield value, word, _ASK_TORCH


class _Given(NamedTuple):
    """A word that the spec gives the script, at `field`.

    `option`: its name without `--`; "" for a word that is no option. `value`: the value of the option, or the whole
    word; None for an option without a value. `joined`: True if `=` joins option and value.
    """

    field: str
    option: str
    value: str | None
    joined: bool = False


def _given(train: Train) -> Iterator[_Given]:
    """Yield the words of `args`, whether a list or a mapping, and of `resume.args`."""
    args = train.args
    if isinstance(args, Mapping):
        words = [
            (f"train.args.{name}", word)
            for name, value in args.items()
            for word in argument_words(name, value, train.args_style)
        ]
    else:
        words = [(f"train.args[{i}]", word) for i, word in enumerate(args)]
    resume_words = [(f"train.resume.args[{i}]", word) for i, word in enumerate(train.resume.args)]
    for group in (words, resume_words):
        for i, (field, word) in enumerate(group):
            if word == "--":
                break
            name, joined, value = word.partition("=")
            following = group[i + 1][1] if i + 1 < len(group) else "--"
            if not name.startswith("--"):
                yield _Given(field, "", word)
            elif joined:
                yield _Given(field, name[2:], value, True)
            else:
                yield _Given(field, name[2:], None if following.startswith("--") else following)


def _option_values(train: Train) -> Mapping[str, str]:
    """Return the values of the options by name, with _ for -. A word without an option is its own name."""
    return {
        each.option.replace("-", "_") or str(each.value): each.value or "" for each in _given(train)
    }


def _reads_settings_file(values: Mapping[str, str]) -> bool:
    """True if one of the words is a file of settings, which nanoGPT's configurator runs."""
    return any(word.endswith(".py") for word in values)


def _may_use_cpu(script: _Script, name: str) -> bool:
    """True if the script itself gives the global `name` a value for a machine without GPUs."""
    return any(
        isinstance(node, ast.Assign)
        and name in map(_name, node.targets)
        and _constant(node.value) in _CPU_WORDS.values()
        for node in ast.walk(script.tree)
    )


def _devices(job: JobSpec, script: _Script) -> Iterator[Conflict]:
    for call in script.calls:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        devices = keywords.get("devices")
        if _name(call.func) not in _TRAINERS or not isinstance(devices, ast.Constant):
            continue
        if devices.value not in (job.procs_per_node, "auto", -1):
            problem = f"{script.location(devices)}: devices={devices.value!r}, and procs_per_node is {job.procs_per_node}"
            remedy = 'make them equal; int(os.environ["LOCAL_WORLD_SIZE"]) always is'
            yield _warning("procs_per_node", problem, remedy)


class _Option(NamedTuple):
    """One option of argparse. `flag`: it takes no value. `wants_value`: it takes one, and fails without. `negated`: it has a form --no-NAME. `read`: int or float, if
    the script reads the value as such a number. `choices`: the values that it may have; () for any."""

    flag: bool = False
    wants_value: bool = False
    negated: bool = False
    read: type[int | float] | None = None
    choices: tuple[object, ...] = ()


class _Options(NamedTuple):
    """The options of the script's one argparse parser, or its globals that arguments replace. `long`: by the name behind
    `--`. `needed`: the names of the arguments that have to be given."""

    long: Mapping[str, _Option]
    needed: tuple[str, ...]

    def named(self, name: str, abbreviated: bool) -> _Option | None:
        """Return the option that argparse takes `name` for; None for an unknown one."""
        negated = {
            f"no-{n}": _Option(flag=True) for n, option in self.long.items() if option.negated
        }
        known = {**self.long, **negated}
        meant = [option for n, option in known.items() if abbreviated and n.startswith(name)]
        return known.get(name) or next(iter(meant), None)


def _arguments(job: JobSpec, script: _Script) -> Iterator[Conflict]:
    """Yield the options that the script does not have, and the values that it cannot take."""
    options, args = _options(script), job.train.args
    if options is None or (script.settings and _reads_settings_file(_option_values(job.train))):
        return
    for given in filter(lambda given: given.option, _given(job.train)):
        option = options.named(given.option, abbreviated=not script.settings)
        if option is None and given.option == "help":
            problem, remedy = (
                f"has {script.name} print its options, and train nothing",
                "leave it out",
            )
        elif option is None:
            remedy = did_you_mean(given.option.replace("_", "-"), options.long)
            problem = f"{script.name} has no option --{given.option}"
        else:
            problem, remedy = _value_fault(given, option, script.name)
        if problem:
            fields = (given.field, given.field.partition("[")[0])
            yield Conflict(fields, problem, remedy, fatal=False)
    for name in options.needed if isinstance(args, Mapping) else ():
        if name not in args:
            remedy = "add it; a list of words can say positional ones"
            yield _warning("train.args", f"{script.name} wants {name}", remedy)


def _value_fault(given: _Given, option: _Option, script: str) -> tuple[str, str]:
    """Return why argparse cannot take the option's value, and the remedy; two "" if it can."""
    name, value = given.option, given.value
    if option.flag and given.joined:
        problem = f"--{name} of {script} takes no value, and gets {show(value or '')}"
        return problem, f"write --{name} alone; in a mapping, true with args_style: flags"
    if value is None:
        wanted = f"{script} reads a value behind --{name}, and gets none"
        return (wanted, f"write --{name}=VALUE") if option.wants_value else ("", "")
    if option.flag or "{" in value:
        return "", ""
    try:
        parsed = option.read(value) if option.read else value
    except ValueError:
        assert option.read
        problem = f"{show(value)} is no {option.read.__name__}, and {script} reads --{name} as one"
        return problem, "correct it"
    if option.choices and parsed not in option.choices:
        problem = f"{script} has no choice {show(value)} for --{name}"
        return problem, did_you_mean(value, [*map(str, option.choices)])
    return "", ""


# Actions of argparse that take no value.
_FLAGS = (
    "store_true", "store_false", "store_const", "append_const", "count", "help", "version", "BooleanOptionalAction",
)  # fmt: skip


def _options(script: _Script) -> _Options | None:
    """Return the script's options; None if it may have another parser, sub-commands or unknown options."""
    if script.settings:
        return _Options(dict.fromkeys(script.settings, _Option()), ())
    parsers = [call for call in script.calls if _name(call.func) == "ArgumentParser"]
    if len(parsers) != 1 or "parse_args" not in script.called:
        return None
    if {"parse_known_args", "add_subparsers", "parse_args_into_dataclasses"} & script.called.keys():
        return None
    if any(keyword.arg == "parents" for keyword in parsers[0].keywords):
        return None
    long: dict[str, _Option] = {}
    needed: list[str] = []
    for call in script.calls:
        if _name(call.func) != "add_argument":
            continue
        words = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        nargs = _text(keywords["nargs"]) if "nargs" in keywords else ""
        if not words or len(words) != len(call.args) or nargs in ("REMAINDER", "..."):
            return None  # a computed name, or an argument that takes the options behind it
        own = [str(word)[2:] for word in words if str(word).startswith("--")]
        long |= dict.fromkeys(own, _option(keywords))
        positional = not str(words[0]).startswith("-") and not nargs
        if positional or _text(keywords.get("required", ast.Constant(""))) == "True":
            needed.append(own[0] if own else str(words[0]))
    return _Options(long, tuple(needed))


def _option(keywords: Mapping[str | None, ast.expr]) -> _Option:
    """Return the option that add_argument() makes of these keywords."""
    action, read = (
        _text(keywords[name]) if name in keywords else "" for name in ("action", "type")
    )
    choices: tuple[object, ...] = ()
    if read in ("", "str", "int", "float"):
        match keywords.get("choices"):
            case ast.List(elts) | ast.Tuple(elts) | ast.Set(elts):
                choices = tuple(each.value for each in elts if isinstance(each, ast.Constant))
                choices = choices if len(choices) == len(elts) else ()
    numbers: Mapping[str, type[int | float]] = {"int": int, "float": float}
    wants_value = "nargs" not in keywords and action in ("", "store", "append")
    negated = action == "BooleanOptionalAction"
    return _Option(action in _FLAGS, wants_value, negated, numbers.get(read), choices)


def _saves(script: _Script, job: JobSpec, home: Path) -> Iterator[Conflict]:
    resume, folder = job.train.resume, posixpath.dirname(job.train.user_file)
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(script.tree)
        if isinstance(node, ast.ImportFrom)
    }
    modules = [posixpath.join(folder, name) for name in sorted(imported)]
    if "" in imported or any(
        code.find(job.code, home, path) for name in modules for path in (name, f"{name}.py")
    ):
        return
    writes = sorted(
        script.called[name].lineno for name in _CHECKPOINT_WRITES & script.called.keys()
    )
    if writes and not _CHECKPOINT_READS & script.called.keys():
        problem = f"{script.name}:{writes[0]} saves, and nothing loads that: a start after a kill would be refused"
        remedy = "load the newest checkpoint at the start, or write resume: scratch to start over each time"
        if resume.begin == "auto" and not resume.exists:
            yield _warning("train.script", problem, remedy)
    elif not _SAVE_CALLS & script.called.keys():
        problem = f"{script.name} saves nothing: a kill or a stop loses all that was trained"
        remedy = "save a checkpoint now and then, and load it at the start"
        yield _warning("train.script", problem, remedy)


def _lost_patterns(job: JobSpec) -> Iterator[Conflict]:
    """Yield the patterns below a working directory that is lost with its machine."""
    train = job.train
    fields = (("train.resume.exists", train.resume.exists), ("train.guard", train.guard))
    for field, patterns in () if job.persists(train.workdir or "") else fields:
        for pattern in patterns:
            if not pattern.startswith(("/", "~", "{checkpoint_dir}")):
                folder = posixpath.join("{checkpoint_dir}", posixpath.dirname(pattern)).rstrip("/")
                problem = f"{pattern} lies in the working directory, which goes with the machine"
                remedy = f"write {{checkpoint_dir}}/{pattern}, and let the script save to {folder}"
                yield Conflict((field, "train.resume"), problem, remedy, fatal=False)


def _lost_saves(job: JobSpec, script: _Script) -> Iterator[Conflict]:
    """Yield the first save into a working directory that is lost with its machine."""
    if job.persists(job.train.workdir or "") or job.train.resume.exists:
        return
    for call in script.calls:
        name = _saved_name(call, script)
        if name and not name.startswith(("/", "~", "*")):
            problem = f"{script.location(call)} saves {name} into the working directory, which goes with the machine"
            remedy = "save below the directory that the variable DDPGEN_CHECKPOINT_DIR names"
            yield _warning("train.script", problem, remedy)
            return


def _constant(value: ast.expr | None) -> str:
    """Return the text of a constant string; else ""."""
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _text(value: ast.expr) -> str:
    """Return a constant as text, or the name of another expression."""
    return str(value.value) if isinstance(value, ast.Constant) else _name(value)


def _name(function: ast.expr) -> str:
    """Return the last name of an expression, such as `save` of torch.save; else ""."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _warning(field: str, problem: str, remedy: str) -> Conflict:
    return Conflict(
        (field, "train.args", "train.script", "train.command"), problem, remedy, fatal=False
    )
