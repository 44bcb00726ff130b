"""The spec's lines of bash (`activate`, `setup`) that a user hardly means. Each gives a warning. Runs no bash. Pure.

Knows one line at a time: ddpgen/lint/lines.py has bash itself read them all.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import INTERFACE_VARIABLES, TORCHRUN_VARIABLES, Conflict

_NAMES = ("activate", "setup")  # the fields
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
HIDES_GPUS = (
    "hides GPUs from every process, and the job counts on those of gpus_per_node",
    "leave it out, and write gpus_per_node",
)
# A PATH of plain words that lacks the directory of a host's own programs.
OTHER_PATH = re.compile(
    r"(?!(?:.*:)?(?:/usr)?/bin/?(?::|$))(?=[^/]*/)(?:\$HOME|\$\{HOME\}|[^\s$`;&])*"
)
LOSES_PROGRAMS = "replaces the host's PATH, and so hides the host's own programs"

# A line with an effect that ends with its shell.
_OF_THE_SHELL = re.compile(
    r"\s*((export|ulimit|cd|module|ml)\s[^;|&]*|(\.|source)\s+\S*activate|(conda|mamba|micromamba) activate\s[^;|&]*|#.*)?\s*"
)
# A whole line, its problem, its remedy.
_LINES = (
    (
        re.compile(r"(?:export\s+[A-Za-z_]\w*|[A-Z_][A-Z0-9_]*)\s+=(?![=~]).*"),
        "has a space before =, which bash does not take for a value",
        "write export NAME=VALUE",
    ),
    (
        re.compile(r"setenv\s+\w+.*|set\s+[A-Za-z_]\w*\s*=.*"),
        "is for csh, and sets no variable in bash",
        "write export NAME=VALUE",
    ),
    (
        re.compile(r"\$(env|global):.*|call\s.*|((source|\.|powershell)\s+)?\S+\.(bat|cmd|ps1)"),
        "is for a shell of Windows",
        "write export NAME=VALUE, or source DIRECTORY/bin/activate",
    ),
    (
        re.compile(r"\[\s(?!.*\s\](?:[\s;&|)]|$)).*"),
        "does not end with a space and ], and so fails",
        "write [ … ]",
    ),
    (
        re.compile(r"unset(\s+[\w-]+)*\s+PATH(\s+\w+)*"),
        "takes away the PATH, and so every program",
        "leave it out",
    ),
    (
        re.compile(r"(?:source|\.)\s+\S*/"),
        "is a directory, and no file",
        "write source DIRECTORY/bin/activate",
    ),
    (
        re.compile(r"(?:(?:source|\.|call)\s+)?[\w.:~-]+(?:\\[\w.-]+)+"),
        "has a path with backslashes, which bash takes away",
        "write / between its parts",
    ),
    (
        re.compile(
            r"(?!.*(?<![&>])&(?![&>\d]))(sleep\s+inf\w*|htop|top|watch\s.*|tail\s[^|]*-[fF]\b[^|]*|nvidia-smi\s([^|]*\s)?(-l\b|--loop|[dp]mon)[^|]*"
            r"|tensorboard\s.*--logdir.*|jupyter[ -](lab|notebook|server).*|python3?\s+-m\s+http\.server.*)"
        ),
        "does not end, and the training waits for it",
        "leave it out, or put & behind it",
    ),
    (
        re.compile(
            r"(poetry|pipenv|pixi)\s+shell|newgrp\b.*|su(?!\S)(?!.*\s-c).*|tmux|screen|(ba|z|fi|tc|c)?sh(\s+\S*/activate)?"
            r"|\(\s*(source|\.)\s[^()&|;]*\)|(source|\.)\s[^|&;]*(&|\|(?!\|).*)"
        ),
        "starts a shell of its own, which ends at once and changes nothing here",
        "write source DIRECTORY/bin/activate, for an environment",
    ),
    (
        re.compile(r"module\s+(load|add)\s[^;&|]*\s(source|export|module|conda|\.|cd)\s.*"),
        "is one line, and module takes all of its words for modules",
        "write a list with a line each; in a block write | and not >",
    ),
    (
        re.compile(r"alias\s.*"),
        "has no effect, because bash fills in an alias only at a terminal",
        "write a function, or the whole path of the program",
    ),
    (
        re.compile(r"\S*/bin/activate"),
        "starts the file as a program, which cannot change this shell",
        r"write source \g<0>",
    ),
    (
        re.compile(
            r"(sudo\s+)?(apt|apt-get|dnf|yum|conda|mamba|micromamba)\s+(install|create)(?!.*\s(-\w*y|-qq|--yes|--assume-?\w+))\s.*"
        ),
        "asks before it installs, and nobody answers",
        "add -y",
    ),
    (
        re.compile(r"read(?!\S)[^<|]*"),
        "asks, and nobody answers",
        "leave it out",
    ),
    (
        re.compile(r"(FROM|RUN|COPY|ADD|ENV|WORKDIR|ENTRYPOINT|CMD|ARG|EXPOSE)\s+[^\s=(].*"),
        "is a line of a Dockerfile, and no command of bash",
        "write the command itself",
    ),
)
# The same for lines of one field. A setup may end before the training, and prepare data by a launcher.
_OF_SETUP = (
    (
        re.compile(r"exit\s+[1-9]\d*|false"),
        "ends the setup with an error, and no training begins",
        "leave it out",
    ),
)
_OF_ACTIVATE = (
    (
        re.compile(r"([^()|&]*;\s*)?exit(\s+\S+)?|false|exec\s+(?![0-9]*[&<>])\S.*"),
        "ends the script of the launch, and no training begins",
        "leave it out",
    ),
    (
        re.compile(r"(torchrun|accelerate\s+launch|deepspeed|sbatch)\s.*"),
        "is a launcher, and the job launches its training itself",
        "write train: {script: FILE.py}, and leave it out",
    ),
)
# Words that make a line depend on another one.
_DEPENDS = re.compile(
    r"\b(if|case|for|while|until|function|trap|expand_aliases|always_yes)\b|\(\)|<<|\s-c\s|(^|\s)\{(\s|$)"
    r"|(\\|\||&&)\s*$",
    re.MULTILINE,
)
# Commands that fail if they find their own work. The line has no condition and no directory that goes with the job.
_ONCE = (
    (r"git clone\s", "write [ -d DIRECTORY ] || git clone URL DIRECTORY"),
    (r"mkdir(?!.*\s--?\w*p)\s", "write mkdir -p"),
    (r"ln(?=.*\s-\w*s)(?!.*\s--?\w*[fn])\s", "write ln -sfn"),
)
_PLAIN = r"(?!.*/(?:tmp|dev/shm|run)\b)[^;|&$`]*"
# Words of a setup that may look for earlier work, or remove it.
_GUARDS = re.compile(r"\b(if|case|for|while|rm|test|trap)\b|\[|\|\||&&|set \+e|cd .*[$`]|<<")


def conflicts(job: JobSpec) -> Iterable[Conflict]:
    """Return the warnings about the job's lines of bash."""
    lists = lists_of(job)
    setup = lists.get("setup", ())
    return chain(
        *(_lines(field, entries) for field, entries in lists.items()),
        _exports(job),
        _lost(setup),
        _once(setup) if job.persists("/") else (),
    )


def lists_of(group: Any, place: str = "") -> dict[str, Sequence[str]]:
    """Return the lists of lines of bash in a group of a spec, at any depth, by their fields."""
    lists: dict[str, Sequence[str]] = {}
    for field in dataclasses.fields(group):
        if "kind" not in field.metadata:
            continue
        value, path = getattr(group, field.name), f"{place}{field.name}"
        if field.name in _NAMES and value:
            lists[path] = value
        elif dataclasses.is_dataclass(value):
            lists |= lists_of(value, f"{path}.")
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    lists |= lists_of(item, f"{path}[{i}].")
    return lists


def _each(field: str, entries: Sequence[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each line, after the fields of a warning about it."""
    for i, entry in enumerate(entries):
        for line in entry.splitlines():
            yield (f"{field}[{i}]", field), line.strip()


def _lines(field: str, entries: Sequence[str]) -> Iterator[Conflict]:
    """Yield the lines that `bash -n` accepts, and that fail or do harm."""
    text = "\n".join(entries)
    if _DEPENDS.search(text) or any(
        line.count('"') % 2 or line.count("'") % 2 for line in text.splitlines()
    ):
        return
    ends_setup = () if re.search(r"set \+e|^\s*[()]", text, re.MULTILINE) else _OF_SETUP
    for fields, line in _each(field, entries):
        for pattern, problem, remedy in (
            *_LINES,
            *(_OF_ACTIVATE if field.endswith("activate") else ends_setup),
        ):
            if match := pattern.fullmatch(line):
                yield Conflict(fields, problem, match.expand(remedy), fatal=False)
        if name := _bad_name(line):
            remedy = "write quotes around a value with spaces, and names of letters, digits and _"
            yield Conflict(fields, f"{name} is no name of a variable", remedy, fatal=False)
        path = re.fullmatch(r"(?:export\s+)?PATH=[\"']?(.*?)[\"']?", line)
        if path and OTHER_PATH.fullmatch(path[1]):
            yield Conflict(fields, LOSES_PROGRAMS, f"write export PATH={path[1]}:$PATH", False)


def _bad_name(line: str) -> str:
    """Return the first word of an export that is neither a name nor NAME=VALUE; "" for none."""
    if not line.startswith("export ") or re.search(r"[;&|`()<>\\]", line):
        return ""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        return ""
    names = (re.sub(r"\+?=.*", "", word, flags=re.DOTALL) for word in words)
    return next(
        (each for each in names if not re.fullmatch(r"[A-Za-z_]\w*|-[fnp-]+|.*\$.*", each)), ""
    )


def _exports(job: JobSpec) -> Iterator[Conflict]:
    """Yield the variables in `activate` that the supervisor replaces, or that hide GPUs which the job needs."""
    threads, gpus = str(job.train.threads), job.gpus_per_node or 0
    nic = "write nic: with one exact name, like eth0"
    pinned: Mapping[str, tuple[str | None, str, str]] = {
        "OMP_NUM_THREADS": (threads, "train.threads", "write train: {threads: N}"),
        **dict.fromkeys(INTERFACE_VARIABLES, (job.nic, "nic", nic)),
    }
    for fields, line in _each("python.activate", job.python.activate):
        words = (
            re.findall(r"\s(\w+)=[\"']?([^\s\"';&]*)", line.partition(" #")[0])
            if line.startswith("export")
            else ()
        )
        for name, value in words:
            value_of_job, field, remedy = pinned.get(name, (value, "", ""))
            if value.lstrip("=") != value_of_job and name not in job.env:
                problem = f"{name} has no effect here, because the job sets the variable by {field}"
                yield Conflict(fields, problem, remedy, fatal=False)
            if name in TORCHRUN_VARIABLES:
                problem = f"{name} has no effect here, because torchrun sets it for each process"
                yield Conflict(fields, problem, "leave it out", fatal=False)
            hidden = shown(value) < gpus
            if name in HIDING and hidden and "$" not in value:
                yield Conflict(fields, *HIDES_GPUS, fatal=False)


def shown(devices: str) -> int:
    """Return how many GPUs a list like 0,1 shows. A negative number or another word hides those behind it, too.

    A GPU that is listed twice hides all.
    """
    names = re.split(r"(?:^|,)\s*-\d", devices)[0].split(",")
    known = [*takewhile(re.compile(r"\s*(\d+|(GPU|MIG)-[\w/-]+)\s*|\s*").fullmatch, names)]
    shown_names = [name.strip() for name in known if name.strip()]
    return len(shown_names) if len({*shown_names}) == len(shown_names) else 0


def _lost(setup: Sequence[str]) -> Iterator[Conflict]:
    """Yield the lines of setup that neither the training nor a later line of setup notices."""
    noticed = False
    for i, text in reversed([*enumerate(setup)]):
        fields = (f"setup[{i}]", "setup")
        noticed = noticed or not all(map(_OF_THE_SHELL.fullmatch, text.splitlines()))
        if text.lstrip().startswith("#SBATCH"):
            remedy = "write the field for it, or extra"
            yield Conflict(
                fields, "is a comment, because sbatch does not read setup", remedy, False
            )
        elif not noticed and not text.lstrip().startswith("#"):
            problem = "ends with setup, whose shell the training does not share"
            remedy = "write it in python.activate, or a variable in env"
            yield Conflict(fields, problem, remedy, False)


def _once(setup: Sequence[str]) -> Iterator[Conflict]:
    """Yield the lines of setup that fail at the second start, on a machine that keeps its files."""
    if _GUARDS.search("\n".join(setup)):
        return
    for fields, line in _each("setup", setup):
        for command, remedy in _ONCE:
            if re.fullmatch(command + _PLAIN, line):
                problem = "fails at the next start, which finds what this one has made"
                yield Conflict(fields, problem, remedy, fatal=False)
