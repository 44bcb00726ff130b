"""Faults of a training script or a workload that are visible before the launch, in its source.

Faults of a user's script are warnings with their line. Reads only the script's own file, and warns only if it is
sure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ddpgen.adopt import arguments, own_script, source, workloads
from ddpgen.adopt.calls import Script, warning
from ddpgen.bundle import code
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import TORCHRUN_VARIABLES, Conflict

# The supervisor fills in these names (train/launch/words.py). In resume.args it also fills in `newest`.
_PLACEHOLDERS = ("checkpoint_dir", "job", "attempt", "world_size", "port", "array_index")
# A placeholder, or the beginning of a path with a placeholder that is not closed. {{name}} reaches the script as {name}.
_BRACES = re.compile(r"(?<![{$])\{([a-z_]+)(?:(\})(?!\})|(?=/|$))", re.MULTILINE)
# Programs that start a command elsewhere and end before it, and programs that run it as another user.
_ELSEWHERE = re.compile(r"(\S*/)?(at|batch|sbatch|screen|systemd-run|tmux)")
_OTHER_USER = re.compile(r"(\S*/)?(doas|su|sudo)")
# What a shell fills in: a variable, and ~ at the beginning of a word.
_FOR_A_SHELL = re.compile(r"(?<![$\\])\$(?:[A-Z_][A-Z0-9_]+|\{[A-Z_][A-Z0-9_]+\})|^~(?=/)")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_SHELL_FLAGS = re.compile(r"-[aefhklnpuvx]+")  # those without a value


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the job's script, command or workload. `home`: the spec's directory."""
    yield from workloads.check(job, home)
    yield from _command(job.train.command)
    yield from _file_of_command(job, home)
    yield from _placeholders(job)
    yield from _lost_patterns(job)
    yield from _words(job.train)
    yield from _for_a_shell(job, home)
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
    script = Script(path.name, parsed)
    yield from own_script.check(job, script, home)
    yield from arguments.check(job, script)


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
        yield warning("train.command", problem, remedy)
    elif _ELSEWHERE.fullmatch(first):
        problem = f"{first} ends before what it starts, and then the job is done"
        yield warning("train.command", problem, "name what it starts")
    elif _OTHER_USER.fullmatch(first):
        problem = f"{first} takes the job's variables away, and may wait for a password"
        yield warning("train.command", problem, f"leave {first} out, and launch as that user")
    elif re.fullmatch(r"(\S*/)?python[0-9.]*", first) and len(words) > 1:
        problem = (
            "is Python, of which more is known as a script: its saves, its steps, its exceptions"
        )
        module = re.search(r"^(?:-\w+ )*?-m (\S+)", " ".join(words[1:]))
        file = next((word for word in words[1:] if not word.startswith("-")), "FILE.py")
        script = f"module:{module[1]}" if module else file
        yield warning("train.command", problem, f"write script: {script}, and the rest as args")


def _file_of_command(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the faults of the file that a command starts. A working directory on the hosts may have any file."""
    program, *words = job.train.command or ("",)
    if job.train.workdir or not program or program.startswith(("/", "~")):
        return
    path = posixpath.normpath(program)
    file = code.find(job.code, home, path).get(path)
    if file and "/" not in program:
        problem = f"{program} is looked for on the PATH, and not in code"
        yield warning("train.command", problem, f"write ./{program}")
    elif file and not file.stat().st_mode & 0o100:
        problem = f"{program} cannot be started: its owner may not execute it"
        remedy = f"run chmod +x {path} in code, or write the program that reads it in front"
        yield warning("train.command", problem, remedy)
    script = next((word for word in words if not _SHELL_FLAGS.fullmatch(word)), "")
    here = script.endswith(".sh") and not script.startswith(("/", "~", "{"))
    if here and _SHELL.fullmatch(program):
        path = posixpath.normpath(script)
        if job.code and path not in code.find(job.code, home, path):
            problem = f"{script} is not in code ({', '.join(job.code)})"
            yield warning("train.command", problem, "create it, or correct the path")


def _words(train: Train) -> Iterator[Conflict]:
    """Yield warnings about a list of words in `args`, which is passed word for word."""
    if isinstance(train.args, Mapping):
        return
    if train.args_style and train.args:
        problem = "is for a mapping, and train.args is a list, which is passed word for word"
        yield warning("train.args_style", problem, "leave it out")
    for word in train.args:
        if re.match(r"--?[A-Za-z][\w-]* +\S", word):
            option, _, value = word.partition(" ")
            problem = f'"{word}" is one word with a space in it'
            yield warning("train.args", problem, f'write two words: "{option}", "{value.strip()}"')


def _for_a_shell(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a warning for each word that a shell would fill in, unless the program looks as if it did so itself."""
    train, path = job.train, source.python_file(job, home)
    if path is not None and re.search(rb"expand_?(user|vars)|environ", path.read_bytes()):
        return
    args = train.args.items() if isinstance(train.args, Mapping) else enumerate(train.args)
    words = [
        (f"train.args.{name}" if isinstance(name, str) else f"train.args[{name}]", value)
        for name, value in args
    ]
    if train.command and not _SHELL.fullmatch(posixpath.basename(train.command[0])):
        words += [(f"train.command[{i}]", word) for i, word in enumerate(train.command[1:], 1)]
    for field, word in words:
        if isinstance(word, str) and (unfilled := _FOR_A_SHELL.search(word)):
            problem = f"is passed as it is written: no shell fills in {unfilled[0]}"
            yield warning(field, problem, "write the value itself")


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
        for braces in _BRACES.finditer("\n".join(map(str, words))):
            if fault := _placeholder_fault(braces, filled, job):
                yield warning(field, *fault)
    for pattern in re.findall(r"(?<![%\w])%[AajJuUx](?!\w)", directory):
        remedy = "write the name itself; Slurm fills it in in the names of its logs alone"
        yield warning("checkpoint.dir", f"{pattern} stays as it is", remedy)


def _placeholder_fault(
    braces: re.Match[str], filled: Sequence[str], job: JobSpec
) -> tuple[str, str] | None:
    """Return the problem of a word in braces, and its remedy; None if it is filled in, or means something else."""
    name, problem = braces[1], f"{{{braces[1]}}} stays as it is"
    if not braces[2]:
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
