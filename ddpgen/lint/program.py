"""Faults of a training script or a workload that are visible before the launch, in its source.

Faults of a user's script are warnings with their line. Reads only the script's own file, and warns only if it is
sure.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ddpgen.lint import (
    arguments,
    commands,
    decorated,
    devices,
    lightning,
    loops,
    outside,
    own_script,
    own_workload,
    packages,
    processes,
    shared_places,
    source,
    subcommands,
    trainer_settings,
    workloads,
)
from ddpgen.lint.calls import Script, warning
from ddpgen.spec.fields import did_you_mean
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.rules import TORCHRUN_VARIABLES, WORKLOADS, Conflict

# A placeholder, or the beginning of a path with a placeholder that is not closed. {{name}} reaches the script as {name}.
_BRACES = re.compile(r"(?<![{$])\{([a-z_]+)(?:(\})(?!\})|(?=/|$))", re.MULTILINE)
# A shell fills these in: a variable, and ~ at the beginning of a word.
_FOR_A_SHELL = re.compile(
    r"(?<![$\\])\$(?:([A-Z_][A-Z0-9_]+)|\{([A-Z_][A-Z0-9_]+)\}|\([a-z][^)]*\))|^~(?=/)"
)
# A source with one of these may fill in what a shell would.
_FILLS_IN = re.compile(
    rb"expand_?(user|vars)|environ(?!\[[\"'](?!HOME|USER)|\.get\([\"'](?!HOME|USER))|getenv(?!\([\"'](?!HOME|USER))|home\(|Template|subprocess|system\(|exec\(|eval\("
)
# A source with one of these may tell the tasks of an array apart.
_APART = re.compile(
    rb"ARRAY|array_index|SLURM|DDPGEN|environ(?!\[[\"']|\.get\([\"'])|exec\(|getpid|hostname|subprocess|time\(|urandom|uuid"
)
# A script without a seed draws other numbers in each task.
_SEEDED = re.compile(rb"seed\w*\([^)]")
_ONE_TASK = re.compile(r"(\d+)(-\1)?(%\d+)?")
_OPTION = r"--?[A-Za-z][\w-]*"


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the job's script, command or workload. `home`: the spec's directory."""
    with suppress(RecursionError):  # an expression too deep for ast's own functions is not judged
        yield from _check(job, home)


def _check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    yield from workloads.check(job, home)
    yield from commands.check(job, home)
    yield from outside.check(job, home)
    yield from packages.check(job, home)
    yield from _placeholders(job)
    yield from _lost_patterns(job)
    yield from _words(job.train)
    yield from _for_a_shell(job, home)
    yield from _same_tasks(job, home)
    yield from shared_places.check(job, home)
    yield from source.module(job, home)
    path = source.python_file(job, home)
    if path is None:
        return
    parsed = source.parsed(path, f"train.{job.train.program_field}")
    if isinstance(parsed, Conflict):
        if not source.has_newer_python(job):
            yield parsed
        return
    yield from source.relative_import(job.train, path, parsed)
    if job.train.workload:
        yield from source.function(job.train, path, parsed)
        yield from own_workload.check(job.train, path, parsed)
        return
    script = Script(path.name, parsed)
    yield from own_script.check(job, script, home)
    yield from processes.check(job, script, home)
    yield from devices.check(job, script, home)
    yield from loops.check(job, script, home)
    yield from arguments.check(job, script, home)
    yield from trainer_settings.check(job, script)
    yield from lightning.check(job, script)
    yield from subcommands.check(job, script)
    yield from decorated.check(job, script, home)


def _words(train: Train) -> Iterator[Conflict]:
    """Yield warnings about lists of words, which are passed word for word."""
    args = () if isinstance(train.args, Mapping) else train.args
    if train.args_style and args:
        problem = "is for a mapping, and train.args is a list, which is passed word for word"
        yield warning("train.args_style", problem, "leave it out")
    for field, words in (("train.args", args), ("train.command", train.command[1:])):
        for before, word in itertools.pairwise(("", *words)):
            # Behind an option, such words may be its value.
            if re.match(rf"{_OPTION} +\S", word) and not re.fullmatch(_OPTION, before):
                option, _, value = word.partition(" ")
                problem = f'"{word}" is one word with a space in it'
                yield warning(field, problem, f'write two words: "{option}", "{value.strip()}"')


def _for_a_shell(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a warning for each word that a shell would fill in, if nothing else surely does so."""
    train = job.train
    unfilled = [
        (field, match)
        for field, word in arguments.numbered_words(train)
        if isinstance(word, str) and (match := _FOR_A_SHELL.search(word))
    ]
    if train.command and unfilled:
        # A program that the command starts may know ~.
        sure = commands.passes_words_on(job, home)
        unfilled = [(field, match) for field, match in unfilled if sure and match[0] != "~"]
    elif unfilled and not source.is_closed(job, home, _FILLS_IN):
        return
    for field, match in unfilled:
        index = "SLURM_ARRAY_TASK_ID" in match.groups() and train.program_field != "workload"
        problem = f"is passed as it is written: no shell fills in {match[0]}"
        yield warning(field, problem, "write {array_index}" if index else "write the value itself")


def _same_tasks(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a warning if all tasks of an array surely train the same."""
    indices, train = getattr(job, "indices", None) or "0", job.train
    if job.points or _ONE_TASK.fullmatch(indices):
        return
    if re.search("ARRAY_TASK|array_index", str(asdict(job))):
        return
    if train.workload not in WORKLOADS:
        path = source.python_file(job, home)
        if path is None or not source.is_closed(job, home, _APART, "torchvision", "tqdm"):
            return
        # Tasks that run one after the other may be parts of one training.
        if train.script and (indices.endswith("%1") or not _SEEDED.search(path.read_bytes())):
            return
    problem = "all tasks of the array train the same, because nothing in the job reads the index"
    remedy = "write a sweep of {train.seed: [0, 1, 2]} in place of the array"
    if train.script:
        remedy = "write {array_index} into train.args, or let the script read SLURM_ARRAY_TASK_ID"
    yield warning(f"train.{train.program_field}", problem, remedy)


def _placeholders(job: JobSpec) -> Iterator[Conflict]:
    """Yield the placeholders that stay as they are. A job fills in those of its program, and none of a directory."""
    train, directory = job.train, job.checkpoint.dir or ""
    args = train.args.values() if isinstance(train.args, Mapping) else train.args
    places: list[tuple[str, Iterable[object], Sequence[str]]] = [
        ("checkpoint.dir", [directory], ())
    ]
    if train.program_field != "workload":
        places += [
            ("train.args", args, arguments.PLACEHOLDERS),
            ("train.command", train.command, arguments.PLACEHOLDERS),
            ("train.workdir", [train.workdir or ""], arguments.PLACEHOLDERS),
            ("train.guard", train.guard, arguments.PLACEHOLDERS),
            ("train.resume.exists", train.resume.exists, arguments.PLACEHOLDERS),
            ("train.resume.args", train.resume.args, (*arguments.PLACEHOLDERS, "newest")),
        ]
    for field, words, filled in places:
        for braces in _BRACES.finditer("\n".join(map(str, words))):
            fault = _placeholder_fault(braces, filled, job)
            if field in ("train.guard", "train.resume.exists") and braces[1] not in filled:
                fault = fault or (f"{braces[0]} stays as it is", "write * for any text")
            if fault:
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
        return (problem, "write the name itself") if name in arguments.PLACEHOLDERS else None
    if name.upper() in TORCHRUN_VARIABLES:
        return problem, f"let the script read the variable {name.upper()}"
    remedy = did_you_mean(name, filled)
    if "newest" in filled and not remedy.startswith("did you mean"):
        remedy = f"write {{newest}} for the newest file, or {{{{{name}}}}} for the word in braces"
        return problem, remedy
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
